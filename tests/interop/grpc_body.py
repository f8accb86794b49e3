"""One unary call of gRPC C-core: the request is what stdin holds, the response goes to stdout.

    grpc_body.py ADDRESS METHOD WINDOW
"""

import sys

import grpc

address, method, window = sys.argv[1:]
options = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.lookahead_bytes", int(window)),
    # Windows stay as they are.
    ("grpc.http2.bdp_probe", 0),
]
channel = grpc.insecure_channel(address, options=options)
sys.stdout.buffer.write(channel.unary_unary(method)(sys.stdin.buffer.read(), timeout=300))
