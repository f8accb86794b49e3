// The page: which view is in front, and what is known about the relay.

import { client, clients } from './clients.js';
import { foreign, h, morphChildren, prose, visible } from './dom.js';
import { age, clock, command, link, route } from './format.js';
import { historyOf } from './history.js';
import { nacks } from './nacks.js';
import { overview } from './overview.js';
import { Plot } from './plot.js';
import { Relay } from './relay.js';
import { resources, search } from './resources.js';
import { orderPath, question, rollout } from './rollout.js';
import { Samples } from './samples.js';

const $ = (id) => document.getElementById(id);
const main = $('main');
const samples = new Samples();
const relay = new Relay(render, (facts, at, isNext) => samples.note(facts.metrics, at / 1_000, isNext));

/** View in front, with the parameters of its address. */
let current = null;
let plot = null;
/** Outcome of the newest order, while its view is in front. */
let outcome = null;

/** View of an address, with its parameters; `null` if there is none. */
function viewOf({ path, parameters }) {
  const views = { '': overview, clients, nacks, resources, history: historyOf(parameters), rollout, search: parameters.q ? search : null };
  const [, id] = /^clients\/(\d{1,20})$/.exec(path) ?? [];
  if (id !== undefined) return { view: client, parameters: { ...parameters, id } };
  const view = Object.hasOwn(views, path) ? views[path] : null;
  return view === null ? null : { view, parameters };
}

function navigate() {
  const of = route(location.hash);
  const isFirst = current === null;
  current = viewOf(of);
  [plot, outcome] = [null, null];
  for (const tab of $('views').children) {
    const { path } = route(new URL(tab.href).hash);
    const isIn = path === of.path || (path !== '' && of.path.startsWith(`${path}/`));
    if (isIn) tab.setAttribute('aria-current', 'page');
    else tab.removeAttribute('aria-current');
  }
  $('search-text').value = of.path === 'search' ? of.parameters.q ?? '' : '';
  main.replaceChildren();
  relay.show(current === null ? null : (ask, facts) => current.view.load(current.parameters, ask, facts));
  render();
  window.scrollTo(0, 0);
  // People who came by a link are at its beginning, on a screen reader too.
  if (!isFirst) main.querySelector('h1')?.focus({ preventScroll: true });
}

/** Everything that follows from what is known. */
function render() {
  const { facts, loaded, state } = relay;
  const heading = h('h1', { tabindex: -1 }, current === null ? 'No such view' : current.view.title(current.parameters));
  const told = outcome === null ? [] : [h('p', { class: 'outcome', role: 'status' }, prose(outcome, 600))];
  morphChildren(main, [heading, ...told, ...body(facts, loaded)]);
  main.setAttribute('aria-busy', String(loaded === null && state !== 'lost' && current !== null));
  document.body.classList.toggle('is-old', facts !== null && (state === 'lost' || state === 'late'));
  document.title = title(heading.textContent, facts, state);
  const id = facts?.info.node?.id;
  $('relay').replaceChildren(...(facts === null ? [] : [foreign(id || 'without node ID', 60), ` · ${facts.info.version}`]));
  showCommand();
  showConnection();
  drawPlot();
}

function body(facts, loaded) {
  if (current === null) return [h('p', null, 'There is nothing at this address. ', h('a', { href: link('') }, 'Overview'))];
  const form = current.view.form !== undefined && facts !== null ? [current.view.form(current.parameters, facts)] : [];
  if (loaded === null) return [...form, h('p', { class: 'nothing' }, relay.state === 'lost' ? 'Nothing is known.' : 'Asking the relay…')];
  if (loaded.refusal !== null) return [...form, h('p', { class: 'nothing', role: 'alert' }, prose(refusal(loaded.refusal), 600))];
  const context = {
    facts,
    parameters: current.parameters,
    // Ages grow only with what the relay has told.
    elapsed: Math.max(0, relay.at - loaded.at) / 1_000,
    at: loaded.at,
    now: relay.at / 1_000,
    history: samples,
  };
  return [...form, ...current.view.render(loaded.data, context).flat(2).filter((part) => part instanceof Node)];
}

