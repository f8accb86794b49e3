// Numbers, times and addresses in words.

/** Number with separators, as in 10,000. */
export function number(value) {
  if (!Number.isFinite(value)) return 'unknown';
  const [whole, part] = String(Math.round(value * 1_000) / 1_000).split('.');
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ',');
  return part === undefined ? grouped : `${grouped}.${part}`;
}

/** Number of things, as in `1 client` and `3 clients`. */
export function count(value, one, many = `${one}s`) {
  return `${number(value)} ${value === 1 ? one : many}`;
}

/** Length of time in seconds, as in `4 s`, `3 min 20 s`, `2 d 4 h`. */
export function age(seconds) {
  if (!Number.isFinite(seconds)) return 'unknown';
  const whole = Math.max(0, Math.floor(seconds));
  const units = [[86_400, 'd'], [3_600, 'h'], [60, 'min'], [1, 's']];
  const first = units.findIndex(([size]) => whole >= size);
  if (first < 0) return '0 s';
  const [size, unit] = units[first];
  const text = `${Math.floor(whole / size)} ${unit}`;
  const [small, smaller] = units[first + 1] ?? [0, ''];
  const rest = small === 0 ? 0 : Math.floor((whole % size) / small);
  return rest === 0 ? text : `${text} ${rest} ${smaller}`;
}

/** Delay in seconds, with three digits at most. */
export function delay(seconds) {
  if (!Number.isFinite(seconds)) return 'none';
  const [value, unit] = seconds < 0.001 ? [seconds * 1e6, 'µs'] : seconds < 1 ? [seconds * 1e3, 'ms'] : [seconds, 's'];
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${Number(value.toFixed(digits))} ${unit}`;
}

/** Bytes, as in `68 B` and `1.5 KiB`. */
export function bytes(value) {
  if (!Number.isFinite(value)) return 'unknown';
  let [rest, unit] = [value, 'B'];
  for (const next of ['KiB', 'MiB', 'GiB']) {
    if (rest < 1_024) break;
    [rest, unit] = [rest / 1_024, next];
  }
  return `${Number(rest.toFixed(unit === 'B' || rest >= 100 ? 0 : 1))} ${unit}`;
}

/** Time of day in UTC, of milliseconds since 1970. */
export function clock(millis) {
  return new Date(millis).toISOString().slice(11, 19);
}

/** Version of the control plane, or the generation where it gives none. */
export function version({ version: of, generation }) {
  return of === '' || of === null || of === undefined ? `#${generation}` : of;
}

/**
 * Last clause of a rejection, as in `ConnectTimeout: value must be greater than 0s`: the field and the rule that a validation
 * names, or else the last part behind a colon that is a sentence.
 */
export function lastClause(text) {
  const fields = [...text.matchAll(/\w+ValidationError\.([^|()]+)/g)];
  if (fields.length > 0) return fields.at(-1)[1].trim();
  const parts = text.trim().split(': ');
  const at = parts.findLastIndex((part) => /^[A-Za-z]\S*(\s+\S+){2}/.test(part));
  return parts.slice(Math.max(0, at)).join(': ');
}

/** Long versions, each with what tells it from the others: `…12` and `…13` of `2026-03-01/12` and `2026-03-01/13`. */
export function shortVersions(versions) {
  const long = [...new Set(versions)].filter((one) => one.length > 12);
  if (long.length < 2) return new Map();
  const differ = [...long[0]].findIndex((char, at) => long.some((one) => one[at] !== char));
  const shared = differ < 0 ? long[0].length : differ;
  // Numbers and words stay whole.
  const from = long[0].slice(0, shared).search(/\w*$/);
  const rests = long.map((one) => one.slice(from));
  let size = 8;
  while (size < 40 && new Set(rests.map((one) => one.slice(0, size))).size < rests.length) size += 1;
  const short = (rest) => `${from > 0 ? '…' : ''}${rest.length > size + 4 ? `${rest.slice(0, size)}…` : rest}`;
  return new Map(long.map((one, at) => [one, short(rests[at])]));
}

/** Value of `type` in a query: the short name, or the URL of a type that has none. */
export function typeKey({ type, type_url: url }) {
  return type === 'other' ? url : type;
}

/** Address of a view of this page. Parameters without a value are left out. */
export function link(view, parameters = {}) {
  const query = queryOf(parameters);
  return `#/${view}${query === '' ? '' : `?${query}`}`;
}

/** Part of an address behind `?`. */
export function queryOf(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return given.map(([key, value]) => `${encodeURIComponent(key)}=${encodeURIComponent(value)}`).join('&');
}

/** Node group behind the other parameters; empty for that of the relay's own node, which is `null`. `undefined` stands for all. */
export function groupOf(group) {
  return group === undefined ? '' : `&group=${encodeURIComponent(group ?? '')}`;
}

/** View and parameters of the part of an address behind `#`. */
export function route(hash) {
  const [path, query = ''] = hash.replace(/^#?\/?/, '').split(/\?(.*)/s);
  const parameters = Object.create(null);
  for (const [key, value] of new URLSearchParams(query)) parameters[key] ??= value;
  return { path, parameters };
}

/** Argument of a shell command; `null` if it holds anything that a paste could run or hide. */
export function argument(text) {
  if (!/^[\w.:\/@*+=,%#\[\]-]{1,200}$/.test(text)) return null;
  return /^[\w.:\/@+=,%][\w.:\/@+=,%-]*$/.test(text) ? text : text.startsWith('-') ? null : `'${text}'`;
}

/** Command that prints what a view shows; `null` if an argument is not fit for a paste. Options are pairs. */
export function command(words, options = []) {
  const all = [...words, ...options.filter(([, value]) => value).flatMap(([option, value]) => [option, value])];
  const safe = all.map((word) => (/^--[a-z-]+$/.test(word) ? word : argument(String(word))));
  return safe.includes(null) ? null : `deltafan ${safe.join(' ')}`;
}
