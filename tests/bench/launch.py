#!/usr/bin/env python3
"""Launching, restarting and losing a node: ddprun beside torchrun, in alternating runs.

Nothing is asserted: the table says what was measured in this run on this machine, where both
shared whatever else was going on.
"""

import argparse
import os
import signal
import sys
import time

from job import Job, Peer, alternate, cpu_seconds, memory_kib, say, wake_ups
from report import Table

MS = 1e6
CRASHES_PER_JOB = 3  # below the number of restarts a minute that makes ddprun pause
NEVER_S = 20.0
CONSOLE_S = 300.0
LOG_BYTES = 32 << 20  # of each of eight workers
# Stamps its start, waits for the word, writes, stamps that all is written, and stays.
LOGGING_WORKER = """#!/bin/sh
{stamp} {stamps} exit
read -r go < {go}
yes "a line of a training log, about as long as such lines are: step 1234 loss 0.1234 lr 1e-4" |
    head -c {bytes}
exec {stamp} {stamps} hold
"""


class Bench:
    def __init__(self, arguments, peers):
        self.worker = os.path.join(arguments.build, "tests", "stamp_worker")
        self.console = os.path.join(os.path.dirname(os.path.abspath(arguments.json)),
                                "failed-console.log")
        self.table = Table([peer.name for peer in peers])
        self.runs = arguments.runs
        self.peers = peers

    def job(self, peer):
        return Job(peer, self.worker, self.console)

    def start_eight(self, peer, is_counted):
        """Command to the last of eight workers in main; the last worker to the launcher's end."""
        with self.job(peer) as job:
            launcher, before = job.start("exit", 8)
            last = max(stamp.at_ns for stamp in job.must_await(8))
            launcher.wait(60)
            ended = time.monotonic_ns()
        if is_counted:
            self.table.add("command to 8 workers in main", "ms", "<= 10", peer.name,
                           [(last - before) / MS])
            self.table.add("last worker in main (it exits) to launcher gone", "ms", "", peer.name,
                           [(ended - last) / MS])

    def idle_beside_eight(self, peer, is_counted):
        with self.job(peer) as job:
            job.start("hold", 8)
            job.must_await(8)
            time.sleep(1)  # start-up work that is still going on is not idling
            helpers = job.helpers()
            before, started = wake_ups(helpers), time.monotonic()
            time.sleep(5 if is_counted else 0.1)
            rate = (wake_ups(helpers) - before) / (time.monotonic() - started)
            memory = [memory_kib(pid) for pid in helpers]
        if is_counted:
            for what, goal, column in [("resident memory beside 8 idle workers", "<= 15", 0),
                                       ("the same, proportional (Pss)", "", 1)]:
                self.table.add(what, "MiB", goal, peer.name,
                               [sum(sizes[column] for sizes in memory) / 1024])
            self.table.add("wake-ups beside 8 idle workers", "1/s", "beats", peer.name, [rate])

    def log(self, peer, flags, what, goal, is_shown=False):
        """CPU time of the launcher until all that eight workers write is where it belongs."""
        with self.job(peer) as job:
            go, script = (os.path.join(job.folder, name) for name in ("go", "worker"))
            os.mkfifo(go)
            word = os.open(go, os.O_RDWR)
            with open(script, "w", encoding="ascii") as file:
                file.write(LOGGING_WORKER.format(stamp=self.worker, stamps=job.fifo_path, go=go,
                                                 bytes=LOG_BYTES))
            os.chmod(script, 0o755)
            job.launch([*peer.command, *flags], ["--no-python", script], 8)
            starting = job.must_await(8)
            launchers = [launcher.pid for launcher in job.launchers]
            before = cpu_seconds(launchers)
            os.write(word, b"\n" * len(starting))
            job.must_await(8)
            deadline = time.monotonic() + CONSOLE_S
            while is_shown and os.path.getsize(job.log.name) < 8 * LOG_BYTES:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{peer.name}: not all is shown after {CONSOLE_S:.0f} s")
                time.sleep(0.1)
            spent = cpu_seconds(launchers) - before
            os.close(word)
        self.table.add(what, "% of a core", goal, peer.name, [spent / (8 * LOG_BYTES / 1e8) * 100])

    def crash(self, peer, nnodes, slots, what, goal):
        """A worker is killed; to all workers of the next generation in main."""
        world = nnodes * slots
        samples = []
        with self.job(peer) as job:
            for _ in range(nnodes):
                job.start("hold", slots, nnodes=str(nnodes), restarts=100)
            living = job.must_await(world)
            for _ in range(CRASHES_PER_JOB):
                victim = max(living)
                before = time.monotonic_ns()
                os.kill(victim.pid, signal.SIGKILL)
                living = job.must_await(world)
                samples.append((max(stamp.at_ns for stamp in living) - before) / MS)
        self.table.add(what, "ms", goal, peer.name, samples)

    def death(self, peer, flags, mebibytes, fatal, what, goal):
        """A worker with so much memory dies; to its neighbour told to end."""
        with self.job(peer) as job:
            program = ["--no-python", self.worker, job.fifo_path, "tell", str(mebibytes)]
            # A core is written where the worker is.
            launcher, _ = job.launch([*peer.command, *flags], program, 2, folder=job.folder)
            victim = min(job.must_await(2), key=lambda stamp: stamp.rank)
            before = time.monotonic_ns()
            os.kill(victim.pid, fatal)
            told = job.must_await(1)[0].at_ns
            launcher.wait(120)
        self.table.add(what, "ms", goal, peer.name, [(told - before) / MS])

    def deaths(self, peer):
        """Kills workers that use no ddprun library; ddprun runs also with --watch preload."""
        watches = [([], "")]
        if peer.name == "ddprun":
            watches.append((["--watch", "preload"], ", --watch preload"))
        for flags, suffix in watches:
            goal = "<= 1" if flags else ""
            for size, mebibytes in [("0.1", 102), ("2", 2048), ("8", 8192)]:
                self.death(peer, flags, mebibytes, signal.SIGKILL,
                           f"worker with {size} GiB killed to its neighbour told{suffix}", goal)
            self.death(peer, flags, 1024, signal.SIGSEGV,
                       f"the same, 1 GiB, SIGSEGV that writes a core{suffix}", goal)

    def lose_node(self, peer):
        """One of two nodes is killed; to the survivor's workers of the next generation in main."""
        what = "one of two nodes killed to survivor's new workers in main"
        samples, never_s = [], None
        with self.job(peer) as job:
            nodes = [job.start("hold", 2, nnodes="1:2", restarts=100,
                               conf="last_call_timeout=60")[0] for _ in range(2)]
            job.must_await(4)
            before = time.monotonic_ns()
            nodes[1].kill()
            fresh = job.await_stamps(2, NEVER_S)
            if fresh:
                samples = [(max(stamp.at_ns for stamp in fresh) - before) / MS]
            else:
                never_s = NEVER_S
        self.table.add(what, "ms", "<= 100", peer.name, samples, never_s)
        return never_s is None

    def all(self, wanted):
        say("warming up")
        for peer in self.peers:
            self.start_eight(peer, is_counted=False)
        measures = {
            "start": lambda peer: self.start_eight(peer, is_counted=True),
            "idle": lambda peer: self.idle_beside_eight(peer, is_counted=True),
            "crash-1": lambda peer: self.crash(
                peer, 1, 4, "worker killed to 4 new workers in main, one node", "<= 30"),
            "crash-2": lambda peer: self.crash(
                peer, 2, 2, "worker killed to 4 new workers in main, two nodes", "<= 60"),
            "lose-node": self.lose_node,
            "death": self.deaths,
            "logs": lambda peer: self.log(
                peer, ["-r", "3"], "8 workers log 100 MB/s: CPU of the launcher", "<= 10"),
            "tee": lambda peer: self.log(
                peer, ["-t", "3"], "the same, also shown with a prefix", "", is_shown=True),
        }
        for name, measure in measures.items():
            if not wanted or name in wanted:
                runs = max(1, self.runs // 5) if name == "idle" else self.runs
                alternate(name, self.peers, measure, runs, self.console)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="per launcher and measure")
    parser.add_argument("--build", default="build/release", help="where ddprun was built")
    parser.add_argument("--torchrun", default=".venv/bin/torchrun", help="the peer")
    parser.add_argument("--json", default="build/bench/launch.json")
    parser.add_argument("--only", action="append", metavar="MEASURE",
                        choices=["start", "idle", "crash-1", "crash-2", "lose-node", "death",
                                 "logs", "tee"])
    parser.add_argument("--beside", metavar="BUILD",
                        help="another build of ddprun, in place of torchrun")
    parser.add_argument("--on-terminal", action="store_true",
                        help="ddprun on a terminal, in place of torchrun")
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)

    wanted = {"ddprun": os.path.join(arguments.build, "bin", "ddprun")}
    if arguments.on_terminal:
        wanted["on a terminal"] = wanted["ddprun"]
    elif arguments.beside:
        wanted["beside"] = os.path.join(os.path.abspath(arguments.beside), "bin", "ddprun")
    else:
        wanted["torchrun"] = os.path.abspath(arguments.torchrun)
    peers = []
    for name, path in wanted.items():
        if os.access(path, os.X_OK):
            peers.append(Peer(name, [path], name == "on a terminal"))
        else:
            say(f"LEFT OUT: {name}: there is no {path}")
    if not peers:
        return 1
    os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
    bench = Bench(arguments, peers)
    bench.all(arguments.only)
    bench.table.write_json(arguments.json, {"runs": arguments.runs, "bench": "launch"})
    print(bench.table.text())
    say(f"samples are in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
