// A client of grpc-js that calls its target over and over, and prints each result as one line of JSON, as
// tests/interop/grpc_client.py does. Runs until stdin is closed.
"use strict";

const grpc = require("@grpc/grpc-js");
require("@grpc/grpc-js-xds").register();

process.stdin.resume().on("end", () => process.exit(0));

const client = new grpc.Client(process.argv[2], grpc.credentials.createInsecure());
const asIs = (bytes) => bytes;

function call() {
  client.makeUnaryRequest("/interop.Greeter/Greet", asIs, asIs, Buffer.alloc(0), { deadline: Date.now() + 30000 }, (error, answer) => {
    const result = error ? { error: grpc.status[error.code], details: error.details } : { answer: answer.toString() };
    console.log(JSON.stringify(result));
    setTimeout(call, 50);
  });
}
call();
