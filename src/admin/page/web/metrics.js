// Text format of Prometheus, as far as the relay writes it, and quantiles of its histograms.

const LINE = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;

/** Reads metrics: samples by name. */
export function parse(text) {
  const metrics = new Map();
  for (const line of text.split('\n')) {
    const found = LINE.exec(line);
    if (found === null) continue;
    const labels = Object.create(null);
    for (const [, key, value] of (found[2] ?? '').matchAll(LABEL)) {
      labels[key] = value.replace(/\\(.)/g, (_, escaped) => (escaped === 'n' ? '\n' : escaped));
    }
    if (!metrics.has(found[1])) metrics.set(found[1], []);
    metrics.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  return metrics;
}

/** Samples of a metric. */
export function samples(metrics, name) {
  return metrics.get(name) ?? [];
}

/** Sum of the samples of a metric that have these labels; `null` if there is none. */
export function sum(metrics, name, labels = {}) {
  const wanted = Object.entries(labels);
  const found = samples(metrics, name).filter((one) => wanted.every(([key, value]) => one.labels[key] === value));
  return found.length === 0 ? null : found.reduce((total, one) => total + one.value, 0);
}

/** Histogram over all of its labels: upper bounds, the last of them infinite, and counts that are not cumulative. */
export function histogram(metrics, name) {
  const cumulative = new Map();
  for (const { labels, value } of samples(metrics, `${name}_bucket`)) {
    const bound = labels.le === '+Inf' ? Infinity : Number(labels.le);
    cumulative.set(bound, (cumulative.get(bound) ?? 0) + value);
  }
  const bounds = [...cumulative.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound, at) => cumulative.get(bound) - (at === 0 ? 0 : cumulative.get(bounds[at - 1])));
  return { bounds, counts };
}

/** Events between two states of a histogram; `null` if it began anew in between. */
export function between(before, now) {
  if (before.bounds.length === 0) return now;
  if (before.bounds.length !== now.bounds.length) return null;
  const counts = now.counts.map((value, at) => value - before.counts[at]);
  return counts.some((value) => value < 0) ? null : { bounds: now.bounds, counts };
}

/** Sum of histograms with the same bounds. */
export function merge(all) {
  const filled = all.filter(({ bounds }) => bounds.length > 0);
  if (filled.length === 0) return { bounds: [], counts: [] };
  const counts = filled[0].bounds.map((_, at) => filled.reduce((total, one) => total + (one.counts[at] ?? 0), 0));
  return { bounds: filled[0].bounds, counts };
}

/** Number of events. */
export function total({ counts }) {
  return counts.reduce((all, one) => all + one, 0);
}

/**
 * Quantile as Prometheus estimates it: events are taken to be spread evenly over their bucket. Beyond the last bound it is that
 * bound. `null` without events.
 */
export function quantile(share, { bounds, counts }) {
  const all = counts.reduce((sum, one) => sum + one, 0);
  if (all === 0) return null;
  const rank = share * all;
  let below = 0;
  for (const [at, inside] of counts.entries()) {
    if (inside > 0 && below + inside >= rank) {
      const lower = at === 0 ? 0 : bounds[at - 1];
      return bounds[at] === Infinity ? lower : lower + ((bounds[at] - lower) * (rank - below)) / inside;
    }
    below += inside;
  }
  return null;
}

/** Metrics that change whenever a client, a resource or a rejection does. */
const TELLING = [
  'deltafan_clients', 'deltafan_streams', 'deltafan_streams_ended_total', 'deltafan_requests_total', 'deltafan_responses_total',
  'deltafan_polls_total', 'deltafan_held_polls', 'deltafan_generation', 'deltafan_rollout_changes', 'deltafan_rollouts_total',
  'deltafan_groups',
];

/** Text that stays the same while nothing changes of which a list of the relay would tell. */
export function fingerprint(metrics) {
  // The relay gives them in any order.
  const of = (name) => samples(metrics, name).map(({ labels, value }) => `${name} ${JSON.stringify(labels)} ${value}`);
  return TELLING.flatMap(of).sort().join('\n');
}

/** States of a client, the first that counts first. */
export const STATES = ['rejected', 'waiting', 'unacked', 'behind', 'resuming', 'held_back', 'synced'];

/** Types in the order in which clients are sent them; others come behind. */
const ORDER = ['cds', 'eds', 'leds', 'lds', 'srds', 'rds', 'vhds', 'sds', 'ecds', 'rtds', 'other'];

/** Types in their order. */
export function inOrder(types) {
  const place = (type) => (ORDER.includes(type) ? ORDER.indexOf(type) : ORDER.length);
  return [...types].sort((a, b) => place(a) - place(b));
}

/** Clients of each type in each state, without types of which there are none. */
export function clientsByType(metrics) {
  const types = new Map();
  for (const { labels, value } of samples(metrics, 'deltafan_clients')) {
    if (!types.has(labels.type)) types.set(labels.type, Object.fromEntries(STATES.map((state) => [state, 0])));
    types.get(labels.type)[labels.state] = value;
  }
  const used = inOrder(types.keys()).filter((type) => STATES.some((state) => types.get(type)[state] > 0));
  return new Map(used.map((type) => [type, types.get(type)]));
}
