#!/usr/bin/env python3
"""Training the same network in C++ and in Python, both under ddprun, in alternating runs.

The C++ example (examples/train_digits, the worker runtime) beside the Python one
(examples/python_ddp, PyTorch's DistributedDataParallel): one thread per worker, the same batch size
and learning rate. A worker is killed twice: when a standby waits for each slot, as by default a few
seconds after the start, and with --warm off. Nothing is asserted: the table says what was measured
in this run on this machine.
"""

import argparse
import os
import signal
import statistics
import sys
import time

from job import Job, Peer, alternate, await_standbys, say, workers_of
from report import Table

MS = 1e6
CRASHES_PER_JOB = 3  # below the number of restarts a minute that makes ddprun pause
FIRST_STEP = r"^first step: loss "
EPOCH = r"^epoch (\d+)/\d+: .* (\d+) images/s"


class Bench:
    def __init__(self, arguments, peers):
        self.ddprun = [os.path.join(arguments.build, "bin", "ddprun")]
        self.variables = {"PYTHON_EXEC": os.path.abspath(arguments.python)}
        self.log = os.path.join(os.path.dirname(os.path.abspath(arguments.json)),
                                "failed-console.log")
        self.table = Table([peer.name for peer in peers])
        self.runs = arguments.runs
        self.epochs = arguments.epochs
        self.peers = peers

    def job(self, peer):
        return Job(peer, None, self.log)

    def train(self, job, workers, epochs, restarts=0, flags=()):
        """Starts a training that ends after `epochs`; returns the launcher and when."""
        program = [*job.peer.command, "--epochs", str(epochs), "--batch-size", "32", "--lr",
                   "0.002", "--seed", "1", "--checkpoint-dir",
                   os.path.join(job.folder, "checkpoints")]
        return job.launch([*self.ddprun, *flags], program, workers, restarts=restarts,
                          hears_lines=True, variables=self.variables, folder=job.folder)

    def finish(self, job, launcher):
        """Waits for a good end."""
        job.lines.await_line(r"^finished \d+ epochs: ")
        code = launcher.wait(60)
        if code != 0:
            raise RuntimeError(f"{job.peer.name}: the training ended with exit code {code}")

    def start(self, peer, is_counted=True):
        """Command to the end of the first step of the optimiser."""
        with self.job(peer) as job:
            launcher, before = self.train(job, 2, 1)
            first_ns, _ = job.lines.await_line(FIRST_STEP)
            self.finish(job, launcher)
        if is_counted:
            self.table.add("command to first step done, 2 workers", "ms", "<= 400", peer.name,
                           [(first_ns - before) / MS])

    def speed(self, peer, workers):
        """Images a second: of each run the median of all epochs but the first."""
        rates = []
        with self.job(peer) as job:
            launcher, _ = self.train(job, workers, self.epochs)
            for number in range(1, self.epochs + 1):
                _, match = job.lines.await_line(EPOCH)
                if int(match[1]) != number:
                    raise RuntimeError(f"{peer.name}: epoch {match[1]} came, not {number}")
                rates.append(int(match[2]))
            self.finish(job, launcher)
        self.table.add(f"training, {workers} worker{'s' * (workers > 1)}", "images/s",
                       "ratio >= 1.0", peer.name, [statistics.median(rates[1:])],
                       more_is_better=True)

    def crash(self, peer, is_warm):
        """A worker is killed after an epoch; to the first step of the resumed training."""
        samples = []
        with self.job(peer) as job:
            launcher, _ = self.train(job, 2, 100000, restarts=CRASHES_PER_JOB,
                                     flags=[] if is_warm else ["--warm", "off"])
            job.lines.await_line(FIRST_STEP)
            for _ in range(CRASHES_PER_JOB):
                if is_warm:
                    await_standbys(job, launcher, 2)
                job.lines.drop()
                job.lines.await_line(EPOCH)
                victim = workers_of(job, launcher)[1]
                before = time.monotonic_ns()
                os.kill(victim, signal.SIGKILL)
                job.lines.await_line(r"^resumed from ")
                first_ns, _ = job.lines.await_line(FIRST_STEP)
                samples.append((first_ns - before) / MS)
        how = "a standby waits for each (the default)" if is_warm else "--warm off"
        self.table.add(f"worker killed to first step after resume, 2 workers; {how}", "ms", "",
                       peer.name, samples)

    def all(self, wanted):
        alternate("warming up", self.peers, lambda peer: self.start(peer, is_counted=False), 1,
                  self.log)
        measures = {
            "start": self.start,
            "speed-1": lambda peer: self.speed(peer, 1),
            "speed-2": lambda peer: self.speed(peer, 2),
            "crash": lambda peer: self.crash(peer, is_warm=True),
            "crash-cold": lambda peer: self.crash(peer, is_warm=False),
        }
        for name, measure in measures.items():
            if not wanted or name in wanted:
                is_crash = name.startswith("crash")
                runs = -(-self.runs // CRASHES_PER_JOB) if is_crash else self.runs
                alternate(name, self.peers, measure, runs, self.log)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="per language and measure")
    parser.add_argument("--epochs", type=int, default=10, help="of each run that measures speed")
    parser.add_argument("--build", default="build/release", help="where ddprun was built")
    parser.add_argument("--python", default=".venv/bin/python", help="one that has PyTorch")
    parser.add_argument("--json", default="build/bench/runtime.json")
    parser.add_argument("--only", action="append", metavar="MEASURE",
                        choices=["start", "speed-1", "speed-2", "crash", "crash-cold"])
    parser.add_argument("--peers", default="C++,Python", help="which languages to run")
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)

    known = {"C++": [os.path.join(arguments.build, "bin", "train_digits")],
             "Python": [os.path.abspath("examples/python_ddp/train.py")]}
    needed = {"C++": known["C++"][0], "Python": os.path.abspath(arguments.python)}
    peers = []
    for name in arguments.peers.split(","):
        if os.access(needed.get(name, ""), os.X_OK):
            peers.append(Peer(name, known[name]))
        else:
            say(f"LEFT OUT: {name}: there is no {needed.get(name, 'such language')}")
    if not peers:
        return 1
    os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
    bench = Bench(arguments, peers)
    bench.all(arguments.only)
    bench.table.write_json(arguments.json, {"runs": arguments.runs, "epochs": arguments.epochs,
                                            "bench": "runtime"})
    print(bench.table.text())
    say(f"samples are in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
