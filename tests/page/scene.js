// A fleet as the checks and the pictures show it: 10,000 clients, some of which reject or are slow to answer.

import { Browser, RelayProcess, until } from './world.js';
import { ControlPlane, Fleet, field } from './xds.js';

export const CLIENTS = Number(process.env.CLIENTS ?? 10_000);

/** Names and texts that would do harm where they are taken for HTML, or that look like others. */
export const HOSTILE = {
  name: '<img src=x onerror="window.harm=1">',
  node: '<script>window.harm=1</script>\u202egnp.exe',
  text: 'no such filter <img src=x onerror="window.harm=1"><a href="javascript:window.harm=1">fix</a>',
};

const timeout = (seconds) => [field(4, field(1, seconds))];
const numbered = (count, name) => Array.from({ length: count }, (_, at) => name(String(at).padStart(3, '0')));
const REGIONS = ['edge-eu', 'edge-us', 'edge-ap'];

/** Everything between which the page stands. */
export class Scene {
  static async start({ clients = CLIENTS } = {}) {
    const scene = new Scene();
    scene.controlPlane = new ControlPlane();
    const services = ['backend', 'billing', 'catalog', 'checkout', 'search', ...numbered(95, (at) => `service-${at}`)];
    scene.controlPlane.set('cds', '17', Object.fromEntries(services.map((name) => [name, timeout(1)])));
    scene.controlPlane.set('eds', '17', Object.fromEntries(services.map((name) => [name, []])));
    scene.controlPlane.set('lds', '17', { ingress: [], internal: [] });
    scene.controlPlane.set('rds', '17', { ingress: [], internal: [] });
    await scene.controlPlane.listen();
    scene.port = scene.controlPlane.port;
    scene.relay = await RelayProcess.start(`{servers: [{uri: "http://127.0.0.1:${scene.port}", protocol: delta}], backoff: {initial: 50ms, max: 500ms}}`);
    scene.fleet = new Fleet(scene.relay.listener);
    const ordinary = Array.from({ length: clients - 4 }, (_, at) => `${REGIONS[at % 3]}-${String(at).padStart(5, '0')}`);
    await scene.fleet.connect(ordinary, {
      wants: (node) => ({ cds: ['*'], eds: services.slice(0, node.endsWith('7') ? 23 : 20), lds: ['*'], rds: ['ingress', 'internal'] }),
    });
    await scene.fleet.connect(['edge-eu-canary-0', 'edge-us-canary-0', 'edge-ap-canary-0', HOSTILE.node], {
      wants: () => ({ cds: ['*'] }),
      rejects: (node, url, version) => {
        if (version !== '18') return null;
        return node === HOSTILE.node ? HOSTILE.text
          : 'Error adding/updating cluster(s) backend: didn\'t find a registered implementation for name: \'envoy.transport_sockets.tls\'';
      },
    });
    return scene;
  }

  /** Sends the version that some reject. */
  async change() {
    this.controlPlane.set('cds', '18', { backend: timeout(2), [HOSTILE.name]: timeout(3) });
    await until('the rejections', async () => (await this.relay.json('/clients?limit=0')).states.rejected === 4);
    await until('the ACKs', async () => (await this.relay.json('/clients?limit=0&state=synced')).states.synced === this.fleet.clients.length - 4);
  }

  /** Sends changes of endpoints that a tenth of the clients asks for, until the returned function is called. */
  churn() {
    let at = 0;
    const timer = setInterval(() => {
      at += 1;
      this.controlPlane.set('eds', `e${at}`, { [`service-01${5 + (at % 3)}`]: [] });
    }, 700);
    return () => clearInterval(timer);
  }

  async end() {
    this.fleet.close();
    await this.controlPlane.stop();
    await this.relay.end();
  }
}

export { Browser };
