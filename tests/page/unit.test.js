// Parts of the page that need no browser.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { age, argument, bytes, command, count, delay, lastClause, link, number, route, shortVersions, version } from './out/web/format.js';
import { bySecond, lastAt } from './out/web/history.js';
import { between, clientsByType, fingerprint, histogram, merge, parse, quantile, sum, total } from './out/web/metrics.js';
import { changesOf, orderPath, question, situation } from './out/web/rollout.js';
import { Samples } from './out/web/samples.js';

test('numbers are written for people', () => {
  assert.deepEqual([0, 999, 1_000, 10_000, 1_234_567.5, NaN].map(number), ['0', '999', '1,000', '10,000', '1,234,567.5', 'unknown']);
  assert.deepEqual([count(1, 'client'), count(2, 'client'), count(0, 'delivery', 'deliveries')], ['1 client', '2 clients', '0 deliveries']);
  assert.deepEqual([0, 0.9, 61, 3_600, 7_265, 180_000, null].map(age), ['0 s', '0 s', '1 min 1 s', '1 h', '2 h 1 min', '2 d 2 h', 'unknown']);
  assert.deepEqual([0.00012, 0.0042, 0.25, 2.5, 15].map(delay), ['120 µs', '4.2 ms', '250 ms', '2.5 s', '15 s']);
  assert.deepEqual([68, 1_536, 3 << 20].map(bytes), ['68 B', '1.5 KiB', '3 MiB']);
  assert.equal(version({ version: '', generation: 7 }), '#7');
});

test('an address leads back to its view and parameters', () => {
  for (const name of ['backend', 'a&b=c#d?e', '<img src=x>', 'ä/%41 *', '']) {
    const { path, parameters } = route(link('history', { type: 'cds', name }));
    assert.equal(path, 'history');
    assert.deepEqual({ ...parameters }, name === '' ? { type: 'cds' } : { type: 'cds', name });
  }
  assert.deepEqual(route('#/'), { path: '', parameters: Object.create(null) });
  assert.deepEqual(route(''), { path: '', parameters: Object.create(null) });
  assert.equal(route('#/clients?__proto__=a').parameters.constructor, undefined);
});

test('a rejection begins with its last clause', () => {
  const proto = 'Proto constraint validation failed (ClusterValidationError.ConnectTimeout: value must be greater than 0s)';
  for (const [text, clause] of [
    [`Error adding/updating cluster(s) web: ${proto}: name: "web"\nconnect_timeout {\n}\n`, 'ConnectTimeout: value must be greater than 0s'],
    [`${proto.replace('(', '(BootstrapValidationError.Clusters[0]: embedded message failed validation | caused by ')}: x {}`,
      'ConnectTimeout: value must be greater than 0s'],
    ['Error adding/updating cluster(s) a: didn\'t find a registered implementation for name: \'x.y\'',
      'didn\'t find a registered implementation for name: \'x.y\''],
    ['no such cluster', 'no such cluster'], ['a: b', 'a: b'], ['', ''],
  ]) assert.equal(lastClause(text), clause);
});

test('the state of the rollout guard is told in a sentence', () => {
  const of = (more) => situation({ unanswered: 0, held_seconds: null, reason: null, ...more }, 2);
  assert.equal(of({ phase: 'trying', step: 1, seconds_left: 14, unanswered: 2 }),
    'Step 1 of a trial ends in 12 s. No canary has answered, for 2 trials.');
  const held = { phase: 'held', reason: 'rejected', held_seconds: 60, searching: true };
  assert.equal(of(held), 'Held for 1 min 2 s: canaries rejected changes. The relay looks for the bad ones.');
  assert.equal(of({ phase: 'held' }), 'Held by an order.');
});

