// Views of resources, and the search over clients and resources.

import { code, foreign, h, prose, table } from './dom.js';
import { bytes, count, link, number, queryOf, typeKey, version } from './format.js';
import { clientLink, filters, kind, nothing, pages, place, resourceLink, state, typeField } from './parts.js';

/** Resources of a page. */
const PAGE = 50;
/** Matches of a search, of each kind. */
const MATCHES = 20;

export const resources = {
  title: () => 'Resources',
  load: ({ type, name, after }, ask) => ask(`resources?${queryOf({ type, name, after, limit: PAGE })}`),
  command: ({ type, name }) => [['resources'], [['--type', type], ['--name', name]]],
  form: (parameters, facts) =>
    filters('resources', [{ name: 'name', label: 'Name, * for any text', placeholder: 'web*' }, typeField(facts)], parameters),
  render: (page, { parameters }) => {
    const types = Object.entries(page.matched);
    const matched = types.reduce((sum, [, one]) => sum + one, 0);
    if (matched === 0) {
      return [nothing('The relay holds no such name. It holds what its clients ask for, and all of a directory.')];
    }
    const first = Number(parameters.after ?? 0);
    const shown = `${number(first + 1)} to ${number(first + page.resources.length)} of ${count(matched, 'name')}`;
    const to = (type) => link('resources', { ...parameters, after: null, type: type === 'other' ? null : type });
    return [
      h('ul', { class: 'chips' }, types.map(([type, of]) => h('li', null, h('a', { href: to(type) }, `${type} ${number(of)}`)))),
      pages('resources', parameters, page.next, shown),
      list(page.resources),
      page.next !== null && pages('resources', parameters, page.next, shown, false),
    ];
  },
};

const COLUMNS = ['Type', 'Name', 'State', 'Version', ['Size', 'number'], ['Generation', 'number'], ['Clients that ask', 'number']];

function list(all) {
  const rows = all.map((of) => ({
    key: `${of.type_url} ${of.name} ${of.group} ${of.parameters}`,
    cells: [
      kind(of),
      [resourceLink(of), place(of), of.error !== null && h('span', { class: 'reason' }, prose(of.error, 300))],
      h('span', { class: `held held-${of.state}` }, of.state),
      [of.version === null ? '' : code(version(of), 40), newest(of)],
      of.bytes === null ? '' : bytes(of.bytes),
      number(of.generation),
      h('a', { href: link('clients', { type: typeKey(of), asks_for: of.name }) }, number(of.clients)),
    ],
  }));
  return table('Names of which the control plane has said something', COLUMNS, rows);
}

/** State of the control plane, where not all clients have been sent it. */
function newest({ newest: of }) {
  if (of === undefined) return null;
  return h('span', { class: 'place' }, of === null ? 'removed at the control plane' : ['newest ', code(of, 40)]);
}

export const search = {
  title: () => 'Search',
  load: async ({ q }, ask) => {
    const pattern = q.includes('*') ? q : `*${q}*`;
    const clients = await ask(`clients?${queryOf({ node: pattern, limit: MATCHES })}`);
    return { pattern, clients, resources: await ask(`resources?${queryOf({ name: pattern, limit: MATCHES })}`) };
  },
  command: () => null,
  render: ({ pattern, clients, resources: found }) => {
    const total = (of) => Object.values(of).reduce((sum, one) => sum + one, 0);
    const rows = clients.clients.map((client) => ({
      key: client.id,
      cells: [clientLink(client.id, client.node), foreign(client.peer, 60), client.transport, state(client.state ?? 'new')],
    }));
    const more = (view, parameters, of, shown) =>
      of > shown && h('p', null, h('a', { href: link(view, parameters) }, `All ${number(of)}`));
    const [matching, names] = [total(clients.states), total(found.matched)];
    return [
      h('p', null, 'Node IDs and names of resources like ', code(pattern)),
      h('h2', null, count(matching, 'client')),
      matching === 0 ? nothing('No client that is connected has such a node ID.')
        : table('Clients that match', ['Client', 'Peer', 'Transport', 'State'], rows),
      more('clients', { node: pattern }, matching, rows.length),
      h('h2', null, count(names, 'resource')),
      names === 0 ? nothing('The relay holds no such name.') : list(found.resources),
      more('resources', { name: pattern }, names, found.resources.length),
    ];
  },
};
