#!/usr/bin/env python3
"""The worker store beside PyTorch's own (libuv): each in a process of its own on this machine, the
same load on both in turn (store_load.cpp).

Nothing is asserted: the table says what was measured in this run. Generator and servers share the
machine's cores; the generator never sleeps.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

from job import Peer, alternate, say
from report import Table
from store_relays import NODES, WORKERS_PER_NODE, RelaysBench

HERE = os.path.dirname(os.path.abspath(__file__))
OURS, PORT, THEIRS, PLAIN = "ddprun", "daemon's port", "PyTorch", "loopback"
BESIDE = "beside"
MEASURES = ["connects", "resolver", "barrier", "relay", "requests-1", "requests-16", "requests-64",
            "memory", "values", "group-2", "group-8", "group-64", "relays", "relay-pytorch"]
CLIENTS = 10000
GROUPS = 3
# With this file servers ask no name server; PyTorch's would ask about each client that connects.
FILES_ONLY = "hosts: files\n"
WITH_DNS = "hosts: files dns\n"
DAEMON_SAYS = "listening on 127.0.0.1:"


class Server:
    """A context: one server, in a mount namespace of its own where `names` or `resolver` say how it
    finds names."""

    def __init__(self, command, names=None, resolver=None):
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-bench-")
        script = ""
        for path, text in (("/etc/nsswitch.conf", names), ("/etc/resolv.conf", resolver)):
            if text is not None:
                instead = os.path.join(self.folder.name, os.path.basename(path))
                with open(instead, "w", encoding="ascii") as file:
                    file.write(text)
                script += f"mount --bind {instead} {path} && "
        if script:
            command = ["unshare", "--mount", "sh", "-c", script + 'exec "$@"', "sh", *command]
        self.log = open(os.path.join(self.folder.name, "log"), "w+b")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log)
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            raise RuntimeError(f"the server did not start: {self.log.read().decode().strip()}")
        said = line.decode().strip()
        self.is_daemon = said.startswith(DAEMON_SAYS)
        self.ports = said.removeprefix(DAEMON_SAYS)  # of several, with commas
        self.port = int(self.ports.split(",")[0])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        if self.is_daemon:
            self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:  # PyTorch's, while it asks a silent name server
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()


class SlowResolver:
    """A context: a name server that knows no name and says so after `delay_s`, or never (None)."""

    ADDRESS = "127.0.0.53"

    def __init__(self):
        self.delay_s = 0
        self.configuration = f"nameserver {self.ADDRESS}\n"
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((self.ADDRESS, 53))
        self.thread = threading.Thread(target=self.answer, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (self.ADDRESS, 53))
        self.thread.join()
        self.socket.close()

    def answer(self):
        while True:
            query, peer = self.socket.recvfrom(512)
            if not query:
                return
            if self.delay_s is not None:
                time.sleep(self.delay_s)
                # The question again, as an answer: no such name.
                self.socket.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:],
                                   peer)


class Bench:
    def __init__(self, arguments):
        self.runs = arguments.runs
        self.build = arguments.build
        self.load = os.path.join(self.build, "tests", "store_load")
        self.peers = [Peer(OURS, [os.path.join(self.build, "tests", "store_bench_server"),
                                  "--clients-expected", str(CLIENTS)])]
        if arguments.beside:
            self.peers.append(Peer(BESIDE, [
                os.path.join(os.path.abspath(arguments.beside), "tests", "store_bench_server"),
                "--clients-expected", str(CLIENTS)]))
        elif os.access(arguments.python, os.X_OK):
            self.peers.append(Peer(THEIRS, [os.path.abspath(arguments.python),
                                            os.path.join(HERE, "store_pytorch.py")]))
        else:
            say(f"LEFT OUT: {THEIRS}: there is no {arguments.python}")
        # The store on the port of the rendezvous, for all who come.
        self.port = Peer(PORT, [os.path.join(self.build, "bin", "ddprun-rendezvous"),
                                "--port", "0", "--insecure", "--serve-tcpstore"])
        # This peer shows the kernel's part of both servers' work.
        self.plain = Peer(PLAIN, [os.path.join(self.build, "tests", "store_plain_server")])
        self.python = arguments.python
        self.table = Table([OURS, PORT, PLAIN, BESIDE if arguments.beside else THEIRS])
        self.relays = RelaysBench(self, Server)
        self.has_namespaces = subprocess.run(["unshare", "--mount", "true"], check=False,
                                             stderr=subprocess.DEVNULL).returncode == 0
        if not self.has_namespaces:
            say(f"{THEIRS} asks this machine's name server about every client, because without "
                "root it cannot be kept from it")

    def server(self, peer, names=FILES_ONLY, resolver=None):
        if not self.has_namespaces:
            return Server(peer.command)
        return Server(peer.command, names, resolver)

    def generate(self, server, measure, timeout_s=100, **options):
        command = [self.load, measure]
        if server:
            options.setdefault("ports", server.ports)
            command += ["--server-pid", str(server.process.pid)]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed")
        result = json.loads(done.stdout)
        for one in result if isinstance(result, list) else [result]:
            if one.get("lost"):
                say(f"WRONG: {one['lost']} clients were disconnected")
        return result

    def add(self, peer, what, unit, goal, samples, **options):
        self.table.add(what, unit, goal, peer.name, samples, **options)

    def serve_both(self, title, measure, more_peers=()):
        """Both servers, and those of `more_peers`, for the whole measure, asked in turn."""
        peers = [*self.peers, *more_peers]
        servers = {peer.name: self.server(peer) for peer in peers}
        try:
            alternate(title, peers, lambda peer: measure(peer, servers[peer.name]),
                      self.runs, "the lines above")
        finally:
            for server in servers.values():
                server.__exit__()

    # ---------------------------------------------------------------------------------- measures

    def connects(self, peer):
        """To a server that has had no client yet, as at the start of a job; then once more."""
        with self.server(peer) as server:
            for what, goal in (("10,000 connects at once", ">= 1.0x"), ("10,000 more", ">= 1.0x")):
                result = self.generate(server, "connects", clients=CLIENTS)
                self.add(peer, what, "ms", goal, [result["wall_ms"]])
                self.add(peer, f"  {what}: to greeting, p99", "ms", "", [result["p99_us"] / 1e3])
                self.add(peer, f"  {what}: server CPU per connect", "us", "",
                         [2 * result["server_cpu_us_per_operation"]])

    def resolver(self):
        """Clients from addresses that stand in no hosts file, and a name server that is slow."""
        if not self.has_namespaces:
            say("LEFT OUT: resolver: it needs root")
            return
        for name, delay_s in (("1 ms", 0.001), ("falls silent", None)):
            for peer in self.peers:
                say(f"resolver, {name}: {peer.name}")
                with (SlowResolver() as resolver,
                      self.server(peer, WITH_DNS, resolver.configuration) as server):
                    resolver.delay_s = delay_s
                    result = self.generate(server, "connects", 30, clients=CLIENTS,
                                           source_addresses=250)
                self.add(peer, f"10,000 connects, name server {name}", "ms", "the same",
                         [result["wall_ms"]] if result else [],
                         never_s=None if result else 30)

    def barrier(self, peer, server):
        result = self.generate(server, "barrier", clients=CLIENTS, rounds=3)
        self.add(peer, "barrier of 10,000: add, then wait", "ms", ">= 1.25x",
                 [one["wall_ms"] for one in result])
        self.add(peer, "  barrier: server CPU per operation", "us", ">= 1.11x",
                 [one["server_cpu_us_per_operation"] for one in result])

    def relay(self, peer, server):
        """Ours from 1,250 relays that the generator plays, PyTorch's without any."""
        is_ours = peer.name != THEIRS
        nodes = CLIENTS // WORKERS_PER_NODE
        result = self.generate(server, "barrier", rounds=3, clients=nodes if is_ours else CLIENTS,
                               relayed_clients=WORKERS_PER_NODE if is_ours else 0)
        self.add(peer, "the same from 1,250 relays (PyTorch: direct)", "ms", ">= 5.0x",
                 [one["wall_ms"] for one in result])

    def requests(self, peer, server, clients):
        result = self.generate(server, "requests", clients=clients, operations=60000)
        who = f"{clients} client{'s' * (clients > 1)}"
        self.add(peer, f"{who}, get and add", "1/s", ">= 1.2x", [result["operations_per_s"]],
                 more_is_better=True)
        for name in ("p50", "p99", "max"):
            self.add(peer, f"  {who}: {name}", "us", "", [result[f"{name}_us"]])
        self.add(peer, f"  {who}: server CPU per operation", "us",
                 ">= 1.11x, goal 1.33x" if clients == 16 else "",
                 [result["server_cpu_us_per_operation"]])

    def memory(self, peer):
        with self.server(peer) as server:
            result = self.generate(server, "idle", clients=CLIENTS)
        self.add(peer, "memory with 10,000 idle clients (RSS)", "MiB", "<= 20",
                 [result["with"]["Rss_kib"] / 1024])
        self.add(peer, "  of that its own (PSS)", "MiB", "", [result["with"]["Pss_kib"] / 1024])

    def values(self, peer, server):
        result = self.generate(server, "values", rounds=8)
        for name, what in (("set", "SET"), ("get", "GET")):
            self.add(peer, f"8 MiB values, {what}", "MiB/s", ">= 0.8 loopback",
                     result[f"{name}_mib_per_s"], more_is_better=True)
        if peer.name == OURS:
            result = self.generate(None, "plain-values", rounds=8)
            for name, what in (("set", "SET"), ("get", "GET")):
                self.table.add(f"8 MiB values, {what}", "MiB/s", "", PLAIN,
                               result[f"{name}_mib_per_s"], more_is_better=True)

    def group(self, peer, server, ranks):
        """init_process_group() of real PyTorch ranks that have done their imports."""
        command = [self.python, os.path.join(HERE, "store_group.py"), str(server.port), str(ranks),
                   str(GROUPS)]
        with tempfile.NamedTemporaryFile("w") as names:
            if self.has_namespaces:  # Many clients ask the name server about themselves, too.
                names.write(FILES_ONLY)
                names.flush()
                command = ["unshare", "--mount", "sh", "-c", f"mount --bind {names.name} "
                           '/etc/nsswitch.conf && exec "$@"', "sh", *command]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed")
        result = json.loads(done.stdout)
        self.add(peer, f"{ranks} ranks connect to the store", "ms", "", [result["connect"]])
        self.add(peer, f"  {ranks} ranks: init_process_group, first", "ms", "",
                 result["init"][:1])
        self.add(peer, f"  {ranks} ranks: init_process_group, later", "ms", "", result["init"][1:])
        self.add(peer, f"  {ranks} ranks: all_reduce, first", "ms", "", result["all_reduce"][:1])
        self.add(peer, f"  {ranks} ranks: Gloo connects each to each", "ms", "", [result["gloo"]])
        self.add(peer, f"  {ranks} ranks: of that in {result['store_calls']} calls of the store",
                 "ms", "", [result["in_store"]])

    def all(self, wanted):
        def is_wanted(name):
            return not wanted or name in wanted

        if is_wanted("connects"):
            alternate("connects", [*self.peers, self.port], self.connects, self.runs,
                      "the lines above")
        if is_wanted("resolver"):
            self.resolver()
        if is_wanted("barrier"):
            self.serve_both("barrier", self.barrier, [self.port])
        if is_wanted("relay"):
            self.serve_both("relay", self.relay)
        for clients in (1, 16, 64):
            if is_wanted(f"requests-{clients}"):
                self.serve_both(f"requests of {clients}",
                                lambda peer, server, clients=clients:
                                self.requests(peer, server, clients), [self.plain])
        if is_wanted("memory"):
            alternate("memory", self.peers, self.memory, 1, "the lines above")
        if is_wanted("values"):
            self.serve_both("values", self.values)
        for ranks in (2, 8, 64):
            if is_wanted(f"group-{ranks}") and os.access(self.python, os.X_OK):
                self.serve_both(f"group of {ranks}",
                                lambda peer, server, ranks=ranks: self.group(peer, server, ranks))
        for nodes in NODES if is_wanted("relays") else []:
            self.relays.nodes(nodes)
        if is_wanted("relay-pytorch"):
            self.relays.pytorch(self.python)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="per server and measure")
    parser.add_argument("--build", default="build/release", help="where ddprun was built")
    parser.add_argument("--python", default=".venv/bin/python", help="one that has PyTorch")
    parser.add_argument("--beside", metavar="BUILD",
                        help="another build of ddprun, in place of PyTorch")
    parser.add_argument("--json", default="build/bench/store.json")
    parser.add_argument("--only", action="append", metavar="MEASURE", choices=MEASURES)
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)

    bench = Bench(arguments)
    load_before = os.getloadavg()
    bench.all(arguments.only)
    bench.table.write_json(arguments.json, {
        "bench": "store", "runs": arguments.runs, "load_average": [load_before, os.getloadavg()]})
    bench.relays.table.write_json(arguments.json.replace(".json", "-relays.json"), {
        "bench": "store relays", "runs": arguments.runs})
    print(bench.table.text() + "\n\n" + bench.relays.table.text())
    say(f"samples are in {arguments.json}; load average before {load_before[0]:.1f}, "
        f"after {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
