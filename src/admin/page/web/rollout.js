// View of the rollout guard: changes on trial or held, the answers of canaries, and orders.

import { code, foreign, h, table, visible } from './dom.js';
import { age, count, groupOf, link, number, queryOf, typeKey } from './format.js';
import { NACK_COLUMNS, kind, nackRow, nothing, place, rejection, resourceLink, typeField, versions } from './parts.js';

/** Rows of a list. */
const SHOWN = 50;

export const rollout = {
  title: () => 'Rollout',
  load: async (_, ask) => {
    const groups = await ask('rollout');
    if (groups.length === 0) return { groups };
    return { groups, resources: await ask(`resources?held_back=true&limit=${SHOWN}`), nacks: await ask(`nacks?limit=${SHOWN}`) };
  },
  command: () => [['rollout'], []],
  render: ({ groups, resources, nacks }, { facts, elapsed }) => {
    if (groups.length === 0) return [nothing('No type is guarded: ', h('code', null, 'rollout.types'), ' of the configuration is empty.')];
    const isQuiet = ({ phase, orders }) => phase === 'idle' && orders.length === 0;
    const shown = [...groups].sort((a, b) => isQuiet(a) - isQuiet(b)).slice(0, SHOWN);
    const all = shown.map((group) => ({ group, changes: changesOf(group, resources.resources) }));
    const open = all.flatMap(({ changes }) => changes);
    const isAnswer = (nack) => open.some((of) => of.type_url === nack.type_url && (nack.changed?.includes(of.name) ?? true));
    const answers = nacks.nacks.filter(isAnswer);
    const show = versions(answers);
    return [
      all.map(({ group, changes }) => ofGroup(group, changes, facts, elapsed)),
      groups.length > SHOWN && h('p', { class: 'told' }, `${number(groups.length - SHOWN)} further node groups are left out`),
      resources.next !== null && h('p', { class: 'told' }, `Only ${SHOWN} names that differ from the control plane are listed`),
      h('section', { 'aria-labelledby': 'answers' },
        h('h2', { id: 'answers' }, 'Rejections of these changes'),
        answers.length === 0 ? nothing('No canary has rejected any of these.')
          : table('Rejections of these changes', NACK_COLUMNS, answers.map((nack) => nackRow(nack, elapsed, show)))),
    ];
  },
};

/** State of a node group in a sentence or two. */
export function situation({ phase, reason, step, unanswered, ...of }, elapsed) {
  const since = of.held_seconds === null ? '' : ` for ${age(of.held_seconds + elapsed)}`;
  const found = of.searching ? '. The relay looks for the bad ones' : '';
  const words = {
    idle: 'Nothing is on trial or held',
    gathering: 'A trial begins soon',
    trying: `Step ${step} of a trial ends in ${age(of.seconds_left - elapsed)}`,
    held: reason === 'rejected' ? `Held${since}: canaries rejected changes${found}`
      : reason === 'removals' ? `Held${since}: more removals than rollout.max_removed allows` : 'Held by an order',
  }[phase];
  return `${words}.${unanswered > 0 ? ` No canary has answered, for ${count(unanswered, 'trial')}.` : ''}`;
}

/** Held changes of a node group, then other names of which not all clients have the newest state. */
export function changesOf({ group, phase, held, orders, waiting }, resources) {
  const own = resources.filter((one) => one.group === group);
  const isOf = (one, of) => one.type_url === of.type_url && one.name === of.name
    && (of.parameters === null || (one.parameters ?? []).includes(of.parameters));
  const word = (one) => {
    const order = orders.find((of) => of.name !== null && isOf(one, of))?.order
      ?? orders.find((of) => of.order === 'hold' && of.type_url === one.type_url)?.order;
    if (order !== undefined) return { hold: 'on hold', discard: 'discarded', restore: 'restored' }[order];
    return phase !== 'trying' ? 'waiting' : waiting === 0 ? 'on trial' : 'on trial or waiting';
  };
  const rows = held.slice(0, SHOWN).map((of) => {
    const good = own.find((one) => isOf(one, of))?.version ?? null;
    return { ...of, group, good, newest: of.version, word: 'held' };
  });
  const others = own.filter((one) => !held.some((of) => isOf(one, of)));
  return [...rows, ...others.map((one) => ({ ...one, parameters: one.parameters?.join(' '), good: one.version, word: word(one) }))];
}

