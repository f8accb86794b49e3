// Views of what changed: the newest changes of all resources, and those of one with their differences.

import { code, h, prose, table, visible } from './dom.js';
import { bytes, clock, count, groupOf, link, number, queryOf, typeKey, version } from './format.js';
import { CHANGE_COLUMNS, ago, changeRow, filters, nothing, place, typeField, versions } from './parts.js';
import { restoreForm } from './rollout.js';

/** Changes that are shown. */
const SHOWN = 500;
/** Most that the relay gives: as far back as one can look for a time. */
const MOST = 10_000;
/** Minutes before and behind a time that is looked for. */
const AROUND = 5;
/** Changes of a second that are shown before one asks for them. */
const FEW = 5;
/** Lines of a diff that are shown. */
const LINES = 3_000;

/** Millisecond at which it was last this time of day (UTC), seen from another one. */
export function lastAt(time, now) {
  const found = /^(\d{1,2}):(\d{2})$/.exec(time);
  if (found === null || Number(found[1]) > 23 || Number(found[2]) > 59) return null;
  const today = new Date(now);
  const at = Date.UTC(today.getUTCFullYear(), today.getUTCMonth(), today.getUTCDate(), Number(found[1]), Number(found[2]));
  return at > now ? at - 86_400_000 : at;
}

const day = (millis) => `${new Date(millis).toISOString().slice(0, 10)} ${clock(millis)}`;

const recent = {
  title: () => 'History',
  load: ({ type, at }, ask) => ask(`history?${queryOf({ type, limit: at ? MOST : SHOWN })}`),
  command: ({ type }) => [['history', ...(type ? [type] : [])], []],
  form: (parameters, facts) =>
    filters('history', [typeField(facts), { name: 'at', label: `Around (UTC, ±${AROUND} min)`, placeholder: '14:02', pattern: '[0-9]{1,2}:[0-9]{2}', title: 'A time of day, as in 14:02' }], parameters),
  render: ({ changes }, { parameters, elapsed, at }) => {
    if (changes.length === 0) return [nothing('No change is remembered.')];
    const note = h('p', { class: 'quiet' },
      'The newest change comes first. The history is in memory only: it begins with the start of the relay, and resources that are there then are no changes.');
    const found = parameters.at ? around(changes, parameters.at, at) : { changes, told: `The newest ${number(changes.length)} changes` };
    const shown = found.changes.slice(0, MOST / 20);
    const show = versions(shown);
    return [
      note,
      h('p', { class: 'told' }, found.told, found.changes.length > shown.length && `; the newest ${number(shown.length)} of these are shown`),
      shown.length > 0 && h('section', { 'aria-label': 'Changes by second' }, bySecond(shown).map((one) => second(one, elapsed, show))),
    ];
  },
};

/** Changes of each second, with words such as `cds 300 changed, rds 1`. */
export function bySecond(changes) {
  const seconds = new Map();
  for (const change of changes) {
    if (!seconds.has(change.time)) seconds.set(change.time, []);
    seconds.get(change.time).push(change);
  }
  return [...seconds].map(([time, all]) => {
    const counts = new Map();
    for (const { event, type } of all) counts.set(`${event} ${type}`, (counts.get(`${event} ${type}`) ?? 0) + 1);
    const parts = [...counts].map(([key, of]) => [...key.split(' '), of]);
    const isRepeated = (at) => at > 0 && parts[at - 1][0] === parts[at][0];
    const words = parts.map(([event, type, of], at) => `${type} ${number(of)}${isRepeated(at) ? '' : ` ${event}`}`);
    return { time, changes: all, words: words.join(', ') };
  });
}

function second({ time, changes, words }, elapsed, show) {
  // The line above has time and age.
  const row = ({ cells, ...more }) => ({ ...more, cells: cells.slice(2) });
  return h('details', { 'data-key': time, open: changes.length <= FEW },
    h('summary', null, h('time', { datetime: time, title: time }, time.slice(11, 19)), ` ${words} `,
      h('span', { class: 'quiet' }, ago(changes[0].seconds_ago, elapsed))),
    table(`Changes at ${time}`, CHANGE_COLUMNS.slice(2), changes.map((change) => row(changeRow(change, elapsed, show)))));
}

/** Changes around a time of day, and words about them. `at` is the moment at which the relay gave them. */
function around(changes, time, at) {
  // By the clock of the relay.
  const now = Math.max(...changes.slice(0, 1).map((one) => Date.parse(one.time) + 1_000 * one.seconds_ago), 0) || at;
  const middle = lastAt(time, now);
  if (middle === null) return { changes: [], told: `${visible(time)} is no time of day, as 14:02` };
  const [from, to] = [middle - AROUND * 60_000, middle + (AROUND + 1) * 60_000];
  const inside = changes.filter((one) => Date.parse(one.time) >= from && Date.parse(one.time) < to);
  const oldest = Date.parse(changes.at(-1).time);
  const begin = oldest > from ? `. The history here begins at ${day(oldest)}: the relay does not know what came before` : '';
  return { changes: inside, told: `${count(inside.length, 'change')} from ${day(from)} to ${clock(to)}${begin}` };
}

