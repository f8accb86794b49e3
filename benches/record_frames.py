"""Shows the HTTP/2 frames between an xDS client and its server, with times, to see what a real client sends for an update.

    python3 benches/record_frames.py LISTEN_PORT SERVER_PORT

Stands between the two in cleartext. What the client sends is on lines with `>`, what it reads on lines with `<`.
"""

import socket
import sys
import threading
import time

FRAMES = ["DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE", "PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION"]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BEGUN = time.monotonic()


def frames(data):
    """The whole frames at the start of `data`, as text, and the rest of it."""
    found = []
    while len(data) >= 9:
        length = int.from_bytes(data[:3], "big")
        if len(data) < 9 + length:
            break
        kind, flags, stream = data[3], data[4], int.from_bytes(data[5:9], "big")
        name = FRAMES[kind] if kind < len(FRAMES) else str(kind)
        detail = f"+{int.from_bytes(data[9:13], 'big')}" if name == "WINDOW_UPDATE" else f"{length} B"
        if name in ("PING", "SETTINGS") and flags & 1:
            detail += " ACK"
        found.append(f"{name}({stream}, {detail})")
        data = data[9 + length :]
    return found, data


def copy(source, target, number, sign):
    rest, preface = b"", sign == ">"
    while data := source.recv(1 << 20):
        target.sendall(data)
        rest += data
        if preface:
            rest, preface = rest.removeprefix(PREFACE), False
        found, rest = frames(rest)
        print(f"{(time.monotonic() - BEGUN) * 1e3:10.2f} ms  {number} {sign} {' '.join(found)}", flush=True)
    target.shutdown(socket.SHUT_WR)


listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
number = 0
while True:
    client, _ = listener.accept()
    server = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    number += 1
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=copy, args=(client, server, number, ">"), daemon=True).start()
    threading.Thread(target=copy, args=(server, client, number, "<"), daemon=True).start()
