// xDS over gRPC, as far as the checks need it: clients and a control plane that speak delta ADS.

import http2 from 'node:http2';
import { once } from 'node:events';

const METHOD = '/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources';
const TYPES = {
  cds: 'envoy.config.cluster.v3.Cluster',
  eds: 'envoy.config.endpoint.v3.ClusterLoadAssignment',
  lds: 'envoy.config.listener.v3.Listener',
  rds: 'envoy.config.route.v3.RouteConfiguration',
};

export const typeUrl = (short) => `type.googleapis.com/${TYPES[short]}`;

// Protobuf: fields of bytes and of small numbers are all that these messages have.

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
}

/** Field of a message: of bytes or a text, or of a number. */
export function field(number, value) {
  if (typeof value === 'number') return Buffer.concat([varint(number << 3), varint(value)]);
  const content = Buffer.from(value);
  return Buffer.concat([varint((number << 3) | 2), varint(content.length), content]);
}

const message = (...fields) => Buffer.concat(fields);

/** Fields of a message, `[number, value]`. */
function* fields(bytes) {
  let at = 0;
  const number = () => {
    let [value, unit] = [0, 1];
    for (;;) {
      const byte = bytes[at++];
      value += (byte & 127) * unit;
      if (byte < 128) return value;
      unit *= 128;
    }
  };
  while (at < bytes.length) {
    const key = number();
    if ((key & 7) === 0) {
      yield [key >> 3, number()];
    } else {
      const length = number();
      yield [key >> 3, bytes.subarray(at, at += length)];
    }
  }
}

/** Calls with each message that arrives on a stream of HTTP/2. */
function messages(stream, take) {
  let rest = Buffer.alloc(0);
  stream.on('data', (chunk) => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    while (rest.length >= 5 && rest.length >= 5 + rest.readUInt32BE(1)) {
      const end = 5 + rest.readUInt32BE(1);
      take(rest.subarray(5, end));
      rest = rest.subarray(end);
    }
  });
}

function send(stream, content) {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(content.length, 1);
  stream.write(Buffer.concat([head, content]));
}

/** Clients of one address, over as many connections as it takes. */
export class Fleet {
  #port;
  #sessions = [];
  clients = [];

  constructor(port) {
    this.#port = port;
  }

  /** Connects clients with these nodes. `wants` are names by short type; `rejects` says why an answer is rejected, or null. */
  async connect(nodes, { wants, rejects = () => null, perConnection = 100 }) {
    for (let from = 0; from < nodes.length; from += perConnection) {
      const session = http2.connect(`http://127.0.0.1:${this.#port}`, { settings: { initialWindowSize: 1 << 20 } });
      session.on('error', () => {});
      this.#sessions.push(session);
      await once(session, 'connect');
      const opened = nodes.slice(from, from + perConnection).map((node) => new Client(session, node, wants(node), rejects));
      this.clients.push(...opened);
      await Promise.all(opened.map((client) => client.answered));
    }
  }

  close() {
    this.#sessions.forEach((session) => session.destroy());
  }
}

class Client {
  constructor(session, node, wants, rejects) {
    const stream = session.request({ ':method': 'POST', ':path': METHOD, 'content-type': 'application/grpc', te: 'trailers' });
    stream.on('error', () => {});
    this.node = node;
    this.answered = new Promise((resolve) => {
      messages(stream, (bytes) => {
        resolve();
        const told = Object.fromEntries(fields(bytes));
        const [version, url, nonce] = [1, 4, 5].map((number) => (told[number] ?? '').toString());
        const why = rejects(node, url, version);
        const error = why === null ? [] : [field(7, message(field(1, 13), field(2, why)))];
        send(stream, message(field(2, url), field(6, nonce), ...error));
      });
    });
    const identity = message(field(1, node), field(2, node.split('-').slice(0, 2).join('-')), field(6, 'envoy'));
    Object.entries(wants).forEach(([short, names], at) => {
      const first = at === 0 ? [field(1, identity)] : [];
      send(stream, message(...first, field(2, typeUrl(short)), ...names.map((name) => field(3, name))));
    });
  }
}

/** Control plane with one set of resources for all. */
export class ControlPlane {
  #resources = new Map();
  #streams = new Map();
  #sessions = new Set();
  #server = null;
  #nonces = 0;
  #version = '0';

  async listen(port = 0) {
    this.#server = http2.createServer();
    this.#server.on('session', (session) => {
      this.#sessions.add(session);
      session.on('error', () => {});
      session.on('close', () => this.#sessions.delete(session));
    });
    this.#server.on('stream', (stream, headers) => this.#serve(stream, headers[':path']));
    this.#server.listen(port, '127.0.0.1');
    await once(this.#server, 'listening');
    this.port = this.#server.address().port;
  }

  async stop() {
    this.#sessions.forEach((session) => session.destroy());
    this.#streams.clear();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #serve(stream, path) {
    stream.on('error', () => {});
    if (path !== METHOD) {
      stream.respond({ ':status': 200, 'content-type': 'application/grpc', 'grpc-status': '12' }, { endStream: true });
      return;
    }
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' });
    const wanted = new Map();
    this.#streams.set(stream, wanted);
    stream.on('close', () => this.#streams.delete(stream));
    messages(stream, (bytes) => {
      const all = [...fields(bytes)];
      const texts = (number) => all.filter(([one]) => one === number).map(([, value]) => value.toString());
      const [url] = texts(2);
      const isFirst = !wanted.has(url);
      if (isFirst) wanted.set(url, new Set());
      const [names, added] = [wanted.get(url), texts(3)];
      // The first request of a type without names is for all of them.
      if (isFirst && added.length === 0) added.push('*');
      texts(4).forEach((name) => names.delete(name));
      added.forEach((name) => names.add(name));
      if (added.length > 0) {
        const found = [...(this.#resources.get(url) ?? [])].filter(([name]) => added.includes('*') || added.includes(name));
        const missing = added.filter((name) => name !== '*' && !this.#resources.get(url)?.has(name));
        this.#answer(stream, url, found, missing);
      }
    });
  }

  #answer(stream, url, found, removed) {
    const resource = ([name, { version, body }]) =>
      field(2, message(field(3, name), field(1, version), field(2, message(field(1, url), field(2, body)))));
    this.#nonces += 1;
    send(stream, message(field(1, this.#version), ...found.map(resource), field(4, url), field(5, String(this.#nonces)),
      ...removed.map((name) => field(6, name))));
  }

  /** Sets resources of a type, bodies by name; `null` removes one. All clients that want them are told. */
  set(short, version, bodies) {
    const url = typeUrl(short);
    this.#version = version;
    if (!this.#resources.has(url)) this.#resources.set(url, new Map());
    const held = this.#resources.get(url);
    for (const [name, body] of Object.entries(bodies)) {
      if (body === null) held.delete(name);
      else held.set(name, { version, body: message(field(1, name), ...body) });
    }
    for (const [stream, wanted] of this.#streams) {
      const names = wanted.get(url);
      const isWanted = ([name]) => names?.has('*') || names?.has(name);
      const told = Object.entries(bodies).filter(isWanted);
      if (told.length === 0) continue;
      const found = told.filter(([, body]) => body !== null).map(([name]) => [name, held.get(name)]);
      this.#answer(stream, url, found, told.filter(([, body]) => body === null).map(([name]) => name));
    }
  }
}