const one = {
  title: ({ type, name }) => [`${type} `, code(name)],
  load: ({ type, name, group, from, to }, ask) => ask(`history?${queryOf({ type, name, from, to })}${groupOf(group)}`),
  command: ({ type, name, from, to }) => [['history', type, name], [['--from', from], ['--to', to]]],
  render: (page, { facts, parameters, elapsed }) => [
    page.left_out > 0 && h('p', { class: 'told' }, `${number(page.left_out)} further node groups are left out`),
    h('p', null,
      h('a', { href: link('clients', { type: typeKey(page), asks_for: page.name }) }, 'Clients that ask for it'), ' · ',
      h('a', { href: link('resources', { type: typeKey(page), name: page.name }) }, 'What the relay holds')),
    page.histories.map((history) => ofGroup(page, history, parameters, elapsed, facts.metrics.has('deltafan_rollout_changes'))),
  ],
};

const label = (change) => `#${change.generation}`;

/** `isGuarded` says that the relay has a rollout guard, which can restore earlier versions. */
function ofGroup(page, history, parameters, elapsed, isGuarded) {
  const { group, from: _, to: __, ...rest } = parameters;
  const query = { ...rest, ...(history.group === null ? { group } : { group: history.group }) };
  const show = versions(history.changes);
  const columns = ['Time', ['Age', 'nowrap'], 'Event', 'Version', ['Size', 'number'], 'Clients', 'What changed', 'Order'].slice(0, isGuarded ? 8 : 7);
  const rows = history.changes.map((change, index) => ({
    key: change.generation,
    cells: [
      // It was there before the first change that the relay remembers.
      change.time === null ? h('span', { class: 'quiet' }, 'unknown') : h('time', { datetime: change.time, title: change.time }, day(Date.parse(change.time))),
      change.time === null ? '' : ago(change.seconds_ago, elapsed),
      h('span', { class: `event event-${change.event}` }, change.event),
      change.version === null ? h('span', { class: 'quiet' }, 'none') : show(change),
      change.bytes === null ? '' : bytes(change.bytes),
      spread(change, history.clients, index === 0),
      h('a', { href: link('history', { ...query, to: label(change) }), 'aria-label': `Diff of ${visible(version(change)).slice(0, 60)}` }, 'diff'),
      change.version && restoreForm({ type: typeKey(page), name: page.name, version: change.version, group: history.group }),
    ].slice(0, columns.length),
  }));
  const key = `${history.group} ${history.parameters}`;
  const isNamed = history.group !== null || history.parameters !== null;
  return h('section', { 'data-key': key },
    isNamed && h('h2', null, place(history)),
    table(`${count(history.clients, 'client asks', 'clients ask')} for it`, columns, rows),
    history.changes.length > 1 && compare(query, history, parameters),
    diff(history.diff, isNamed ? 'h3' : 'h2'));
}

/** Clients that have a change, or one after it. */
function spread({ accepted, rejected, unanswered }, clients, isNewest) {
  if (clients === 0) return h('span', { class: 'quiet' }, 'none ask');
  const late = Math.max(0, clients - accepted - rejected - unanswered);
  return [
    `${number(accepted)} of ${number(clients)} have it${isNewest ? '' : ' or a newer one'}`,
    rejected > 0 && h('span', { class: 'bad' }, `, ${number(rejected)} reject it`),
    unanswered > 0 && `, ${number(unanswered)} have not answered`,
    late > 0 && `, ${number(late)} were not sent it`,
  ];
}

/** Form that compares any two changes. */
function compare(query, history, parameters) {
  const select = (name, text, chosen) => {
    const id = `${name}-${history.group ?? ''}-${history.parameters ?? ''}`;
    return h('div', null, h('label', { for: id }, text), h('select', { id, name },
      history.changes.map((change) => h('option', { value: label(change), selected: label(change) === chosen },
        `${visible(version(change)).slice(0, 60)} (${change.time === null ? '' : `${change.time.slice(11, 19)}, `}${change.event})`))));
  };
  const [newest, before] = history.changes;
  return h('form', { class: 'filters', 'data-view': 'history' },
    Object.entries(query).filter(([, value]) => value !== undefined).map(([name, value]) => h('input', { type: 'hidden', name, value })),
    select('from', 'Compare', parameters.from ?? label(before)),
    select('to', 'with', parameters.to ?? label(newest)),
    h('div', { class: 'buttons' }, h('button', { type: 'submit' }, 'Compare')));
}

function diff({ from, to, text, note }, heading) {
  const title = h(heading, { class: 'sides' }, 'From ', code(from, 60), ' to ', code(to, 60));
  if (text === null) return [title, nothing(prose(note, 500))];
  // The last line ends with a line break.
  const lines = text.replace(/\n$/, '').split('\n');
  const kind = (line) => ({ '+': 'plus', '-': 'minus', '@': 'hunk' })[line[0]] ?? null;
  const left = lines.length - LINES;
  return [
    title,
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Diff' },
      h('pre', { class: 'diff' }, lines.slice(2, LINES).map((line) => h('span', { class: kind(line) }, `${visible(line)}\n`)))),
    left > 0 && h('p', { class: 'told' }, `${number(left)} further lines are left out; deltafan history has all`),
    note !== null && h('p', { class: 'told' }, prose(note, 500)),
  ];
}

/** The view for these parameters. */
export function historyOf({ name }) {
  return name === undefined ? recent : one;
}
