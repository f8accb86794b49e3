"""One stream of gRPC C-core: the request is what stdin holds, the first response goes to stdout.

    grpc_body.py ADDRESS METHOD WINDOW
"""

import queue
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
requests = queue.SimpleQueue()
requests.put(sys.stdin.buffer.read())
# Never the end of the requests: that would end the stream.
stream = channel.stream_stream(method)(iter(requests.get, None), timeout=300)
sys.stdout.buffer.write(next(stream))
sys.stdout.flush()
stream.cancel()
requests.put(None)
