// Requests to the relay: one at a time, only while someone looks, slower when answers are slow or missing.

import { fingerprint, parse } from './metrics.js';

/** Time between two polls, and the longest that it may become, in milliseconds. */
const INTERVAL = 2_000;
const LONGEST_INTERVAL = 15_000;
/** A poll may take this part of the time. */
const SHARE = 4;
/** Time for one answer. */
const PATIENCE = 15_000;
/** Time for which a list is taken for unchanged if nothing in the metrics tells of a change. */
const UNCHANGED = 30_000;
/** Time by which an answer may be late before figures are shown as old. */
const LATE = 8_000;

/** Answer that is no success, with the relay's own words. */
export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Asks the relay. The path is relative, so that the page works behind a proxy that adds a prefix. */
async function ask(path, signal, method = 'GET') {
  const within = AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]);
  const answer = await fetch(path, { method, signal: within, cache: 'no-store', redirect: 'error' });
  const text = await answer.text();
  if (!answer.ok) throw new Refusal(answer.status, text.trim());
  return text;
}

const askJson = async (path, signal) => JSON.parse(await ask(path, signal));

/** Answers on which everything rests. */
async function facts(before, signal) {
  const metrics = parse(await ask('metrics', signal));
  if (!metrics.has('deltafan_build_info')) throw new Error('the answer is not that of a relay');
  const upstreams = await askJson('upstreams', signal);
  const status = await askJson('status', signal);
  // The process may be another one.
  const info = before?.info ?? (await askJson('server_info', signal));
  return { metrics, upstreams, status, info, fingerprint: fingerprint(metrics) };
}

/** Words for a failure. */
function words(error) {
  if (error instanceof Refusal) return `it answers ${error.status}: ${error.message.slice(0, 200)}`;
  if (error.name === 'TimeoutError') return `no answer within ${PATIENCE / 1_000} s`;
  return error instanceof TypeError ? 'no connection' : error.message;
}

/**
 * The relay as this page knows it. `changed` is called when there is something new to show; `told` with the newest answers, their
 * time, and whether they follow those before without a pause, a loss or a restart.
 */
export class Relay {
  /** Newest answers; `null` before the first. */
  facts = null;
  /** Time of the newest answers. */
  at = null;
  /** Time of the first failure since then, and its words. */
  lostAt = null;
  error = null;
  isPaused = false;
  interval = INTERVAL;
  /** Whether nothing lies between the newest answers and now but time. */
  #isRow = false;
  /** View in front: `load(ask, facts)` gives its data. */
  #view = null;
  #loaded = null;
  #failures = 0;
  #controller = null;
  #timer = null;
  #changed;
  #told;

  constructor(changed, told) {
    [this.#changed, this.#told] = [changed, told];
    document.addEventListener('visibilitychange', () => this.#wake());
    window.addEventListener('online', () => this.#wake());
  }

  /** Data of the view in front, `{ data | refusal, at }`; `null` before it has come. */
  get loaded() {
    return this.#loaded;
  }

  /** State in one word. */
  get state() {
    if (this.lostAt !== null) return 'lost';
    if (this.isPaused) return 'paused';
    if (this.at === null) return 'connecting';
    return Date.now() - this.at > this.interval + LATE ? 'late' : 'live';
  }

  /** Turns to another view. */
  show(load) {
    this.#view = load;
    this.#loaded = null;
    const isFresh = this.state === 'live' && Date.now() - this.at < INTERVAL;
    // People who read a list that is paused want the next one all the same.
    this.#poll(isFresh);
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this.#stop();
    if (!isPaused) this.#poll(false);
    this.#changed();
  }

  /** Gives an order. Returns the words of a refusal, or `null`. */
  async order(path) {
    try {
      await ask(path, new AbortController().signal, 'POST');
    } catch (error) {
      return error instanceof Refusal ? error.message : words(error);
    }
    if (this.#loaded !== null) this.#loaded.fingerprint = null;
    this.#poll(false);
    return null;
  }

  #wake() {
    if (document.hidden) {
      this.#stop();
    } else if (!this.isPaused) {
      this.#changed();
      this.#poll(false);
    }
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#controller?.abort();
    this.#controller = null;
    this.#isRow = false;
  }

  /** Polls, in the place of a poll that is under way. */
  async #poll(onlyView) {
    clearTimeout(this.#timer);
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    const begun = Date.now();
    try {
      if (!onlyView) await this.#refresh(controller.signal);
      await this.#load(controller.signal);
      if (controller.signal.aborted) return;
      // Not before: what is shown would count as new although it is not.
      if (!onlyView) this.at = Date.now();
      [this.lostAt, this.error, this.#failures] = [null, null, 0];
    } catch (error) {
      if (controller.signal.aborted) return;
      this.#failures += 1;
      this.#isRow = false;
      if (this.#loaded !== null) this.#loaded.fingerprint = null;
      this.lostAt ??= Date.now();
      this.error = words(error);
    }
    this.#schedule(Date.now() - begun);
    this.#changed();
  }

  async #refresh(signal) {
    const before = this.lostAt === null ? this.facts : null;
    let next = await facts(before, signal);
    const isOther = before !== null && hasRestarted(before, next);
    if (isOther) next = await facts(null, signal);
    this.facts = next;
    this.#told(next, Date.now(), this.#isRow && !isOther);
    this.#isRow = true;
    if (this.#loaded === null) this.#changed();
  }

  /** Loads the view, unless nothing has changed. */
  async #load(signal) {
    const [load, known] = [this.#view, this.#loaded];
    const isSame = known?.fingerprint === this.facts.fingerprint && Date.now() - known.at < UNCHANGED;
    if (load === null || isSame) return;
    const loaded = { fingerprint: this.facts.fingerprint, data: null, refusal: null };
    try {
      loaded.data = await load((path) => askJson(path, signal), this.facts);
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      loaded.refusal = refusal;
    }
    if (signal.aborted) return;
    loaded.at = Date.now();
    this.#loaded = loaded;
  }

  #schedule(took) {
    const usual = Math.min(LONGEST_INTERVAL, Math.max(INTERVAL, SHARE * took));
    this.interval = this.#failures === 0 ? usual : Math.min(LONGEST_INTERVAL, INTERVAL * 2 ** (this.#failures - 1));
    if (!this.isPaused && !document.hidden) this.#timer = setTimeout(() => this.#poll(false), this.interval);
  }
}

/** Whether counters began anew. */
function hasRestarted(before, now) {
  const total = (facts) => facts.metrics.get('deltafan_requests_total')?.reduce((sum, one) => sum + one.value, 0) ?? 0;
  return total(now) < total(before);
}
