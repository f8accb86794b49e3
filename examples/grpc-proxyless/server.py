"""A gRPC server on a port of this machine that answers every unary call with a text. No code is generated from a .proto: the messages are bytes."""

import sys
from concurrent import futures

import grpc


class Greeter(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: sys.argv[2].encode())


server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
server.add_generic_rpc_handlers([Greeter()])
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
server.wait_for_termination()
