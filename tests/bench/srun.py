#!/usr/bin/env python3
"""Measures ddprun's cost at a Slurm start: `srun -N2 ddprun worker` beside `srun -N2 worker`, in
alternating runs, in the Slurm of the tests (two nodes on loopback).

Nothing is asserted: the table says what was measured in this run on this machine.
"""

import argparse
import os
import select
import sys
import tempfile
import time

from job import Peer, alternate, say
from report import Table

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from slurm import PATIENCE_S, Slurm, missing  # noqa: E402

MS = 1e6
NODES = 2


class Bench:
    def __init__(self, slurm, worker, table):
        self.slurm = slurm
        self.worker = worker
        self.table = table
        self.stamps = slurm.path("stamps")
        os.mkfifo(self.stamps)
        self.reader = os.open(self.stamps, os.O_RDWR)

    def start(self, peer, is_counted):
        """Command to the last worker in main, and to the end of srun."""
        before = time.monotonic_ns()
        srun = self.slurm.start("srun", f"-N{NODES}", "--ntasks-per-node=1", *peer.command,
                                self.worker, self.stamps, "exit")
        said, _ = srun.communicate(timeout=PATIENCE_S)
        ended = time.monotonic_ns()
        readable, _, _ = select.select([self.reader], [], [], 0)
        lines = os.read(self.reader, 65536).decode().splitlines() if readable else []
        if srun.returncode != 0 or len(lines) != NODES:
            raise RuntimeError(f"{peer.name} ended with {srun.returncode}, {len(lines)} workers "
                               f"came into main:\n{said}")
        if is_counted:
            last = max(int(line.split()[0]) for line in lines)
            self.table.add("srun to 2 workers on 2 nodes in main", "ms", "<= +30", peer.name,
                           [(last - before) / MS])
            self.table.add("srun, from its start to its end", "ms", "", peer.name,
                           [(ended - before) / MS])


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--build", default=os.path.join(root, "build", "release"))
    parser.add_argument("--json", default=os.path.join(root, "build", "bench", "srun.json"))
    arguments = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin"
    if missing():
        say(f"LEFT OUT: {missing()}")
        return 0
    build = os.path.abspath(arguments.build)
    peers = [Peer("ddprun", [os.path.join(build, "bin", "ddprun")]), Peer("srun alone", [])]
    table = Table([peer.name for peer in peers])
    with tempfile.TemporaryDirectory(prefix="ddprun-slurm-") as folder:
        os.chmod(folder, 0o711)
        slurm = Slurm(folder)
        try:
            bench = Bench(slurm, os.path.join(build, "tests", "stamp_worker"), table)
            alternate("warming up", peers, lambda peer: bench.start(peer, False), 1, "the error")
            alternate("start", peers, lambda peer: bench.start(peer, True), arguments.runs,
                      "the error")
        finally:
            slurm.stop()
    table.write_json(arguments.json, {"runs": arguments.runs, "bench": "srun"})
    print(table.text())
    say(f"samples are in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
