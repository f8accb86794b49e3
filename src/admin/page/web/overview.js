// View of everything at a glance.

import { code, h, prose, table } from './dom.js';
import { age, clock, count, delay, link, number } from './format.js';
import { STATES, clientsByType, inOrder, samples, sum } from './metrics.js';
import { CHANGE_COLUMNS, NACK_COLUMNS, ago, changeRow, nackRow, nothing, states, versions } from './parts.js';
import { KEPT } from './samples.js';

/** Rejections and changes that are shown. */
const NEWEST = 6;

export const overview = {
  title: () => 'Overview',
  load: async (_, ask) => ({
    resources: await ask('resources?limit=0'),
    clients: await ask('clients?limit=0'),
    nacks: await ask(`nacks?limit=${NEWEST}`),
    // There is none where it is turned off.
    history: await ask(`history?limit=${NEWEST}`).catch((refusal) => {
      if (refusal.status !== 404) throw refusal;
      return { off: refusal.message };
    }),
  }),
  command: () => [['status'], []],
  render: (page, { facts, elapsed, history, now }) => [
    verdict(facts),
    h('div', { class: 'cards' },
      h('section', { 'aria-labelledby': 'source' }, h('h2', { id: 'source' }, sourceTitle(facts)), source(facts)),
      h('section', { 'aria-labelledby': 'clients' },
        h('h2', { id: 'clients' }, h('a', { href: link('clients') }, 'Clients')),
        h('p', { class: 'figure' }, number(page.clients.open), h('small', null, ' streams and held polls')),
        states(page.clients.states, (state) => link('clients', { state: state === 'new' ? null : state }))),
      h('section', { 'aria-labelledby': 'latency' }, h('h2', { id: 'latency' }, 'Propagation'), latency(history, now))),
    h('section', { 'aria-labelledby': 'types' }, h('h2', { id: 'types' }, 'Types'), types(facts, page)),
    h('section', { 'aria-labelledby': 'nacks' },
      h('h2', { id: 'nacks' }, h('a', { href: link('nacks') }, 'Newest rejections')),
      page.nacks.nacks.length === 0 ? nothing('No client has rejected anything since the relay started.')
        : table('Newest rejections', NACK_COLUMNS, page.nacks.nacks.map((nack) => nackRow(nack, elapsed, versions(page.nacks.nacks))))),
    propagation(history, now),
    h('section', { 'aria-labelledby': 'changes' },
      h('h2', { id: 'changes' }, h('a', { href: link('history') }, 'Newest changes')),
      changes(page.history, elapsed)),
  ],
};

/** View that shows more of a check. */
function viewOf(check, metrics) {
  const rejected = [...clientsByType(metrics)].find(([, states]) => states.rejected > 0)?.[0];
  return {
    clients: link('clients'), rejections: link('clients', { type: rejected, state: 'rejected' }), removals: link('history'), rollout: link('rollout'),
  }[check];
}

/** Checks of the relay that are not well, as `deltafan status` prints them. */
function verdict({ status: { checks, well }, metrics }) {
  const of = (state) => checks.filter((check) => check.state === state);
  const faults = of('FAULT');
  const line = ({ check, state, finding }) =>
    h('li', { class: state.toLowerCase() }, h('span', { class: 'level' }, state.toLowerCase()), ' ',
      viewOf(check, metrics) ? h('a', { href: viewOf(check, metrics) }, check) : check, ': ', prose(finding, 800));
  const found = [...faults, ...of('note')];
  return h('section', { class: `verdict ${well ? 'is-well' : 'is-fault'}`, 'aria-labelledby': 'verdict' },
    h('h2', { id: 'verdict' }, well ? 'All is well' : count(faults.length, 'fault')),
    found.length > 0 && h('ul', null, found.map(line)));
}

const sourceTitle = ({ upstreams }) =>
  upstreams.servers.length === 0 ? 'Directory' : upstreams.servers.length === 1 ? 'Control plane' : 'Control planes';

function source({ upstreams, metrics }) {
  const groups = samples(metrics, 'deltafan_groups').reduce((all, one) => all + one.value, 0);
  const facts = [
    groups > 0 && ['Node groups', number(groups)],
    upstreams.snapshot && ['Snapshot', upstreams.snapshot.error ? 'failed'
      : `written ${ago(upstreams.snapshot.last_write_seconds_ago, 0)}`],
  ].filter(Boolean);
  if (upstreams.servers.length === 0) {
    const failing = sum(metrics, 'deltafan_directory_failing_files') ?? 0;
    facts.unshift(['State', sum(metrics, 'deltafan_upstream_connected') > 0 ? 'read' : 'not read yet'], ['Files not in force', number(failing)]);
  } else {
    facts.unshift(
      ['Last answer', ago(upstreams.last_answer_seconds_ago, 0)],
      ['Out of date', upstreams.stale_seconds > 0 ? h('strong', { class: 'bad' }, `maybe, for ${age(upstreams.stale_seconds)}`) : 'no'],
    );
  }
  return [upstreams.servers.map(server), h('dl', { class: 'facts' }, facts.map(([term, of]) => h('div', null, h('dt', null, term), h('dd', null, of))))];
}

