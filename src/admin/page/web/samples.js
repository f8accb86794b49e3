// Propagation over the last minutes, kept by this page while it is open.

import { between, histogram, merge, quantile, total } from './metrics.js';

/** Time that is kept, in seconds. */
export const KEPT = 600;
/** Longest time between two polls that one point may stand for, in seconds. */
const LONGEST = 40;

/** Points, each of which stands for the time between two polls. */
export class Samples {
  /** `{ at, since, histogram }`, in seconds since 1970; the histogram is `null` where it is not known. */
  points = [];
  #last = null;

  /** Notes metrics of this moment. `isNext` says that the poll before was the last one, without a pause or a loss. */
  note(metrics, now, isNext) {
    const current = histogram(metrics, 'deltafan_propagation_seconds');
    const last = this.#last;
    this.#last = { at: now, histogram: current };
    const since = last?.at ?? now;
    const told = isNext && last !== null && now - since <= LONGEST ? between(last.histogram, current) : null;
    this.points.push({ at: now, since, histogram: told });
    const first = this.points.findIndex((point) => point.at >= now - KEPT);
    this.points.splice(0, first);
  }

  /** Notes a moment of which nothing is known: the line breaks there. */
  gap(now) {
    if (this.points.at(-1)?.histogram) this.points.push({ at: now, since: now, histogram: null });
  }

  /** Deliveries, quantiles and the seconds that are known, between two moments. */
  summary(from, to) {
    const inside = this.points.filter((point) => point.at > from && point.at <= to && point.histogram !== null);
    const all = merge(inside.map((point) => point.histogram));
    return {
      known: inside.reduce((sum, point) => sum + point.at - point.since, 0),
      deliveries: total(all),
      p50: quantile(0.5, all),
      p99: quantile(0.99, all),
    };
  }

  /** Columns of the plot: times, medians, 99th percentiles, deliveries per second. */
  columns() {
    const of = (point, figure) => (point.histogram === null ? null : figure(point));
    const rate = (point) => total(point.histogram) / Math.max(0.1, point.at - point.since);
    return [
      this.points.map((point) => point.at),
      this.points.map((point) => of(point, ({ histogram: of }) => quantile(0.5, of))),
      this.points.map((point) => of(point, ({ histogram: of }) => quantile(0.99, of))),
      this.points.map((point) => of(point, rate)),
    ];
  }
}
