// Views of clients: all of them by page, and one with the names that it asks for.

import { code, foreign, h, table } from './dom.js';
import { age, count, link, number, queryOf, typeKey, version } from './format.js';
import { STATES } from './metrics.js';
import { ago, clientLink, delivery, filters, kind, nothing, pages, place, rejection, state, states, typeField, versions } from './parts.js';

/** Clients of a page. */
const PAGE = 50;
/** Names of a subscription that are shown before one asks for more. */
const NAMES = 100;

export const clients = {
  title: () => 'Clients',
  load: ({ node, type, state: its, asks_for, after }, ask) =>
    ask(`clients?${queryOf({ node, type, state: its, asks_for, after, limit: PAGE })}`),
  command: ({ node, type, state: its, asks_for }) =>
    [['clients'], [['--node', node], ['--type', type], ['--state', its], ['--asks-for', asks_for]]],
  form: (parameters, facts) => filters('clients', [
    { name: 'node', label: 'Node ID, * for any text', placeholder: 'edge-*' },
    typeField(facts),
    { name: 'state', label: 'State', options: STATES },
    { name: 'asks_for', label: 'Asks for the resource', placeholder: 'backend' },
  ], parameters),
  render: (page, { parameters, elapsed }) => {
    const matched = Object.values(page.states).reduce((sum, one) => sum + one, 0);
    const to = (its) => link('clients', { ...parameters, after: null, state: its === 'new' ? null : its });
    const shown = `${number(page.clients.length)} of ${count(matched, 'client that matches', 'clients that match')}, ${number(page.open)} connected`;
    if (matched === 0) {
      return [nothing(`No client matches; ${count(page.open, 'stream or poll is', 'streams and polls are')} open. `,
        parameters.asks_for && 'Long polls are not found by name, because the relay does not keep their names.')];
    }
    return [
      states(page.states, to),
      pages('clients', parameters, page.next, shown),
      parameters.type ? oneType(page.clients, elapsed) : allTypes(page.clients),
      page.next !== null && pages('clients', parameters, page.next, shown, false),
    ];
  },
};

const CAPTION = 'Streams and held polls, the oldest first';

function allTypes(clients) {
  const rows = clients.map((client) => ({
    key: client.id,
    cells: [
      [clientLink(client.id, client.node), place({ group: client.group })],
      foreign(client.peer, 60),
      client.transport,
      state(client.state ?? 'new'),
      h('ul', { class: 'types' }, client.types.map((of) => h('li', null, kind(of), ' ', delivery(of.acked), ' ', state(of.state)))),
      age(client.open_seconds),
    ],
  }));
  const columns = ['Client', ['Peer', 'nowrap'], 'Transport', 'State', 'Types, each with the version that it has accepted', ['Open', 'nowrap']];
  return table(CAPTION, columns, rows);
}

function oneType(clients, elapsed) {
  const show = versions(clients.flatMap(({ types }) => types.flatMap((of) => [of.sent, of.acked])));
  const rows = clients.flatMap((client) => client.types.map((of) => ({
    key: `${client.id} ${of.type_url}`,
    cells: [
      [clientLink(client.id, client.node), place({ group: client.group })],
      foreign(client.peer, 60),
      client.transport,
      state(of.state),
      delivery(of.sent, show),
      of.held === null ? delivery(of.acked, show) : code(of.held, 40),
      number(of.lag),
      reason(of, elapsed),
    ],
  })));
  const columns = ['Client', ['Peer', 'nowrap'], 'Transport', 'State', 'Sent', 'Accepted', ['Behind by', 'number'], 'Rejected'];
  return table(CAPTION, columns, rows);
}

function reason({ rejected }, elapsed) {
  if (rejected === null) return '';
  return [code(version(rejected), 40), ' ', ago(rejected.seconds_ago, elapsed), rejection(rejected.text)];
}

export const client = {
  title: ({ id }) => `Client ${id}`,
  load: ({ id }, ask) => ask(`clients/${encodeURIComponent(id)}`),
  command: ({ id }) => [['clients', id], []],
  render: (client, { elapsed }) => {
    const facts = [
      ['Node ID', foreign(client.node.id)],
      ['Cluster', foreign(client.node.cluster)],
      ['Program', foreign(client.node.user_agent)],
      ['State', state(client.state ?? 'new')],
      ['Transport', client.transport],
      ['Peer', foreign(client.peer)],
      ['Identity', client.identity === null ? 'none proven' : foreign(client.identity)],
      ['Connection', `${client.connection}, open for ${age(client.open_seconds + elapsed)}`],
      ['Node group', client.group === null ? 'that of the relay' : foreign(client.group)],
      ...Object.entries(client.parameters ?? {}).map(([key, value]) => [foreign(key), foreign(value)]),
    ];
    const rows = client.types.map((of) => ({
      key: of.type_url,
      cells: [
        kind(of), state(of.state), asks(of),
        when(of.sent, elapsed), of.held === null ? when(of.acked, elapsed) : code(of.held, 40),
        number(of.lag), reason(of, elapsed),
      ],
    }));
    const columns = ['Type', 'State', 'Asks for', 'Sent', 'Accepted', ['Behind by', 'number'], 'Rejected'];
    return [
      h('dl', { class: 'facts' }, facts.map(([term, of]) => h('div', null, h('dt', null, term), h('dd', null, of)))),
      table('What it runs', columns, rows),
      client.types.filter((of) => of.listed?.length > 0).map(listed),
      client.types.some((of) => of.rejected !== null) &&
        h('p', null, h('a', { href: link('nacks', { node: client.node.id }) }, 'Rejections of this node')),
    ];
  },
};

const when = (of, elapsed) => (of === null ? delivery(of) : [delivery(of), ` ${ago(of.seconds_ago, elapsed)}`]);

const asks = (of) => [of.wildcard && 'everything', of.names > 0 && count(of.names, 'name')].filter(Boolean).join(' and ') || 'nothing';

function listed(of) {
  const name = (one) => h('li', null, h('a', { href: link('history', { type: typeKey(of), name: one }) }, code(one)));
  const more = of.names > of.listed.length && `, of which ${number(of.listed.length)} are listed`;
  return h('details', { open: of.listed.length <= NAMES, 'data-key': `names ${of.type_url}` },
    h('summary', null, 'Names of ', kind(of), `: ${number(of.names)}`, more),
    h('ul', { class: 'names columns' }, of.listed.map(name)));
}
