"""Plain gRPC servers, one per name given, each on a free port and answering every unary call with its own name.

Prints one line of JSON, {name: port}, and serves until stdin is closed.
"""

import json
import sys
from concurrent import futures

import grpc


class AnswersItsName(grpc.GenericRpcHandler):
    def __init__(self, name):
        self._handler = grpc.unary_unary_rpc_method_handler(lambda request, context: name.encode())

    def service(self, handler_call_details):
        return self._handler


def start(name):
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([AnswersItsName(name)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


servers = {name: start(name) for name in sys.argv[1:]}
print(json.dumps({name: port for name, (_, port) in servers.items()}), flush=True)
sys.stdin.read()
