"""Our store directly and through real relays, one for each node, all on this machine: the way
through a network is not in the times, and the relays of all nodes share its cores."""

import json
import os
import subprocess

from job import Peer, alternate, say
from report import Table

HERE = os.path.dirname(os.path.abspath(__file__))
RELAYS, DIRECT = Peer("relays", []), Peer("direct", [])
NODES = [2, 16, 100]
WORKERS_PER_NODE = 8


class RelaysBench:
    """Uses the servers and the generator of `bench`, and has a table of its own: a ratio above 1
    speaks for relays."""

    def __init__(self, bench, server):
        self.bench = bench
        self.server = server  # a class of contexts: one server
        self.program = os.path.join(bench.build, "tests", "store_bench_server")
        self.table = Table([RELAYS.name, DIRECT.name])

    def relays(self, store, count):
        return self.server([self.program, "--relays", str(count), "--store-port",
                            str(store.port)])

    def through(self, peer, store, count, measure):
        """`measure` with the ports to dial and the load generator's options for relays."""
        if peer is DIRECT:
            return measure(store.ports, {})
        with self.relays(store, count) as relays:
            return measure(relays.ports, {"relays_pid": relays.process.pid})

    def nodes(self, count):
        clients = count * WORKERS_PER_NODE
        who = f"{count} nodes, {clients} workers"

        def measure(peer, store, ports, more):
            connects = self.bench.generate(store, "connects", ports=ports, clients=clients, **more)
            rounds = self.bench.generate(store, "barrier", ports=ports, clients=clients, rounds=5,
                                         **more)
            self.table.add(f"{who}: all connect", "ms", "", peer.name, [connects["wall_ms"]])
            self.table.add(f"  {count}: store's CPU for that", "ms", "", peer.name,
                           [connects["server_cpu_ms"]])
            self.table.add(f"  {count}: barrier", "ms", "", peer.name,
                           [one["wall_ms"] for one in rounds])
            self.table.add(f"  {count}: barrier, store's CPU", "ms", "", peer.name,
                           [one["server_cpu_ms"] for one in rounds])
            if peer is RELAYS:
                self.table.add(f"  {count}: barrier, CPU of one relay", "ms", "", peer.name,
                               [one["relays_cpu_ms"] / count for one in rounds])

        with self.bench.server(Peer("", [self.program])) as store:
            alternate(who, [RELAYS, DIRECT],
                      lambda peer: self.through(
                          peer, store, count,
                          lambda ports, more: measure(peer, store, ports, more)),
                      self.bench.runs, "the lines above")

    def pytorch(self, python):
        if not os.access(python, os.X_OK):
            say(f"LEFT OUT: 8 PyTorch clients: there is no {python}")
            return
        who = f"{WORKERS_PER_NODE} PyTorch clients"

        def measure(peer, ports):
            done = subprocess.run([os.path.abspath(python),
                                   os.path.join(HERE, "store_clients.py"), ports, "500"],
                                  stdout=subprocess.PIPE, timeout=100, check=True)
            result = json.loads(done.stdout)
            self.table.add(f"{who}: connect", "ms", "", peer.name, result["connect_ms"])
            self.table.add(f"{who}: barrier", "ms", "", peer.name, result["rounds_ms"])

        with self.bench.server(Peer("", [self.program])) as store:
            alternate(who, [RELAYS, DIRECT],
                      lambda peer: self.through(peer, store, 1,
                                                lambda ports, _: measure(peer, ports)),
                      self.bench.runs, "the lines above")