test('changes are listed with their state and the version of all clients', () => {
  const resource = (name, version, newest, parameters) => ({ type_url: 'C', name, group: null, version, newest, ...(parameters && { parameters }) });
  const resources = [
    resource('bad', '1', '2'), resource('given-up', '1', '3'), resource('new', null, '2'), { ...resource('bad', '9', '9'), group: 'edge' },
    resource('split', '4', '5', ['a=1']), resource('split', '6', '7', ['a=2']),
  ];
  const group = {
    group: null, phase: 'trying', waiting: 0,
    held: [{ type_url: 'C', name: 'bad', version: '2', parameters: null, texts: [] }, { type_url: 'C', name: 'split', version: '7', parameters: 'a=2', texts: [] }],
    orders: [{ order: 'discard', type_url: 'C', name: 'given-up', parameters: null }],
  };
  assert.deepEqual(changesOf(group, resources).map(({ name, word, good, newest }) => [name, word, good, newest]), [
    ['bad', 'held', '1', '2'], ['split', 'held', '6', '7'], ['given-up', 'discarded', '1', '3'], ['new', 'on trial', null, '2'],
    ['split', 'on trial', '4', '5'],
  ]);
});

test('an order names its group and is asked for in words', () => {
  assert.equal(orderPath('hold', { type: '', group: '', by: '' }), 'rollout/hold?&group=');
  assert.equal(orderPath('restore', { type: 'cds', name: 'a&b', version: '7', group: 'e/u' }), 'rollout/restore?type=cds&name=a%26b&version=7&group=e%2Fu');
  assert.match(question('discard', { type: '', group: '' }), /^Discard the held changes of all guarded types\?.*\nClients of the relay’s own node$/);
  assert.match(question('restore', { type: 'cds', name: 'a\u202eb', version: '7', group: 'eu' }), /^Restore cds a\\u\{202e\}b to version 7\?.*\nNode group: eu$/);
});

test('long versions are shortened to what tells them apart', () => {
  const short = (...all) => [...shortVersions(all).values()];
  assert.deepEqual(short('17', '18', 'a-version-of-one'), []);
  assert.deepEqual(short('2026-03-01T14:02:11Z/12', '2026-03-01T14:02:11Z/137', '7'), ['…12', '…137']);
  const hash = (start) => start.padEnd(64, '0123456789abcdef');
  assert.deepEqual(short(hash('a1'), hash('b2'), hash('b2')), ['a1012345…', 'b2012345…']);
  assert.deepEqual(short(hash('a1'), hash('a10123456f')), ['a101234567…', 'a10123456f…']);
  assert.deepEqual(short('a-long-version', 'a-long-version-2'), ['…version', '…version-2']);
});

test('changes are grouped by second', () => {
  const change = (time, type, event) => ({ time, type, event });
  const all = [change('t2', 'rds', 'removed'), ...Array(300).fill(change('t1', 'cds', 'changed')), change('t1', 'rds', 'changed'), change('t1', 'rds', 'added')];
  assert.deepEqual(bySecond(all).map(({ time, changes, words }) => [time, changes.length, words]), [
    ['t2', 1, 'rds 1 removed'], ['t1', 302, 'cds 300 changed, rds 1, rds 1 added'],
  ]);
});

test('a command that is pasted runs nothing else', () => {
  assert.equal(command(['clients'], [['--type', 'cds'], ['--node', 'edge-*'], ['--state', undefined]]), "deltafan clients --type cds --node 'edge-*'");
  for (const name of ['a; rm -rf /', "a'b", '$(id)', '`id`', 'a\nb', '--admin=http://evil', '-o', 'a b', 'ä', '', 'a\u202eb']) {
    assert.equal(argument(name), null, name);
    assert.equal(command(['history', 'cds', name]), null, name);
  }
});

test('the last time that it was 14:02 is today or yesterday', () => {
  const now = Date.UTC(2026, 2, 1, 14, 5);
  assert.equal(lastAt('14:02', now), Date.UTC(2026, 2, 1, 14, 2));
  assert.equal(lastAt('14:06', now), Date.UTC(2026, 1, 28, 14, 6));
  assert.deepEqual([lastAt('24:00', now), lastAt('x', now)], [null, null]);
});

