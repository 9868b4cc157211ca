#!/usr/bin/env python3
"""The peer of agent_crowd: torchrun's rendezvous protocol alone, many nodes on this machine.

Every node is a process with PyTorch's own c10d rendezvous handler and no workers. All join; then
one of them joins again, as torchrun does after a failed worker, and the others do what torchrun's
agents do: check every 0.1 s whether a node waits, and then join again. Prints JSON: how long it
took until the last node had its new place. Run by the Python that has torch.
"""

import argparse
import datetime
import json
import os
import sys
import time

# The store complains about hosts without a name.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# Imported once; the nodes are forks of this process.
# pylint: disable=wrong-import-position
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

MONITOR_S = 0.1  # torchrun's --monitor-interval
LOOPBACK = "127.0.0.1"


def tell(fd, text):
    """One line, shorter than PIPE_BUF: lines of several nodes never mix."""
    os.write(fd, (text + "\n").encode())


def node(index, count, port, orders, results):
    """The life of one node; `orders` gives a line per thing to do."""
    store = TCPStore(LOOPBACK, port, is_master=False, timeout=datetime.timedelta(seconds=120))
    backend = C10dRendezvousBackend(store, "bench")
    # The default local address is a look-up of the host's name: not what is measured here.
    handler = DynamicRendezvousHandler.from_backend("bench", store, backend, count, count,
                                                    local_addr=LOOPBACK)
    is_first = index == 0
    for line in os.fdopen(orders):
        if line.startswith("rejoin"):
            while not is_first and handler.num_nodes_waiting() == 0:
                time.sleep(MONITOR_S)
        handler.next_rendezvous()
        tell(results, f"{index} {time.monotonic_ns()}")


class Nodes:
    def __init__(self, count):
        self.count = count
        self.orders = []
        self.results, write_end = os.pipe()
        self.pids = []
        for index in range(count):
            orders_read, orders_write = os.pipe()
            pid = os.fork()
            if pid == 0:
                for fd in self.orders + [self.results, orders_write]:
                    os.close(fd)
                self.run(index, orders_read, write_end)
            os.close(orders_read)
            self.orders.append(orders_write)
            self.pids.append(pid)
        os.close(write_end)
        self.lines = os.fdopen(self.results)

    def run(self, index, orders, results):
        try:
            # The store's server starts after the forks, so its port comes first.
            port = b""
            while not port.endswith(b"\n"):
                port += os.read(orders, 1)
            node(index, self.count, int(port), orders, results)
        except Exception as error:  # pylint: disable=broad-except
            print(f"torchrun_rendezvous: node {index}: {error}", file=sys.stderr)
        os._exit(0)

    def order(self, line):
        for fd in self.orders:
            tell(fd, line)

    def last_of_all(self):
        """When the last of all nodes answered."""
        stamps = []
        for _ in range(self.count):
            line = self.lines.readline()
            if not line:
                raise RuntimeError("a node ended")
            stamps.append(int(line.split()[1]))
        return max(stamps)

    def end(self):
        for pid in self.pids:
            os.kill(pid, 9)
        for pid in self.pids:
            os.waitpid(pid, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--rejoins", type=int, default=1)
    arguments = parser.parse_args()
    nodes = Nodes(arguments.nodes)
    try:
        server = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False,
                          timeout=datetime.timedelta(seconds=120))
        nodes.order(str(server.port))
        before = time.monotonic_ns()
        nodes.order("join")
        formed_ms = (nodes.last_of_all() - before) / 1e6
        rejoined_ms = []
        for _ in range(arguments.rejoins):
            time.sleep(1)
            before = time.monotonic_ns()
            nodes.order("rejoin")
            rejoined_ms.append((nodes.last_of_all() - before) / 1e6)
    finally:
        nodes.end()
    print(json.dumps({"nodes": arguments.nodes, "form_ms": formed_ms, "restart_ms": rejoined_ms}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
