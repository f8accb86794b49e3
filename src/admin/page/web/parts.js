// Parts that several views share.

import { code, foreign, h, prose, visible } from './dom.js';
import { age, bytes, lastClause, link, number, shortVersions, typeKey, version } from './format.js';
import { STATES, inOrder } from './metrics.js';

/** Time in the past. `elapsed` are the seconds since the relay said how long ago it was. */
export function ago(seconds, elapsed) {
  return seconds === null || seconds === undefined ? 'never' : `${age(seconds + elapsed)} ago`;
}

const MEANINGS = {
  rejected: 'rejected something (NACK), and runs an older state of it',
  waiting: 'was told nothing yet: the control plane has not answered what it asks for',
  unacked: 'has not answered the newest response',
  behind: 'was not sent the newest change',
  resuming: 'came back and runs what it holds: the control plane has not confirmed yet that it is the newest',
  held_back: 'is kept on an earlier state by the rollout guard',
  synced: 'has accepted everything that there is for it',
  new: 'has sent no request yet',
  gone: 'is not connected any more',
};

/** Word for the state of a client. */
export function state(of) {
  const word = of ?? 'gone';
  return h('span', { class: `state state-${word}`, title: MEANINGS[word] }, word);
}

/** Clients by state: a bar, and behind it each number with a link. `to` gives the address for a state. */
export function states(counts, to) {
  const known = [...STATES, 'new'].filter((one) => counts[one] > 0).reverse();
  const all = known.reduce((sum, one) => sum + counts[one], 0);
  if (all === 0) return h('p', { class: 'quiet' }, 'no clients');
  let left = 0;
  const part = (one) => {
    // A single client of 10,000 has to be seen.
    const width = Math.max(0.8, (100 * counts[one]) / all);
    const rect = h('rect', { class: `state-${one}`, x: left, y: 0, width, height: 8 });
    left += width;
    return rect;
  };
  const parts = known.map(part);
  return h('div', { class: 'states' },
    h('svg', { viewBox: `0 0 ${left} 8`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, parts),
    h('ul', null, known.map((one) => h('li', null, h('a', { href: to(one) }, state(one), ' ', number(counts[one]))))));
}

/** Name of a resource, which leads to its history. */
export function resourceLink(of, text = of.name) {
  const href = link('history', { type: typeKey(of), name: of.name, group: of.group });
  return h('a', { href }, code(text));
}

/** Client, which leads to its page. */
export function clientLink(id, node) {
  const named = node.id === '' ? h('span', { class: 'quiet' }, 'no node ID') : foreign(node.id);
  return h('a', { href: link(`clients/${id}`) }, named);
}

/** Short name of a type, with its URL. */
export function kind(of) {
  return h('span', { title: of.type_url }, of.type === 'other' ? foreign(of.type_url.split('.').at(-1)) : of.type);
}

/** Shows versions of a list, each as what tells it from the others there. */
export function versions(all) {
  const short = shortVersions(all.filter(Boolean).map(version));
  return (of) => {
    const [whole, part] = [version(of), short.get(version(of))];
    return part === undefined ? code(whole, 40) : h('span', { title: visible(whole).slice(0, 4_000) }, code(part, 40));
  };
}

/** Version that a client was sent or has accepted. */
export function delivery(of, show = versions([])) {
  return of === null ? h('span', { class: 'quiet' }, 'nothing') : show(of);
}

/** Form of filters that lead to another address of a view. */
export function filters(view, fields, parameters) {
  const known = fields.map((field) => field.name);
  const others = Object.entries(parameters).filter(([name]) => !known.includes(name) && name !== 'after');
  const isFiltered = fields.some(({ name }) => parameters[name]);
  const id = (name) => `filter-${name}`;
  const input = ({ name, options, ...more }) => options === undefined
    ? h('input', { id: id(name), name, value: parameters[name] ?? '', autocomplete: 'off', spellcheck: 'false', maxlength: 1_000, ...more })
    : h('select', { id: id(name), name },
      h('option', { value: '' }, 'all'),
      [...new Set([...options, parameters[name] ?? ''])].filter((option) => option !== '')
        .map((option) => h('option', { value: option, selected: option === parameters[name] }, visible(option))));
  return h('form', { class: 'filters', 'data-view': view },
    others.map(([name, value]) => h('input', { type: 'hidden', name, value })),
    fields.map(({ label, ...field }) => h('div', null, h('label', { for: id(field.name) }, label), input(field))),
    h('div', { class: 'buttons' },
      h('button', { type: 'submit' }, 'Apply'),
      isFiltered && h('a', { href: link(view) }, 'Clear')));
}

/** Field for a type. `facts` are those of the relay, whose types are offered. */
export function typeField(facts) {
  const types = facts.metrics.get('deltafan_clients')?.map((one) => one.labels.type) ?? [];
  return { name: 'type', label: 'Type', options: inOrder(new Set(types)).filter((type) => type !== 'other') };
}

/** Places of the pages before, by the view and its filters: the relay tells only the next one. */
const trails = new Map();

/** Links to other pages of a list. `isAbove` tells those above it from those below. */
export function pages(view, parameters, next, shown, isAbove = true) {
  const { after = '', ...filters } = parameters;
  const key = `${view} ${JSON.stringify(filters)}`;
  if (!trails.has(key)) trails.set(key, ['']);
  const trail = trails.get(key);
  const at = trail.indexOf(after);
  if (at >= 0 && next !== null) trail[at + 1] = String(next);
  const to = (place, text, rel) => h('a', { href: link(view, { ...filters, after: place }), rel }, text);
  return h('nav', { class: 'pages', 'aria-label': `Pages, ${isAbove ? 'above' : 'below'} the list` },
    h('span', null, shown),
    after !== '' && to('', 'First page', null),
    at > 1 && to(trail[at - 1], 'Previous page', 'prev'),
    next !== null && to(next, 'Next page', 'next'));
}

/** Changes of resources as rows. */
export function changeRow(change, elapsed, show) {
  return {
    key: `${change.type_url} ${change.name} ${change.group} ${change.parameters} ${change.generation}`,
    cells: [
      h('time', { datetime: change.time, title: change.time }, change.time.slice(11, 19)),
      ago(change.seconds_ago, elapsed),
      kind(change),
      [resourceLink(change), place(change)],
      h('span', { class: `event event-${change.event}` }, change.event),
      change.version === null ? h('span', { class: 'quiet' }, 'none') : show(change),
      change.bytes === null ? '' : bytes(change.bytes),
    ],
  };
}

export const CHANGE_COLUMNS = ['Time', ['Age', 'nowrap'], 'Type', 'Resource', 'Event', 'Version', ['Size', 'number']];

/** Node group and dynamic parameters of a resource, where it has some. */
export function place(of) {
  const told = [
    of.group && ['group ', foreign(of.group, 60)],
    of.parameters?.length > 0 && ['parameters ', foreign(of.parameters, 100)],
  ].filter(Boolean);
  return told.map((words) => h('span', { class: 'place' }, words));
}

/** Rejections as rows. */
export function nackRow(nack, elapsed, show) {
  return {
    key: `${nack.client} ${nack.type_url} ${nack.node.id} ${nack.peer}`,
    cells: [
      ago(nack.seconds_ago, elapsed),
      nack.state === null ? foreign(nack.node.id) : clientLink(nack.client, nack.node),
      kind(nack),
      show(nack),
      state(nack.state),
      number(nack.count),
      changed(nack),
      rejection(nack.text),
    ],
  };
}

export const NACK_COLUMNS = [
  ['Age', 'nowrap'], 'Client', 'Type', 'Version', 'Client now', ['Count', 'number'], 'Changed since its last ACK', 'Reason',
];

/** Text of a rejection: its last clause, and behind a fold the whole. */
export function rejection(text) {
  const clause = h('span', null, prose(lastClause(text)));
  if (text.length <= 60 && lastClause(text) === text) return h('div', { class: 'reason' }, clause);
  const lines = text.trim().split(/[\r\n]+/).map((line) => h('div', null, prose(line, 1_000)));
  return h('details', { class: 'reason' }, h('summary', null, clause), lines);
}

/** Names that changed since the last ACK of a client. */
function changed(nack) {
  if (nack.changed === null) return h('span', { class: 'quiet' }, 'everything was new');
  if (nack.changed.length === 0) return h('span', { class: 'quiet' }, 'nothing');
  const name = (of) => h('li', null, resourceLink({ ...nack, name: of, group: null }));
  return h('ul', { class: 'names' }, nack.changed.map(name));
}

/** Paragraph for a list without entries. */
export function nothing(...words) {
  return h('p', { class: 'nothing' }, words);
}