const TEXT = `# HELP a b
deltafan_propagation_seconds_bucket{type="cds",transport="delta",le="0.001"} 4
deltafan_propagation_seconds_bucket{type="cds",transport="delta",le="0.01"} 10
deltafan_propagation_seconds_bucket{type="cds",transport="delta",le="+Inf"} 10
deltafan_propagation_seconds_bucket{type="eds",transport="delta",le="0.001"} 0
deltafan_propagation_seconds_bucket{type="eds",transport="delta",le="0.01"} 0
deltafan_propagation_seconds_bucket{type="eds",transport="delta",le="+Inf"} 2
deltafan_clients{type="cds",state="synced"} 3
deltafan_clients{type="cds",state="rejected"} 1
deltafan_clients{type="eds",state="synced"} 0
deltafan_group_stale_seconds{group="a \\"b\\\\"} 0
`;

test('metrics are read, and quantiles estimated as Prometheus does', () => {
  const metrics = parse(TEXT);
  assert.equal(metrics.get('deltafan_group_stale_seconds')[0].labels.group, 'a "b\\');
  assert.equal(sum(metrics, 'deltafan_clients', { type: 'cds' }), 4);
  assert.equal(sum(metrics, 'missing'), null);
  const all = histogram(metrics, 'deltafan_propagation_seconds');
  assert.deepEqual(all, { bounds: [0.001, 0.01, Infinity], counts: [4, 6, 2] });
  assert.equal(total(all), 12);
  assert.ok(Math.abs(quantile(0.5, all) - (0.001 + 0.009 * (2 / 6))) < 1e-9);
  assert.equal(quantile(0.99, all), 0.01, 'beyond the last bound it is that bound');
  assert.equal(quantile(0.5, { bounds: [], counts: [] }), null);
  assert.equal(quantile(0.5, between(all, all)), null, 'nothing happened');
  const less = { bounds: all.bounds, counts: [3, 6, 2] };
  assert.deepEqual(between(less, all).counts, [1, 0, 0]);
  assert.equal(between(all, less), null, 'the relay began anew');
  assert.deepEqual(merge([all, { bounds: [], counts: [] }, less]).counts, [7, 12, 4]);
  const later = parse(TEXT.replace('state="rejected"} 1', 'state="rejected"} 2'));
  assert.notEqual(fingerprint(metrics), fingerprint(later));
  const reordered = parse(TEXT.trim().split('\n').reverse().join('\n'));
  assert.equal(fingerprint(metrics), fingerprint(reordered), 'the relay gives metrics in any order');
});

test('types that nobody asks for are left out', () => {
  assert.deepEqual([...clientsByType(parse(TEXT)).keys()], ['cds']);
});

test('a plot has gaps where nothing is known', () => {
  const state = (count) => parse(TEXT.replace('le="0.01"} 10', `le="0.01"} ${count}`).replace('delta",le="+Inf"} 10', `delta",le="+Inf"} ${count}`));
  const samples = new Samples();
  samples.note(state(10), 1_000, false);
  assert.deepEqual(samples.columns()[1], [null], 'the first poll is only a beginning');
  samples.note(state(30), 1_002, true);
  samples.gap(1_003);
  samples.gap(1_004);
  samples.note(state(50), 1_010, false);
  samples.note(state(50), 1_012, true);
  const [times, medians, , rates] = samples.columns();
  assert.deepEqual(times, [1_000, 1_002, 1_003, 1_010, 1_012]);
  assert.deepEqual(medians.map((of) => of !== null), [false, true, false, false, false]);
  assert.deepEqual(rates, [null, 10, null, null, 0]);
  const minute = samples.summary(960, 1_020);
  assert.deepEqual([minute.deliveries, minute.known], [20, 4]);
  samples.note(state(20), 1_014, true);
  assert.equal(samples.columns()[1].at(-1), null, 'the relay restarted');
  samples.note(state(21), 1_700, true);
  assert.equal(samples.points.length, 1, 'ten minutes are kept');
});