const CHANGES = ['State', 'Type', 'Resource', 'Version of all', 'New version', 'Canaries', 'Reason', 'What changed'];
const ORDERS = ['Order', 'Type', 'Resource', 'Version', 'Since', 'By'];

function ofGroup(group, changes, facts, elapsed) {
  const figures = [
    ['Canaries', group.canaries], ['On trial', group.phase === 'trying' ? group.trying : 0], ['Held', group.held.length],
    ['Waiting', group.waiting], ['On hold', group.on_hold],
  ].filter(([term, of]) => of > 0 || term === 'Canaries');
  const left = group.held.length - SHOWN;
  const key = group.group ?? '';
  return h('section', { 'data-key': `group ${key}` },
    h('h2', null, group.group ? ['Node group ', foreign(group.group)] : 'Clients of the relay’s own node'),
    h('p', null, situation(group, elapsed)),
    h('dl', { class: 'facts' }, figures.map(([term, of]) => h('div', null, h('dt', null, term), h('dd', null, number(of))))),
    changes.length > 0 && table('Changes that not all clients have', CHANGES, changes.map(changeRow)),
    left > 0 && h('p', { class: 'told' }, `${number(left)} further held changes are left out; deltafan rollout has all`),
    group.orders.length > 0 && [h('h3', null, 'Orders in force'), table('Orders in force', ORDERS, group.orders.map(orderRow))],
    orderForm(key, facts));
}

function changeRow(of) {
  const version = (one) => (one === null ? h('span', { class: 'quiet' }, 'none') : code(one, 40));
  const diff = link('history', { type: typeKey(of), name: of.name, from: of.good, to: of.newest }) + groupOf(of.group);
  return {
    key: `${of.type_url} ${of.name} ${of.parameters}`,
    cells: [
      of.word, kind(of), [resourceLink(of), place({ parameters: of.parameters })], version(of.good), version(of.newest),
      of.texts === undefined ? '' : `${number(of.accepted)} accepted, ${number(of.rejected)} rejected`,
      of.texts?.map(rejection),
      h('a', { href: diff, 'aria-label': `Diff of ${visible(of.name).slice(0, 60)}` }, 'diff'),
    ],
  };
}

function orderRow(of) {
  const name = of.name === null ? 'all' : [resourceLink(of), place(of)];
  return {
    key: `${of.order} ${of.type_url} ${of.name} ${of.parameters}`,
    cells: [of.order, kind(of), name, of.version === null ? '' : code(of.version, 40), of.since, foreign(of.by)],
  };
}

function orderForm(group, facts) {
  const id = (name) => `${name}-${group}`;
  const button = (order) => h('button', { type: 'submit', value: order }, order[0].toUpperCase() + order.slice(1));
  return h('form', { class: 'filters', 'data-order': true },
    h('input', { type: 'hidden', name: 'group', value: group }),
    h('div', null, h('label', { for: id('type') }, 'Type'), h('select', { id: id('type'), name: 'type' },
      h('option', { value: '' }, 'all guarded types'), typeField(facts).options.map((type) => h('option', { value: type }, type)))),
    h('div', null, h('label', { for: id('by') }, 'Your name, for the record'), h('input', { id: id('by'), name: 'by', maxlength: 100 })),
    h('div', { class: 'buttons' }, ['hold', 'release', 'discard'].map(button)));
}

/** Button that restores a version of a resource in its node group. */
export function restoreForm({ type, name, version, group }) {
  const fields = Object.entries({ type, name, version, group: group ?? '' });
  return h('form', { 'data-order': true },
    fields.map(([key, value]) => h('input', { type: 'hidden', name: key, value })),
    h('button', { type: 'submit', value: 'restore', 'aria-label': `Restore ${visible(version).slice(0, 60)}` }, 'Restore'));
}

/** Path of an order. */
export function orderPath(order, { group, ...of }) {
  return `rollout/${order}?${queryOf(of)}${groupOf(group)}`;
}

/** Question before an order. */
export function question(order, { type, name, version, group }) {
  const all = type || 'all guarded types';
  const words = {
    hold: `Hold ${all}? Clients keep, and canaries get back, the last good state until a release.`,
    release: `Release ${all}? Held changes spread; holds and restorations end.`,
    discard: `Discard the held changes of ${all}? This content never spreads.`,
    restore: `Restore ${type} ${visible(name)} to version ${visible(version)}? All clients get it at once, without a trial.`,
  }[order];
  return `${words}\n${group ? `Node group: ${visible(group)}` : 'Clients of the relay’s own node'}`;
}
