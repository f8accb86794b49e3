// The page of the admin address in Chromium, before a relay with 10,000 clients.
//
// The tests run in their order on one scene. DELTAFAN and CHROMIUM name other programs than the usual ones, PICTURES a folder for
// pictures of the views.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';

import { HOSTILE, Scene } from './scene.js';
import { Browser, RelayProcess, sleep, until } from './world.js';
import { ControlPlane, Fleet, field } from './xds.js';

const { PICTURES } = process.env;
const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const PHONE = { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true };

let scene;
let browser;

before(async () => {
  scene = await Scene.start();
  browser = await Browser.start();
});

after(async () => {
  await browser?.end();
  await scene?.end();
});

/** Opens a view, and waits until the relay has answered for it. */
async function open(view = '', options = {}) {
  const page = await browser.open(`${scene.relay.uri}/#/${view}`, options);
  await answered(page);
  return page;
}

const answered = (page) => page.waitForFunction(() => document.getElementById('main').getAttribute('aria-busy') === 'false');

/** Closes a page on which nothing went wrong. */
async function close(page) {
  assert.deepEqual(page.faults, []);
  assert.equal(await page.evaluate(() => window.harm), undefined, 'a text of a peer was run');
  assert.equal(await page.locator('main img, main script').count(), 0, 'a text of a peer became an element');
  await page.context().close();
}

const text = (page, of = 'main') => page.locator(of).innerText();

async function picture(page, name) {
  if (PICTURES) await page.screenshot({ path: path.resolve(PICTURES, `${name}.png`) });
}

/** Waits for a text in an element. */
async function see(page, of, words) {
  await page.locator(of).filter({ hasText: words }).first().waitFor();
}

const VIEWS = [
  '', 'clients', 'clients?type=cds', 'clients?type=cds&state=rejected', 'clients/1', 'resources', 'nacks', 'history',
  'history?type=cds&name=backend', 'rollout', 'search?q=back', 'clients?node=nobody', 'history?type=cds&name=nothing', 'nowhere',
];

test('a fleet that is well is shown as such', async () => {
  const page = await open();
  await see(page, '.verdict', 'All is well');
  assert.deepEqual(await scene.relay.faults(), [], 'the command says so too');
  const shown = await text(page);
  assert.match(shown, /Clients\s+10,000 streams and held polls/);
  assert.match(shown, /connected delta http:\/\/127\.0\.0\.1:\d+/);
  assert.match(shown, /No client has rejected anything since the relay started/);
  assert.match(await page.title(), /^Overview · deltafan relay-eu-1$/);
  await close(page);
});

test('the page is small, comes once, and asks nobody else', async () => {
  browser.requests.length = 0;
  const page = await open();
  const weight = await page.evaluate(() => performance.getEntries()
    .filter(({ entryType, name }) => entryType === 'navigation' || name.includes('/page/'))
    .reduce((sum, { decodedBodySize }) => sum + decodedBodySize, 0));
  assert.ok(weight > 50_000 && weight < 165_000, `${weight} bytes`);
  console.log(`weight of the page: ${weight} bytes`);
  const files = browser.requests.filter((url) => url.includes('/page/')).length;
  assert.ok(files > 10 && files < 30, `${files} files`);
  for (const view of VIEWS.slice(1)) {
    await page.goto(`${scene.relay.uri}/#/${view}`);
    await answered(page);
  }
  const others = browser.requests.filter((url) => !url.startsWith(`${scene.relay.uri}/`) && url !== 'about:blank');
  assert.deepEqual(others, []);
  await close(page);
});

