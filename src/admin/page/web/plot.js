// The plot of propagation. uPlot draws; its colours come from the style sheet.

/* global uPlot */

import { clock, delay, number } from './format.js';
import { KEPT } from './samples.js';

const HEIGHT = 190;
/** Least range of time, in seconds. */
const LEAST_RANGE = 120;
/** Bounds of the relay's histogram: values beyond them are drawn at the edge. */
const [LEAST, MOST] = [0.0001, 15];

/** Plot in a box, which it fills. `readout` is told the values under the pointer, or `null`. */
export class Plot {
  #box;
  #readout;
  #plot = null;
  #columns = [[], [], [], []];
  #range = [0, 1];

  constructor(box, readout) {
    [this.#box, this.#readout] = [box, readout];
    new ResizeObserver(() => this.#resize()).observe(box);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
      this.#plot?.destroy();
      this.#plot = null;
      this.#draw();
    });
  }

  update(columns, now) {
    const clamped = (value) => (value === null ? null : Math.min(MOST, Math.max(LEAST, value)));
    this.#columns = [columns[0], columns[1].map(clamped), columns[2].map(clamped), columns[3]];
    const first = columns[0][0] ?? now;
    this.#range = [Math.max(now - KEPT, Math.min(first, now - LEAST_RANGE)), now];
    this.#draw();
  }

  #resize() {
    const width = this.#box.clientWidth;
    if (this.#plot !== null && width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
  }

  #draw() {
    if (this.#box.clientWidth === 0) return;
    this.#plot ??= new uPlot(this.#options(), this.#columns, this.#box);
    this.#plot.setData(this.#columns);
  }

  #options() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const font = `12px ${style.fontFamily}`;
    const axis = (more) => ({ stroke: colour('quiet'), font, ticks: { stroke: colour('line') }, grid: { stroke: colour('line') }, ...more });
    const line = (label, name, more) => ({
      label, stroke: colour(name), width: 2, spanGaps: false, points: { show: true, size: 5, fill: colour(name) }, ...more,
    });
    return {
      width: this.#box.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1_000), 'UTC'),
      scales: {
        x: { range: () => this.#range },
        y: { distr: 3, range: (_, least, most) => decades(least, most) },
        rate: { range: (_, __, most) => [0, Math.max(1, most ?? 0) * 3] },
      },
      series: [
        {},
        line('p50', 'plot-p50'),
        line('p99', 'plot-p99', { dash: [6, 3] }),
        { label: 'deliveries/s', scale: 'rate', fill: colour('plot-rate'), width: 0, points: { show: false },
          paths: uPlot.paths.bars({ size: [0.8, 12], align: -1 }) },
      ],
      axes: [
        axis({ values: (_, ticks) => ticks.map((tick) => this.#timeOf(tick)), space: 80 }),
        axis({ scale: 'y', size: 62, filter: wholeDecades,
          grid: { stroke: colour('line'), filter: wholeDecades }, ticks: { stroke: colour('line'), filter: wholeDecades },
          values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : delay(tick))) }),
      ],
      hooks: { setCursor: [(plot) => this.#tell(plot.cursor.idx)] },
    };
  }

  /** Time of a tick, with seconds where these tell it from the next one. */
  #timeOf(seconds) {
    const time = clock(seconds * 1_000);
    return this.#range[1] - this.#range[0] > KEPT / 2 ? time.slice(0, 5) : time;
  }

  #tell(at) {
    if (at === null || at === undefined) {
      this.#readout(null);
      return;
    }
    const [times, medians, high, rates] = this.#columns.map((column) => column[at]);
    const figures = rates === null ? 'not known' : rates === 0 ? 'nothing delivered'
      : `p50 ${delay(medians)}, p99 ${delay(high)}, ${number(Math.round(rates))} deliveries/s`;
    this.#readout(`${clock(times * 1_000)}: ${figures}`);
  }
}

/** Ticks at powers of ten. */
function wholeDecades(_, ticks) {
  return ticks.map((tick) => (Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-6 ? tick : null));
}

/** Whole decades around all values, three at least. */
function decades(least, most) {
  const high = Math.ceil(Math.log10(most ?? 0.1) - 1e-9);
  const low = Math.floor(Math.log10(least ?? LEAST) + 1e-9);
  const bottom = Math.max(Math.log10(LEAST), Math.min(low, high - 3));
  return [10 ** bottom, Math.min(MOST, 10 ** Math.max(high, bottom + 3))];
}
