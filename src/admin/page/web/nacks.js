// View of rejections.

import { h, table } from './dom.js';
import { count, number, queryOf } from './format.js';
import { NACK_COLUMNS, filters, nackRow, nothing, pages, typeField, versions } from './parts.js';

/** Rejections of a page. */
const PAGE = 50;

export const nacks = {
  title: () => 'Rejections',
  load: ({ node, type, after }, ask) => ask(`nacks?${queryOf({ node, type, after, limit: PAGE })}`),
  command: ({ node, type }) => [['nacks'], [['--node', node], ['--type', type]]],
  form: (parameters, facts) =>
    filters('nacks', [{ name: 'node', label: 'Node ID, * for any text', placeholder: 'edge-*' }, typeField(facts)], parameters),
  render: (page, { parameters, elapsed }) => {
    const about = h('p', { class: 'quiet' },
      'The newest rejection (NACK) of each client and type, the newest first, also of clients that are gone. Texts about Secrets are withheld.');
    if (page.nacks.length === 0) return [about, nothing(page.remembered === 0 ? 'No client has rejected anything.' : 'No rejection matches.')];
    const shown = `${number(page.nacks.length)} shown, ${count(page.remembered, 'rejection')} remembered`;
    const show = versions(page.nacks);
    return [
      about,
      pages('nacks', parameters, page.next, shown),
      table('Rejections', NACK_COLUMNS, page.nacks.map((nack) => nackRow(nack, elapsed, show))),
      page.next !== null && pages('nacks', parameters, page.next, shown, false),
    ];
  },
};
