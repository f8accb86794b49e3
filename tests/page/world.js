// The relay's binary between a control plane and a fleet, and a browser before its page.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import { createInterface } from 'node:readline';
import { tmpdir } from 'node:os';
import path from 'node:path';

import { chromium } from 'playwright-core';

const PROGRAM = process.env.DELTAFAN ?? path.resolve('../../target/debug/deltafan');
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';
/** Time for anything that the relay or the page does by itself, in milliseconds. */
export const PATIENCE = 60_000;

export const sleep = (millis) => new Promise((resolve) => { setTimeout(resolve, millis); });

/** Waits until something holds. */
export async function until(what, holds) {
  const begun = Date.now();
  while (!(await holds())) {
    if (Date.now() - begun > PATIENCE) throw new Error(`waited too long for ${what}`);
    await sleep(50);
  }
}

/** Ports that nobody has. */
async function freePorts(count) {
  const servers = Array.from({ length: count }, () => net.createServer().listen(0, '127.0.0.1'));
  await Promise.all(servers.map((server) => once(server, 'listening')));
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((resolve) => { server.close(resolve); })));
  return ports;
}

export class RelayProcess {
  #home;
  #child;
  #config;

  /** Starts it with this source and more configuration, at ports of its own. Its folder has an empty one, `resources`. */
  static async start(upstream, more = '') {
    const relay = new RelayProcess();
    relay.#home = await mkdtemp(path.join(tmpdir(), 'deltafan-page-'));
    await mkdir(path.join(relay.#home, 'resources'));
    relay.#config = path.join(relay.#home, 'relay.yaml');
    // It comes back at the same addresses.
    [relay.admin, relay.listener] = await freePorts(2);
    await writeFile(relay.#config, `node: {id: relay-eu-1, cluster: edge}\nupstream: ${upstream}\nadmin: {address: "127.0.0.1:${relay.admin}"}\n`
      + `downstream:\n  listeners: [{address: "127.0.0.1:${relay.listener}"}]\n${more}\n`);
    await relay.#spawn();
    return relay;
  }

  async #spawn() {
    this.#child = spawn(PROGRAM, ['serve', '--log-format', 'json', '--config', this.#config], { stdio: ['ignore', 'ignore', 'pipe'] });
    const lines = createInterface({ input: this.#child.stderr });
    const serving = new Promise((resolve, reject) => {
      lines.on('line', (line) => {
        if (line.includes('"serving"')) resolve();
      });
      this.#child.once('exit', (status) => reject(new Error(`the relay ended with ${status}`)));
    });
    await serving;
    await until('readiness', async () => (await fetch(`${this.uri}/ready`)).ok);
  }

  get uri() {
    return `http://127.0.0.1:${this.admin}`;
  }

  signal(name) {
    this.#child.kill(name);
  }

  async json(of) {
    return (await fetch(`${this.uri}${of}`)).json();
  }

  /** Checks of `deltafan status` that are at fault. */
  async faults() {
    const child = spawn(PROGRAM, ['status', '-o', 'json', '--admin', this.uri], { stdio: ['ignore', 'pipe', 'inherit'] });
    let told = '';
    for await (const chunk of child.stdout) told += chunk;
    return JSON.parse(told).checks.filter(({ state }) => state === 'FAULT').map(({ check }) => check);
  }

  async kill() {
    const ended = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await ended;
  }

  /** Starts it again after `kill`. */
  async revive() {
    await this.#spawn();
  }

  async end() {
    if (this.#child.exitCode === null && this.#child.signalCode === null) await this.kill();
    await rm(this.#home, { recursive: true });
  }
}

const FLAGS = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--force-color-profile=srgb',
];

/** Browser that keeps nothing, with a list of all that its pages ask for. */
export class Browser {
  #browser;
  requests = [];

  static async start() {
    const browser = new Browser();
    browser.#browser = await chromium.launch({ executablePath: CHROMIUM, headless: true, args: FLAGS });
    return browser;
  }

  /** Page of its own. Errors on it are remembered in `faults`. */
  async open(uri, options = {}) {
    const context = await this.#browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'light', ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE);
    page.faults = [];
    page.on('pageerror', (error) => page.faults.push(String(error)));
    page.on('dialog', (dialog) => {
      page.faults.push(`dialog ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on('console', (line) => {
      if (line.type() === 'error' && !line.text().includes('Failed to load resource')) page.faults.push(line.text());
    });
    context.on('request', (request) => this.requests.push(request.url()));
    await page.goto(uri);
    return page;
  }

  async end() {
    await this.#browser.close();
  }
}
