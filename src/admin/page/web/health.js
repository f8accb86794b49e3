// Findings about the relay: those of `deltafan status` that metrics and /upstreams tell.

import { age, count, link, number } from './format.js';
import { samples, sum } from './metrics.js';

/** Seconds before the expiry of a certificate in which it is worth a note. */
const EXPIRES_SOON = 7 * 86_400;

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

/**
 * Everything that is at fault or worth a note: `{ level, text, href }`. `facts` are the newest answers; `now` is in seconds since 1970.
 */
export function findings(facts, now) {
  const found = [];
  const tell = (level, text, href = null) => found.push({ level, text, href });
  const { metrics, upstreams } = facts;
  const value = (name, labels) => sum(metrics, `deltafan_${name}`, labels) ?? 0;

  if (facts.notReady !== null) tell('fault', `Not ready for clients: ${facts.notReady}`);
  source(upstreams, value, tell);
  for (const { labels, value: stale } of samples(metrics, 'deltafan_group_stale_seconds')) {
    if (stale > 0) tell('fault', `Node group ${labels.group}: resources may be out of date for ${age(stale)}`);
  }
  for (const { rule, refused } of upstreams.groups?.rules ?? []) {
    if (refused > 0) tell('fault', `Node group ${rule}: the control plane's updates of ${count(refused, 'group')} had to be refused`);
  }
  for (const { labels, value: unanswered } of samples(metrics, 'deltafan_groups_unanswered')) {
    if (unanswered === 0) continue;
    const groups = count(unanswered, 'group was', 'groups were');
    tell('note', `Node group ${labels.group}: ${groups} never answered; does the control plane know the nodes?`);
  }
  for (const [type, states] of clientsByType(metrics)) {
    const all = STATES.reduce((total, state) => total + states[state], 0);
    if (states.rejected > 0) {
      const text = `${number(states.rejected)} of ${count(all, 'client')} reject ${type}`;
      tell('fault', text, link('clients', { type, state: 'rejected' }));
    }
    if (states.waiting > 0) {
      const text = `${count(states.waiting, 'client waits', 'clients wait')} for ${type} that the relay does not have`;
      tell('note', text, link('clients', { type, state: 'waiting' }));
    }
    if (states.resuming > 0) {
      const came = count(states.resuming, 'client came back and runs', 'clients came back and run');
      const text = `${came} ${type} that the control plane has not confirmed`;
      tell('note', text, link('clients', { type, state: 'resuming' }));
    }
    if (states.held_back > 0) {
      const kept = `${number(states.held_back)} of ${count(all, 'client is', 'clients are')}`;
      tell('note', `${kept} kept on an earlier state of ${type}`, link('clients', { type, state: 'held_back' }));
    }
  }
  for (const { labels, value: lost } of samples(metrics, 'deltafan_lost_resources')) {
    if (lost === 0) continue;
    const text = `Most ${labels.type} went within a minute: ${count(lost, 'resource')}. If that is a mistake, put them back at the control plane`;
    tell('fault', text, link('history', { type: labels.type }));
  }
  const held = value('rollout_changes', { state: 'held' });
  if (held > 0) tell('fault', `Rollout: ${count(held, 'change is', 'changes are')} held`, link('rollout'));
  const trying = value('rollout_changes', { state: 'trying' }) + value('rollout_changes', { state: 'waiting' });
  if (held === 0 && trying > 0) tell('note', `Rollout: ${count(trying, 'change is', 'changes are')} on trial or waiting`, link('rollout'));
  if (upstreams.snapshot?.error) tell('fault', `Snapshot: ${upstreams.snapshot.error}`);
  if (sum(metrics, 'deltafan_config_last_reload_successful') === 0) {
    tell('fault', 'Configuration: the file is wrong, and the one before it in force; see the log or `deltafan check`');
  } else if (value('config_restart_pending') > 0) {
    tell('note', 'Configuration: changes wait for a restart; the log names their keys');
  }
  certificates(metrics, now, tell);
  limits(metrics, value, tell);
  return found;
}

/** Control planes, or the directory. */
function source(upstreams, value, tell) {
  if (upstreams.servers.length === 0) {
    const failing = value('directory_failing_files');
    if (failing > 0) tell('fault', `Directory: ${count(failing, 'file is', 'files are')} not in force; the log names them`);
    else if (value('upstream_connected') === 0) tell('fault', 'Directory: not read yet');
    return;
  }
  const at = Math.max(0, upstreams.servers.findIndex((server) => server.active));
  const server = upstreams.servers[at];
  const because = server.last_error ? `: ${server.last_error}` : '';
  const stale = upstreams.stale_seconds > 0 ? `; resources may be out of date for ${age(upstreams.stale_seconds)}` : '';
  if (!server.connected) tell('fault', `Control plane ${server.uri} is not connected${because}${stale}`);
  else if (stale !== '') tell('fault', `Control plane ${server.uri} does not answer${stale}`);
  for (const one of upstreams.refused ?? []) {
    tell('fault', `Control plane ${server.uri}: its ${one.type} had to be refused for ${age(one.seconds)}, and what was there before it `
      + `stays in force: ${one.error}`);
  }
  if (server.connected && stale === '' && at > 0) tell('note', `Control plane ${server.uri} is used in the place of ${upstreams.servers[0].uri}`);
  const unanswered = value('upstream_unanswered_subscriptions');
  if (unanswered > 0) tell('note', `Control plane: ${count(unanswered, 'subscription')} without an answer`);
}

function certificates(metrics, now, tell) {
  const all = samples(metrics, 'deltafan_tls_certificate_expiry_seconds');
  const first = [...all].sort((a, b) => a.value - b.value)[0];
  if (first === undefined) return;
  const [left, of] = [first.value - now, `${first.labels.which} of ${first.labels.of}`];
  const refused = samples(metrics, 'deltafan_tls_last_reload_successful').filter((one) => one.value === 0);
  for (const { labels } of refused) {
    tell('fault', `Certificate: the files of ${labels.of} cannot be used, and those before are in force; see the log`);
  }
  if (left <= 0) tell('fault', `Certificate: ${of} has expired ${age(-left)} ago`);
  else if (left < EXPIRES_SOON) tell('note', `Certificate: ${of} expires in ${age(left)}`);
}

/** Limits that were reached since the start. A connection without streams is closed as a matter of course. */
function limits(metrics, value, tell) {
  const reached = samples(metrics, 'deltafan_refused_total')
    .filter((one) => one.value > 0 && one.labels.reason !== 'idle_timeout')
    .map((one) => `${one.labels.reason} ${number(one.value)}`);
  const failures = value('accept_failures_total');
  if (failures > 0) reached.push(`connections that could not be accepted ${number(failures)}`);
  if (reached.length > 0) tell('note', `Limits reached since the start: ${reached.join(', ')}`);
}