test('a change that some reject is seen without a reload', async () => {
  const page = await open();
  await page.locator('#plot canvas').waitFor();
  await until('a second poll', async () => (await text(page, 'section[aria-labelledby=latency]')).includes('nothing has changed'));
  await scene.change();
  await see(page, '.verdict', '1 fault');
  await see(page, '.verdict', 'cds by 4 of 10000 clients');
  await see(page, '.figures', /p99[0-9.]+ (µs|ms|s)/);
  await see(page, '#changes ~ table', '18');
  assert.match(await page.title(), /^\(1\) Overview/);
  assert.deepEqual(await scene.relay.faults(), ['rejections'], 'the command says so too');
  const shown = await text(page);
  assert.match(shown, /synced\s+9,996/);
  assert.match(shown, /didn't find a registered implementation/);
  assert.ok(shown.includes(HOSTILE.text), 'the text of the rejection is there as it is');
  assert.ok(shown.includes(HOSTILE.name), 'the name of the resource is there as it is');
  await page.locator('.propagation summary').click();
  const table = await text(page, '.propagation table');
  assert.match(table, /\d+:\d\d:\d\d to \d+:\d\d:\d\d/);
  await close(page);
});

test('each of the five questions is one click away from the overview', async () => {
  const page = await open();
  const back = async () => {
    await page.goto(`${scene.relay.uri}/#/`);
    await see(page, '.verdict', 'cds by 4 of 10000 clients');
  };
  await see(page, '.verdict', 'cds by 4 of 10000 clients');

  // Is everyone on the new version?
  await page.locator('#types ~ table tr[data-key=cds] a', { hasText: '10,000' }).click();
  await see(page, 'main', '50 of 10,000 clients that match');
  await see(page, '.states', '9,996');
  assert.match(await text(page, 'main table tbody tr:first-child'), /synced\s+18\s+18/);

  await back();
  // Who is not, and why?
  await page.getByRole('link', { name: 'rejections', exact: true }).click();
  await see(page, 'main', '4 of 4 clients that match');
  assert.match(await text(page, 'main table'), /rejected\s+18\s+17[^]*no registered|didn't find/);
  await see(page, 'footer', 'deltafan clients --type cds --state rejected');

  await back();
  // What changed?
  await page.getByRole('link', { name: 'Newest changes' }).click();
  await see(page, 'main table', 'backend');
  const now = new Date().toISOString().slice(11, 16);
  await page.getByLabel('Around (UTC').fill(now);
  await page.getByRole('button', { name: 'Apply' }).click();
  await see(page, '.told', /change.* from .* to /);

  await back();
  // Which clients use a cluster?
  await page.locator('#changes ~ table').getByRole('link', { name: 'backend', exact: true }).first().click();
  await see(page, 'main', 'have it, 4 reject it');
  assert.match(await text(page, '.diff'), /-\s+"connectTimeout": "1s",\s*\n\+\s+"connectTimeout": "2s",/);
  await page.getByRole('link', { name: 'Clients that ask for it' }).click();
  await see(page, 'main', '50 of 10,000 clients that match');

  await back();
  // Is the control plane back? The first card says it.
  assert.match(await text(page, 'section[aria-labelledby=source]'), /connected[^]*Last answer\s+[\d a-z]+ ago\s+Out of date\s+no/);
  await close(page);
});

test('no more than a page of clients is asked for and shown', async () => {
  browser.requests.length = 0;
  const page = await open('clients');
  const ids = () => page.locator('main table tbody tr').evaluateAll((rows) => rows.map((row) => row.dataset.key));
  const first = await ids();
  assert.equal(first.length, 50);
  await page.getByRole('link', { name: 'Next page' }).first().click();
  await until('the second page', async () => (await ids())[0] === '51');
  await page.getByRole('link', { name: 'Next page' }).first().click();
  await until('the third page', async () => (await ids())[0] === '101');
  await page.getByRole('link', { name: 'Previous page' }).first().click();
  await until('the second page again', async () => (await ids())[0] === '51');
  await page.getByRole('link', { name: 'First page' }).first().click();
  await until('the first page again', async () => (await ids())[0] === '1');
  await page.getByLabel('Node ID, *').fill('edge-us-canary-*');
  await page.getByRole('button', { name: 'Apply' }).click();
  await see(page, 'main', '1 of 1 client that matches');
  assert.match(page.url(), /#\/clients\?node=edge-us-canary-\*$|%2A/);
  const lists = browser.requests.filter((url) => /\/(clients|resources|nacks)\?/.test(url));
  assert.ok(lists.length > 5 && lists.every((url) => /limit=(0|6|20|50)\b/.test(url)), lists.join('\n'));
  await close(page);
});

test('one box finds clients and resources', async () => {
  const page = await open();
  await page.getByRole('searchbox').fill('canary');
  await page.keyboard.press('Enter');
  await see(page, 'main', '3 clients');
  await see(page, 'main', '0 resources');
  await page.getByRole('searchbox').fill('back');
  await page.keyboard.press('Enter');
  await see(page, 'main', '2 resources');
  await page.locator('main').getByRole('link', { name: 'backend' }).first().click();
  await see(page, 'h1', 'cds backend');
  await close(page);
});

test('a client is shown with what it holds', async () => {
  const page = await open('clients/1');
  const shown = await text(page);
  assert.match(shown, /Node ID\s+edge-eu-00000/);
  assert.match(shown, /Names of eds: 20/);
  await page.locator('details').filter({ hasText: 'Names of eds' }).getByRole('link', { name: 'checkout' }).click();
  await see(page, 'h1', 'eds checkout');
  await page.goto(`${scene.relay.uri}/#/clients/999999`);
  await see(page, 'main', 'no such client');
  await close(page);
});

test('names and texts of attackers stay text', async () => {
  const { clients } = await scene.relay.json(`/clients?state=rejected&node=${encodeURIComponent('<script>*')}`);
  assert.equal(clients[0].node.id, HOSTILE.node);
  const name = encodeURIComponent(HOSTILE.name);
  const views = [
    `clients/${clients[0].id}`, 'clients?state=rejected', 'nacks', 'resources?name=%3C*', `history?type=cds&name=${name}`,
    `search?q=${encodeURIComponent('<')}`, `clients?asks_for=${name}&node=${name}`, `clients?state=${name}`, `${name}`, `history?at=${name}`,
    `history?type=${name}&name=${name}`,
  ];
  for (const view of views) {
    const page = await open(view);
    const shown = await page.evaluate(() => document.documentElement.textContent);
    assert.ok(!/\u202e/.test(shown), `${view}: text that runs backwards`);
    if (/clients\/|rejected|nacks/.test(view)) assert.ok(shown.includes('\\u{202e}gnp.exe'), view);
    assert.equal(await page.locator('a[href^="javascript:"]').count(), 0);
    await close(page);
  }
});

test('the policy stops what would slip through', async () => {
  const page = await open();
  const outcome = await page.evaluate(async () => {
    // The browser lets the call from outside evaluate what it likes, up to its first pause.
    await new Promise((resolve) => { setTimeout(resolve, 10); });
    const refused = (attempt) => {
      try {
        attempt();
        return false;
      } catch {
        return true;
      }
    };
    const script = document.createElement('script');
    let isRefused = refused(() => { script.textContent = 'window.harm = 1'; });
    document.body.append(script);
    script.remove();
    isRefused &&= window.harm === undefined;
    return {
      script: isRefused,
      html: refused(() => { document.body.innerHTML = '<p>'; }),
      code: refused(() => new Function('return 1')),
      fetch: await fetch('http://127.0.0.2:1/').then(() => false, () => true),
    };
  });
  assert.deepEqual(outcome, { script: true, html: true, code: true, fetch: true });
  await page.context().close();
});

test('everything can be done with the keyboard', async () => {
  const page = await open();
  const focused = () => page.evaluate(() => {
    const of = document.activeElement;
    const style = getComputedStyle(of);
    const box = of.getBoundingClientRect();
    return {
      is: `${of.tagName} ${(of.getAttribute('aria-label') ?? of.textContent).trim().slice(0, 40)}`,
      isSeen: style.outlineStyle !== 'none' && box.width > 0,
      isBody: of === document.body,
    };
  });
  await page.keyboard.press('Tab');
  assert.equal((await focused()).is, 'A Skip to the content');
  const seen = [];
  for (let step = 0; step < 200; step += 1) {
    const now = await focused();
    if (now.isBody) break;
    seen.push(now);
    await page.keyboard.press('Tab');
  }
  assert.ok(seen.length > 25 && seen.length < 200, `${seen.length} steps, then the page is left`);
  assert.deepEqual(seen.filter((one) => !one.isSeen).map((one) => one.is), [], 'without a mark of the focus');
  for (const name of ['INPUT', 'BUTTON Find', 'BUTTON Pause', 'A Clients', 'SUMMARY Figures by minute']) {
    assert.ok(seen.some((one) => one.is.startsWith(name)), `${name} is not reached`);
  }

  await page.getByRole('link', { name: 'Skip to the content' }).focus();
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'main');
  await page.getByRole('link', { name: 'Rejections', exact: true }).focus();
  await page.keyboard.press('Enter');
  await see(page, 'h1', 'Rejections');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Rejections', 'the focus is at the new view');

  // A poll that brings other figures leaves the focus where it is.
  await page.goto(`${scene.relay.uri}/#/history`);
  await see(page, 'main table', 'backend');
  const link = page.locator('main table').getByRole('link', { name: 'backend', exact: true }).last();
  await link.focus();
  scene.controlPlane.set('rds', '19', { internal: [] });
  await see(page, 'main table', 'internal');
  await see(page, 'main table tr:first-child', 'internal');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'backend');
  await close(page);
});

test('all views pass axe, in light and dark, at a desk and on a phone', async () => {
  const found = [];
  for (const options of [{}, { colorScheme: 'dark' }, { ...PHONE, colorScheme: 'dark' }, PHONE]) {
    for (const view of VIEWS) {
      const page = await open(view, options);
      // The context is told to let the tool in, which is no part of the page.
      const { violations } = await page.evaluate(`${axe}; axe.run(document, { resultTypes: ['violations'] })`);
      const told = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.html} ${node.failureSummary}`).join('\n')}`);
      found.push(...told.map((one) => `${view} ${JSON.stringify(options)}: ${one}`));
      await close(page);
    }
  }
  assert.deepEqual(found, []);
});