function refusal({ status, message }) {
  return status >= 500 ? `The relay answered ${status}: ${message}` : message;
}

function title(view, facts, state) {
  const faults = facts?.status.checks.filter(({ state }) => state === 'FAULT').length ?? 0;
  const mark = state === 'lost' || state === 'late' ? '(?) ' : faults > 0 ? `(${faults}) ` : '';
  const name = facts === null ? 'deltafan' : `deltafan ${visible(facts.info.node?.id ?? '').slice(0, 60)}`;
  return `${mark}${view} · ${name.trim()}`;
}

/** The command that prints the same. */
function showCommand() {
  const words = current?.view.command(current.parameters);
  const text = words ? command(...words) : null;
  $('command').replaceChildren(...(text === null ? [] : ['On the command line: ', h('code', null, text)]));
}

const WORDS = { connecting: 'Connecting', live: 'Live', late: 'No answer', lost: 'Unreachable', paused: 'Paused' };

/** Changes a text only if it is another, as screen readers say what changes. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function showConnection() {
  const { at, lostAt, error, state } = relay;
  const now = Date.now();
  $('connection').className = `is-${state}`;
  say($('connection-state'), WORDS[state]);
  say($('connection-age'), at === null ? '' : state === 'live' ? `${age((now - at) / 1_000)} ago` : `since ${clock(lostAt ?? at)}`);
  const figures = at === null ? 'Nothing was heard of it yet.' : `The figures below are of ${clock(at)} and may be wrong by now.`;
  const told = {
    lost: `The relay is unreachable since ${clock(lostAt ?? 0)}: ${visible(error ?? '')}. ${figures}`,
    late: `The relay has not answered since ${clock(at ?? 0)}. ${figures}`,
    paused: at === null ? '' : `Paused. The figures below are of ${clock(at)}.`,
  }[state] ?? '';
  $('lost').hidden = told === '';
  $('lost').className = `is-${state}`;
  say($('lost'), told);
}

function drawPlot() {
  const box = document.getElementById('plot');
  if (box === null) return;
  plot ??= new Plot(box, (text) => say($('readout'), text ?? ''));
  const now = Date.now() / 1_000;
  if (relay.state === 'lost') samples.gap(now);
  plot.update(samples.columns(), relay.isPaused ? relay.at / 1_000 : now);
}

/** Gives an order to the relay, after a question. */
async function give(order, fields) {
  if (!window.confirm(question(order, fields))) return;
  const of = current;
  const refusal = await relay.order(orderPath(order, fields));
  if (current !== of) return;
  outcome = refusal === null ? `The relay follows: ${order}` : `The relay does not follow: ${refusal}`;
  render();
}

/** Sends a form to an address of this page, or as an order to the relay. */
function submit(event) {
  const form = event.target;
  if (form.dataset.order !== undefined) {
    event.preventDefault();
    void give(event.submitter.value, Object.fromEntries(new FormData(form)));
    return;
  }
  const view = form.id === 'search' ? 'search' : form.dataset.view;
  if (view === undefined) return;
  event.preventDefault();
  const fields = [...new FormData(form)].map(([name, value]) => [name, value.trim()]);
  if (view === 'search' && fields[0][1] === '') return;
  location.hash = link(view, Object.fromEntries(fields));
}

$('pause').addEventListener('click', () => {
  relay.pause(!relay.isPaused);
  $('pause').textContent = relay.isPaused ? 'Resume' : 'Pause';
});
document.addEventListener('submit', submit);
document.querySelector('[data-skip]').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener('hashchange', navigate);
setInterval(() => {
  if (document.hidden) return;
  document.body.classList.toggle('is-old', relay.facts !== null && (relay.state === 'lost' || relay.state === 'late'));
  showConnection();
}, 1_000);
navigate();
