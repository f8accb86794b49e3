// One stream of gRPC by Node's own HTTP/2: the request is what stdin holds, the first response goes to stdout. The window of
// streams is odd, and changes while the response comes.
//
//     body.js ADDRESS METHOD WINDOW
"use strict";

const http2 = require("node:http2");

const [address, method, window] = process.argv.slice(2);
const request = require("node:fs").readFileSync(0);
// gRPC's prefix: not compressed, and how long it is.
const prefix = Buffer.alloc(5);
prefix.writeUInt32BE(request.length, 1);

const session = http2.connect(`http://${address}`, {
  settings: { initialWindowSize: Number(window) },
  // Megabytes for the request and the response.
  maxSessionMemory: 64,
});
session.on("error", (error) => { throw error; });
const stream = session.request({
  ":method": "POST",
  ":path": method,
  "content-type": "application/grpc",
  te: "trailers",
});
stream.on("error", (error) => { throw error; });

let length = 0, expected;
const chunks = [];
const resize = (initialWindowSize) => session.settings({ initialWindowSize });
// No smaller than what is worth an answer: bytes alone would be taken for an attack.
const changes = [1_000, 100_003, 300, 70_001];
stream.on("data", (chunk) => {
  chunks.push(chunk);
  length += chunk.length;
  expected ??= chunk.readUInt32BE(1) + 5;
  if (length === expected) {
    process.stdout.write(Buffer.concat(chunks).subarray(5), () => process.exit());
  }
  // Once for each megabyte. Whatever is left of a window then may become less than nothing.
  if (changes.length > 0 && length > (5 - changes.length) << 20) {
    // Closed for a moment, then of another size.
    const size = changes.shift();
    resize(0);
    setTimeout(() => resize(size), 20);
  }
});
const check = (fields) => {
  if (fields["grpc-status"] !== "0") {
    throw new Error(`${fields["grpc-status"]}: ${fields["grpc-message"]}`);
  }
};
// A refusal has no more than headers.
stream.on("response", (headers) => { if ("grpc-status" in headers) check(headers); });
stream.on("trailers", check);
stream.on("end", () => { throw new Error("the stream ended without a response"); });
stream.write(prefix);
// Not the end of the requests: that would end the stream.
stream.write(request);