test('the page follows the colours of the system while it is open', async () => {
  const page = await open();
  const light = async () => {
    const [, ...parts] = /rgb\((\d+), (\d+), (\d+)\)/.exec(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
    return parts.reduce((sum, part) => sum + Number(part), 0) / 3;
  };
  assert.ok(await light() > 200);
  await page.emulateMedia({ colorScheme: 'dark' });
  assert.ok(await light() < 60);
  assert.equal(await page.locator('#plot canvas').count(), 1);
  await close(page);
});

test('a phone shows each view without scrolling sideways', async () => {
  for (const view of VIEWS) {
    const page = await open(view, PHONE);
    const [wide, narrow] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
    assert.ok(wide <= narrow, `${view}: ${wide} of ${narrow} pixels`);
    await close(page);
  }
});

test('one request at a time, only while someone looks, and fewer while nothing changes', async () => {
  const page = await open();
  let [open_, most, all] = [0, 0, []];
  const ends = () => { open_ -= 1; };
  page.on('request', (request) => {
    all.push(new URL(request.url()).pathname);
    most = Math.max(most, open_ += 1);
  });
  page.on('requestfinished', ends);
  page.on('requestfailed', ends);
  await until('three polls', () => all.filter((one) => one === '/metrics').length > 2);
  assert.equal(most, 1, 'requests overlap');
  assert.deepEqual(all.filter((one) => !['/metrics', '/upstreams', '/ready'].includes(one)), [], 'nothing has changed');
  const hide = (isHidden) => page.evaluate((hidden) => {
    Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  }, isHidden);
  await hide(true);
  await sleep(500);
  all = [];
  await sleep(5_000);
  assert.deepEqual(all, [], 'nobody looks');
  await hide(false);
  await until('a poll', () => all.length > 0);
  await page.getByRole('button', { name: 'Pause' }).click();
  await sleep(500);
  all = [];
  await sleep(4_000);
  assert.deepEqual(all, [], 'it is paused');
  await see(page, '#lost', /^Paused\. The figures below are of \d\d:\d\d:\d\d\.$/);
  await page.getByRole('button', { name: 'Resume' }).click();
  await until('a poll', () => all.length > 0);
  await page.locator('#lost').waitFor({ state: 'hidden' });
  await close(page);
});

test('a relay that hangs is told of, and its figures are grey', async () => {
  const page = await open('clients');
  scene.relay.signal('SIGSTOP');
  try {
    await see(page, '#lost', /The relay (has not answered|is unreachable) since \d\d:\d\d:\d\d.* The figures below are of/);
    assert.match(await page.evaluate(() => getComputedStyle(document.getElementById('main')).filter), /grayscale/);
    await see(page, '#lost', /unreachable since .*no answer within 15 s/);
  } finally {
    scene.relay.signal('SIGCONT');
  }
  await page.locator('#lost').waitFor({ state: 'hidden' });
  await see(page, '#connection', 'Live');
  await close(page);
});

test('a control plane that is away is the first thing that one sees', async () => {
  const page = await open();
  await scene.controlPlane.stop();
  await see(page, '.verdict', /control plane: http:\/\/127\.0\.0\.1:\d+\/? is not connected.*may be out of date for/);
  await see(page, 'section[aria-labelledby=source]', 'not connected');
  assert.deepEqual(await scene.relay.faults(), ['control plane', 'rejections'], 'the command says so too');
  await see(page, '.verdict', '2 faults');
  await picture(page, 'page-control-plane-away');
  await scene.controlPlane.listen(scene.port);
  await see(page, '.link-connected', 'connected');
  assert.doesNotMatch(await text(page, 'section[aria-labelledby=source]'), /error/, 'an error that is over');
  await until('the verdict', async () => !(await text(page, '.verdict')).includes('control plane'));
  await close(page);
});

test('pictures', { skip: !PICTURES && 'PICTURES names no folder' }, async () => {
  const stop = scene.churn();
  const page = await open();
  await sleep(75_000);
  await picture(page, 'page-overview');
  await page.emulateMedia({ colorScheme: 'dark' });
  await sleep(3_000);
  await picture(page, 'page-overview-dark');
  await page.emulateMedia({ colorScheme: 'light' });
  stop();
  await close(page);
  for (const [name, view, options] of [
    ['clients', 'clients?type=cds', {}], ['rejected', 'clients?type=cds&state=rejected', {}], ['clients-all', 'clients', {}],
    ['client', 'clients/1', {}], ['nacks', 'nacks', {}], ['resources', 'resources', {}], ['changes', 'history', {}],
    ['history', 'history?type=cds&name=backend', {}], ['search', 'search?q=back', {}],
    ['phone', '', PHONE], ['phone-clients', 'clients?type=cds', PHONE], ['phone-history', 'history?type=cds&name=backend', { ...PHONE, colorScheme: 'dark' }],
  ]) {
    const of = await open(view, options);
    await sleep(2_500);
    await picture(of, `page-${name}`);
    await close(of);
  }
});

test('a relay that is gone is told of since when, and comes back', async () => {
  const page = await open();
  await see(page, '.verdict', 'cds by 4 of 10000 clients');
  await scene.relay.kill();
  await see(page, '#lost', /The relay is unreachable since \d\d:\d\d:\d\d: no connection\. The figures below are of \d\d:\d\d:\d\d and may be wrong by now\./);
  await see(page, '#connection', /Unreachable since/);
  assert.match(await page.title(), /^\(\?\) /);
  assert.match(await page.evaluate(() => getComputedStyle(document.getElementById('main')).filter), /grayscale/);
  const { violations } = await page.evaluate(`${axe}; axe.run(document, { resultTypes: ['violations'] })`);
  assert.deepEqual(violations.map(({ id }) => id), []);
  await sleep(2_000);
  await picture(page, 'page-relay-away');
  const ages = await text(page, 'section[aria-labelledby=source]');
  await sleep(5_000);
  assert.equal(await text(page, 'section[aria-labelledby=source]'), ages, 'ages do not grow without an answer');

  // A page that is opened by now knows nothing, and says so.
  const other = await browser.open('about:blank');
  await other.goto(`${scene.relay.uri}/`).catch(() => {});
  await other.context().close();

  scene.fleet.close();
  await scene.relay.revive();
  await page.locator('#lost').waitFor({ state: 'hidden' });
  await see(page, '#connection', 'Live');
  await see(page, 'main', /Clients\s*0 streams and held polls/);
  await close(page);
});

test('a relay of a directory, without any client', async () => {
  const relay = await RelayProcess.start('{directory: ./resources}');
  try {
    const page = await browser.open(`${relay.uri}/`);
    await answered(page);
    await see(page, '.verdict', 'All is well');
    await see(page, 'main', 'Directory');
    await see(page, 'main', 'The relay holds nothing, and no client asks for anything.');
    for (const view of ['clients', 'resources', 'nacks', 'history', 'search?q=a']) {
      await page.goto(`${relay.uri}/#/${view}`);
      await answered(page);
      assert.match(await text(page), /No client|no such name|No change/);
    }
    await close(page);
  } finally {
    await relay.end();
  }
});

const BAD = 'Error adding/updating cluster(s) backend: Proto constraint validation failed (ClusterValidationError.ConnectTimeout: '
  + 'value must be greater than 0s): name: "backend"\nconnect_timeout {\n}\n';

test('the rollout guard shows what is held and why, and follows orders', async () => {
  const controlPlane = new ControlPlane();
  const timeout = (seconds) => [field(4, field(1, seconds))];
  controlPlane.set('cds', '1', { backend: timeout(1), other: timeout(1) });
  controlPlane.set('eds', '1', { backend: [] });
  await controlPlane.listen();
  const relay = await RelayProcess.start(`{servers: [{uri: "http://127.0.0.1:${controlPlane.port}", protocol: delta}]}`,
    'rollout: {types: [cds], canaries: {match: {node.id: "canary-.*"}}, share: 0%, window: 1s}');
  const fleet = new Fleet(relay.listener);
  const rollout = async () => (await relay.json('/rollout'))[0];
  const asked = [];
  let isSure = false;
  try {
    const wants = () => ({ cds: ['*'], eds: ['backend'] });
    await fleet.connect(['canary-1'], { wants, rejects: (_, url, version) => (version === '2' && url.endsWith('Cluster') ? BAD : null) });
    await fleet.connect(['edge-1', 'edge-2'], { wants });
    controlPlane.set('cds', '2', { backend: timeout(0) });
    await until('the hold', async () => (await rollout()).phase === 'held' && !(await rollout()).searching);

    const page = await browser.open(`${relay.uri}/`);
    page.removeAllListeners('dialog');
    page.on('dialog', (dialog) => {
      asked.push(dialog.message());
      void (isSure ? dialog.accept() : dialog.dismiss());
    });
    await page.locator('.verdict').getByRole('link', { name: 'rollout' }).click();
    const row = page.locator('section').filter({ hasText: 'Held for' }).locator('tbody tr').first();
    await row.waitFor();
    assert.match(await row.innerText(), /held\s+cds\s+backend\s+1\s+2\s+0 accepted, 1 rejected\s+ConnectTimeout: value must be greater than 0s\s+diff/);
    const answer = page.locator('section[aria-labelledby=answers] tbody tr');
    assert.match(await answer.innerText(), /canary-1[^]*ConnectTimeout: value must be greater than 0s$/);
    assert.doesNotMatch(await page.evaluate(() => document.documentElement.textContent), /u\{a\}/);
    const lines = await row.locator('.reason').evaluate((of) => of.getBoundingClientRect().height / parseFloat(getComputedStyle(of).lineHeight));
    assert.ok(lines < 3.1, `${lines} lines`);
    await row.locator('summary').click();
    assert.match(await row.innerText(), /name: "backend"\s+connect_timeout \{/);
    for (const options of [{}, { colorScheme: 'dark' }, PHONE]) {
      const other = await browser.open(`${relay.uri}/#/rollout`, options);
      await answered(other);
      const { violations } = await other.evaluate(`${axe}; axe.run(document, { resultTypes: ['violations'] })`);
      assert.deepEqual(violations.map(({ id, nodes }) => `${id} ${nodes[0].html}`), []);
      assert.ok(await other.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth), 'it fits');
      await picture(other, options === PHONE ? 'page-phone-rollout' : `page-rollout${options.colorScheme ? '-dark' : ''}`);
      await close(other);
    }
    await row.getByRole('link', { name: 'Diff of backend' }).click();
    await see(page, '.sides', 'From 1 to 2');
    await see(page, '.diff', '"connectTimeout": "1s"');
    await page.goBack();

    await page.getByRole('button', { name: 'Discard' }).click();
    assert.match(asked.pop(), /^Discard the held changes of all guarded types\?/);
    assert.equal((await rollout()).held.length, 1, 'the operator was not sure');
    isSure = true;
    await page.getByLabel('Your name').fill('alice');
    await page.getByRole('button', { name: 'Discard' }).click();
    await see(page, '.outcome', 'The relay follows: discard');
    await see(page, 'main table', /discard\s*cds\s*backend.*127\.0\.0\.1 \(alice\)/);
    await page.getByLabel('Type').selectOption('eds');
    await page.getByRole('button', { name: 'Hold' }).click();
    await see(page, '.outcome', 'The relay does not follow: no such node group, or the type is not in `rollout.types`');
    await page.getByLabel('Type').selectOption('cds');
    await page.getByRole('button', { name: 'Hold' }).click();
    await see(page, 'main', 'Held by an order.');
    await page.getByRole('button', { name: 'Release' }).click();
    await see(page, '.outcome', 'The relay follows: release');
    await until('the release', async () => (await rollout()).orders.every(({ order }) => order !== 'hold'));

    controlPlane.set('cds', '3', { backend: timeout(3) });
    await until('the correction', async () => (await rollout()).phase === 'idle' && (await relay.json('/clients?state=synced&limit=0')).states.synced === 3);
    await page.goto(`${relay.uri}/#/history?type=cds&name=backend`);
    await page.getByRole('button', { name: 'Restore 1' }).click();
    await see(page, '.outcome', 'The relay follows: restore');
    assert.match(asked.at(-1), /^Restore cds backend to version 1\?/);
    const { orders } = await rollout();
    assert.deepEqual(orders.map(({ order, name, version }) => [order, name, version]), [['restore', 'backend', '1']]);
    await close(page);
  } finally {
    fleet.close();
    await controlPlane.stop();
    await relay.end();
  }
});

test('the plotting library is that of its package', async () => {
  const folder = path.resolve('../../src/admin/page/web/uplot');
  const require = createRequire(import.meta.url);
  const package_ = path.dirname(require.resolve('uplot/package.json'));
  for (const [ours, theirs] of [['uPlot.iife.min.js', 'dist/uPlot.iife.min.js'], ['uPlot.min.css', 'dist/uPlot.min.css'], ['LICENSE', 'LICENSE']]) {
    assert.ok((await readFile(path.join(folder, ours))).equals(await readFile(path.join(package_, theirs))), ours);
  }
  const { version } = JSON.parse(await readFile(path.join(package_, 'package.json'), 'utf8'));
  assert.match(await readFile(path.join(folder, 'README.md'), 'utf8'), new RegExp(`^# uPlot ${version.replaceAll('.', '\\.')}\n`));
});

