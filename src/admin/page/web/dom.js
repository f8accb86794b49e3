// Elements of the page.
//
// Names, versions and texts come from clients and control planes, who may be hostile: they become text nodes and attribute
// values, never markup.

const SVG = 'http://www.w3.org/2000/svg';
const SVG_TAGS = new Set(['svg', 'rect']);

/**
 * Makes an element. Attributes that are `null`, `undefined` or `false` are left out; children may be nested lists.
 */
export function h(tag, attributes, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? '' : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
const LONGEST = 200;

/** Text with its control and direction characters escaped, as they could make it look like another. */
export function visible(text) {
  return String(text).replace(UNSEEN, (unseen) => `\\u{${unseen.codePointAt(0).toString(16)}}`);
}

/** Text that a peer chose, cut to a readable length. */
export function foreign(text, longest = LONGEST) {
  const all = visible(text);
  if (all.length <= longest) return h('bdi', null, all);
  return h('bdi', { title: all.slice(0, 4_000) }, `${all.slice(0, longest)}…`);
}

/** Text of a peer in one line, its line breaks and tabs as spaces. */
export function prose(text, longest) {
  return foreign(String(text).replace(/\s+/g, ' ').trim(), longest);
}

/** Name or version that a peer chose, in a fixed-width font. */
export function code(text, longest) {
  return h('code', null, foreign(text, longest));
}

/**
 * Changes an element into another one, and keeps what is the same: focus, selections and scrolling stay. Children with `data-key`
 * are told apart by it. What is inside of an element with `data-keep` belongs to other code.
 */
function morph(live, next) {
  if (live.nodeType !== next.nodeType || live.nodeName !== next.nodeName) {
    live.replaceWith(next);
  } else if (live.nodeType === Node.TEXT_NODE) {
    if (live.data !== next.data) live.data = next.data;
  } else if (!live.hasAttribute('data-keep')) {
    morphAttributes(live, next);
    morphChildren(live, [...next.childNodes]);
  }
}

function morphAttributes(live, next) {
  // People open and close details.
  const isTheirs = (name) => live.nodeName === 'DETAILS' && name === 'open';
  for (const { name } of [...live.attributes]) {
    if (!next.hasAttribute(name) && !isTheirs(name)) live.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (live.getAttribute(name) !== value && !isTheirs(name)) live.setAttribute(name, value);
  }
}

const keyOf = (node) => node.getAttribute?.('data-key') ?? null;

/** Changes the children of an element into others. */
export function morphChildren(live, next) {
  const wanted = new Set(next.map(keyOf).filter((key) => key !== null));
  const known = new Map();
  for (const child of [...live.childNodes]) {
    const key = keyOf(child);
    if (key === null) continue;
    // Those that are gone go first: one that is moved would lose the focus.
    if (wanted.has(key) && !known.has(key)) known.set(key, child);
    else child.remove();
  }
  let place = live.firstChild;
  for (const child of next) {
    const key = keyOf(child);
    const match = key === null ? (place !== null && keyOf(place) === null ? place : null) : known.get(key);
    if (!match) {
      live.insertBefore(child, place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else live.insertBefore(match, place);
    morph(match, child);
  }
  while (place !== null) {
    const after = place.nextSibling;
    place.remove();
    place = after;
  }
}

/**
 * Table that a phone shows as a list of cards. The roles keep it a table for screen readers there.
 *
 * `columns` are headings, with a class as in `['Bytes', 'number']` where a column needs one. `rows` are `{ key, cells }`.
 */
export function table(caption, columns, rows) {
  const all = columns.map((column) => (Array.isArray(column) ? column : [column, null]));
  const cell = (content, at) =>
    h('td', { role: 'cell', class: all[at][1], 'data-label': all[at][0] }, h('div', null, content));
  return h('table', { role: 'table' },
    h('caption', null, caption),
    h('thead', { role: 'rowgroup' },
      h('tr', { role: 'row' },
        all.map(([title, kind]) => h('th', { role: 'columnheader', scope: 'col', class: kind }, title)))),
    h('tbody', { role: 'rowgroup' },
      rows.map(({ key, cells, kind }) =>
        h('tr', { role: 'row', 'data-key': key, class: kind ?? null }, cells.map(cell)))));
}