function server(of) {
  const word = of.connected ? 'connected' : of.active ? 'not connected' : 'spare';
  return h('div', { class: 'server', 'data-key': of.uri },
    h('p', null, h('span', { class: `link link-${word.replace(' ', '-')}` }, word), ' ', of.protocol, ' ', code(of.uri, 80)),
    // The error from before it was connected is over.
    of.last_error && !of.connected && h('p', { class: 'reason' }, prose(of.last_error, 300)));
}

/** Quantiles of the last minute in large figures. */
function latency(history, now) {
  const minute = history.summary(now - 60, now);
  const known = minute.known === 0 ? 'The second poll brings the first figures.'
    : `${count(minute.deliveries, 'delivery', 'deliveries')} in the last ${age(minute.known)}`;
  const figure = (name, value) => h('div', null, h('dt', null, name), h('dd', null, value === null ? '–' : delay(value)));
  return [
    h('dl', { class: 'figures' }, figure('p50', minute.p50), figure('p99', minute.p99)),
    h('p', { class: 'quiet' }, known, minute.known > 0 && minute.deliveries === 0 && ': nothing has changed'),
  ];
}

/** The plot. Its box belongs to main.js. */
function propagation(history, now) {
  const rows = [];
  for (let minutes = 0; minutes < KEPT / 60; minutes += 1) {
    const to = now - 60 * minutes;
    const of = history.summary(to - 60, to);
    if (of.known === 0) continue;
    const value = (seconds) => (seconds === null ? 'none' : delay(seconds));
    rows.push({ key: minutes, cells: [`${clock((to - 60) * 1_000)} to ${clock(to * 1_000)}`, number(of.deliveries), value(of.p50), value(of.p99), age(of.known)] });
  }
  const columns = ['Time', ['Deliveries', 'number'], ['p50', 'number'], ['p99', 'number'], ['Known of it', 'number']];
  return h('section', { 'aria-labelledby': 'plot-title', class: 'propagation' },
    h('h2', { id: 'plot-title' }, 'Propagation over the last 10 minutes'),
    h('ul', { class: 'legend' },
      h('li', { class: 'p50' }, 'p50'), h('li', { class: 'p99' }, 'p99'), h('li', { class: 'rate' }, 'deliveries per second')),
    h('p', { id: 'readout', 'data-keep': true, 'aria-hidden': 'true' }),
    h('div', { id: 'plot', 'data-keep': true, role: 'img', 'aria-label': 'Plot of propagation; the figures are in the table below' }),
    h('p', { class: 'quiet' },
      'From the arrival of a change at the relay until the transport of a client took it, since you opened this page.'),
    h('details', { 'data-key': 'figures' },
      h('summary', null, 'Figures by minute'),
      h('p', { class: 'quiet' },
        'The page works them out of the relay’s histogram while it is open and in front: there are gaps where it was hidden or paused, and ',
        'quantiles are estimates within a bucket. Prometheus has what came before.'),
      rows.length === 0 ? nothing('None yet.') : table('Propagation by minute', columns, rows)));
}

function types(facts, page) {
  const clients = clientsByType(facts.metrics);
  const kinds = inOrder(new Set([...Object.keys(page.resources.matched), ...clients.keys()]));
  if (kinds.length === 0) return nothing('The relay holds nothing, and no client asks for anything.');
  const rows = kinds.map((type) => {
    // Types without a short name have one label for all.
    const key = type === 'other' ? null : type;
    const held = page.resources.matched[type] ?? 0;
    const generation = sum(facts.metrics, 'deltafan_generation', { type });
    const counts = clients.get(type) ?? {};
    const all = STATES.reduce((total, state) => total + (counts[state] ?? 0), 0);
    return {
      key: type,
      cells: [
        type,
        h('a', { href: link('resources', { type: key }) }, number(held)),
        generation === null ? 'unknown' : number(generation),
        all === 0 ? '0' : h('a', { href: link('clients', { type: key }) }, number(all)),
        states(counts, (state) => link('clients', { type: key, state })),
      ],
    };
  });
  return table('Names, newest generation and clients of each type',
    ['Type', ['Names', 'number'], ['Generation', 'number'], ['Clients', 'number'], ['Clients by state', 'wide']], rows);
}

function changes(history, elapsed) {
  if (history.off !== undefined) return nothing(prose(history.off, 300));
  if (history.changes.length === 0) return nothing('No change is remembered.');
  const show = versions(history.changes);
  return table('Newest changes', CHANGE_COLUMNS, history.changes.map((change) => changeRow(change, elapsed, show)));
}
