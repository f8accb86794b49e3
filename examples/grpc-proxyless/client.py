"""A gRPC client that makes one call to its target and prints the answer. The xDS server is in GRPC_XDS_BOOTSTRAP."""

import sys

import grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    print(channel.unary_unary("/example.Greeter/Greet")(b"", wait_for_ready=True, timeout=20).decode())
