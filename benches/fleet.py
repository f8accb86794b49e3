"""How many relays a fleet needs, how large they are, how fast a change reaches the last client, and what breaks first.

    python3 benches/fleet.py --help
    python3 benches/fleet.py --clients 1000000 --regions 20
    python3 benches/fleet.py --check figures.jsonl      # against the row "a million clients at a hundredth" of a run

A root relay has the control plane's streams, each region has relays behind it, and clients are spread over those evenly. Figures
of a node are those of docs/benchmarks.md; give those of your own machines. A relay may take the smallest of five fleets:

- updates: it spends a share of its cores on changes as they usually come;
- convergence: its last client has a change in time;
- return: all of its clients come back at once, each with a new connection, and are answered in time;
- memory: what clients and resources take;
- connections: what the operating system and the configuration allow.
"""

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Node:
    """What things cost a relay."""

    update_us: float
    return_us: float
    client_kib: float
    resource_kib: float
    cores: float
    memory_gib: float
    connections: int
    share: float


def largest(node, rate, resources, converge_seconds, return_seconds):
    """Clients of a relay by each limit."""
    free_kib = node.memory_gib * 2**20 - resources * node.resource_kib
    return {
        "updates": node.cores * node.share * 1e6 / (rate * node.update_us) if rate else math.inf,
        "convergence": node.cores * converge_seconds * 1e6 / node.update_us,
        "return": node.cores * return_seconds * 1e6 / node.return_us,
        "memory": max(free_kib, 0) / node.client_kib,
        "connections": node.connections,
    }


def converge_ms(node, clients, relays, cores):
    """Until the last client has a change: the root serves its relays, then the relays of `cores` cores serve all clients."""
    return relays * node.update_us / node.cores / 1e3 + clients * node.update_us / cores / 1e3


def plan(args, node):
    limits = largest(node, args.rate, args.resources, args.converge, args.back)
    bound, most = min(limits.items(), key=lambda each: each[1])
    a_region = math.ceil(args.clients / args.regions)
    for_region = math.ceil(a_region / most) + args.spare
    relays = for_region * args.regions
    each = math.ceil(args.clients / (relays - args.spare * args.regions))
    print(f"{args.clients:,} clients in {args.regions} regions, {args.resources:,} resources, {args.rate:g} changes/s")
    for name, count in sorted(limits.items(), key=lambda each: each[1]):
        print(f"  {name:<12} {'no limit' if math.isinf(count) else f'{count:>12,.0f} clients on a relay'}{'   breaks first' if name == bound else ''}")
    memory = (args.resources * node.resource_kib + each * node.client_kib) / 2**20
    print(f"  relays       {relays:,} of {node.cores:g} cores, {for_region} in a region with {args.spare} to spare; {each:,} clients and {memory:.1f} GiB each")
    print(f"  one change   the last client has it after {converge_ms(node, each, relays, node.cores):.0f} ms, and the way")
    print(f"  all return   answered after {each * node.return_us / node.cores / 1e6:.1f} s")
    print(f"  root         {relays:,} streams, {relays * node.update_us / 1e3:.1f} ms of CPU for a change")


def check(path):
    """Compares the model with real relays that share one core."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    figures = {(line["row"], line["what"]): line["figure"] for line in lines}
    tree = figures["a million clients at a hundredth", "tree"]
    update = figures["delta wildcard 1000 x 1000", "relay"]["us"]
    clients = tree["regions"] * tree["clients"]
    # The row's own figure, as the cost of a return depends on how many versions a client brings.
    returns = tree["return_us"]
    node = Node(update, returns, 0, 0, 1, 0, 0, 1)
    for what, says, is_so in [
        ("ms until the last client has a change", converge_ms(node, clients, tree["regions"], 1), tree["last_ms"]),
        ("s until all are back", clients * returns / 1e6, tree["return_seconds"]),
    ]:
        print(f"{what}: the model says {says:.2f}, {clients:,} real clients {is_so:.2f}; off by {abs(says / is_so - 1):.0%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, meaning in [
        ("clients", 1_000_000, "clients in all"),
        ("regions", 20, "regions, each with relays of its own"),
        ("resources", 10_000, "resources that each client holds"),
        ("rate", 10.0, "changes per second"),
        ("converge", 1.0, "seconds until the last client of a relay has a change"),
        ("back", 15.0, "seconds until all clients of a relay are back; Envoy waits 15 s for its first answer"),
        ("spare", 1, "relays of a region that may be gone"),
        ("update-us", 35.0, "CPU of an update in µs, with TLS and a real client"),
        ("return-us", 600.0, "CPU of a client that comes back, in µs, with a whole mTLS handshake"),
        ("client-kib", 20.0, "memory of an idle client in KiB, with TLS"),
        ("resource-kib", 2.0, "memory of a resource in KiB"),
        ("cores", 8.0, "cores of a relay"),
        ("memory-gib", 16.0, "memory of a relay in GiB"),
        ("connections", 100_000, "connections that a relay may have"),
        ("share", 0.5, "share of a relay's cores for changes as they usually come"),
    ]:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{meaning} (%(default)s)")
    parser.add_argument("--check", metavar="FILE", help="compare the model with this run of the bench")
    args = parser.parse_args()
    if args.check:
        return check(args.check)
    costs = [args.update_us, args.return_us, args.client_kib, args.resource_kib]
    plan(args, Node(*costs, args.cores, args.memory_gib, args.connections, args.share))


main()
