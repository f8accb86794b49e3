"""A gRPC client that calls its target over and over, and prints each result as one line of JSON.

The bootstrap of an xds:/// target comes from GRPC_XDS_BOOTSTRAP. No code is generated from a .proto: the
messages are bytes. Runs until stdin is closed.
"""

import json
import os
import sys
import threading
import time

import grpc


def exit_with_parent():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=exit_with_parent, daemon=True).start()

channel = grpc.insecure_channel(sys.argv[1])
call = channel.unary_unary("/interop.Greeter/Greet")
while True:
    try:
        result = {"answer": call(b"", timeout=30).decode()}
    except grpc.RpcError as error:
        result = {"error": error.code().name, "details": error.details()}
    print(json.dumps(result), flush=True)
    time.sleep(0.05)
