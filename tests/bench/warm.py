#!/usr/bin/env python3
"""Restarts of training programs: ddprun with standbys, ddprun without, and torchrun, alternating.

The programs are the examples as they are. The Python is a virtual environment that this makes: the
ddprun package, and all of the .venv that has PyTorch; every launcher starts its workers with it. A
kill waits until each slot has its standby, where there are any. Nothing is asserted: the table says
what was measured in this run on this machine.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from job import (PATIENCE_S, Job, Peer, alternate, await_standbys, memory_kib, say,
                 workers_of)
from report import Table

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "python"))
import test_standby  # noqa: E402  (the agent's side of one standby)

MS = 1e6
KILLS_PER_JOB = 3  # below the number of restarts a minute that makes ddprun pause
NEVER_S = 60
FIRST_STEP = r"^first step: loss "
EPOCH = r"^epoch (\d+)/\d+: .* (\d+) images/s"
MODULES = ("numpy,torch,torch.distributed,torch.nn.parallel,torch._dynamo,sklearn.datasets,"
           "sklearn.model_selection")
STANDBYS_MANY = 8

STAMP = """import time
print(time.monotonic_ns(), flush=True)
"""

BIG = """import os, signal, sys, time
def end(number, frame):
    print("told", time.monotonic_ns(), flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
block = bytearray(b"x") * (int(sys.argv[1]) << 20)
print("rank", os.environ["RANK"], "pid", os.getpid(), flush=True)
while True:
    signal.pause()
"""

HOLD = """import signal
print("holds", flush=True)
signal.pause()
"""


class Bench:
    def __init__(self, arguments, peers, environment):
        self.peers = peers
        self.runs = arguments.runs
        self.epochs = arguments.epochs
        self.modules = arguments.warm
        self.build = arguments.build
        self.environment = environment
        self.variables = {"PYTHON_EXEC": environment.python}
        self.plain_python = os.path.abspath(arguments.python)
        self.table = Table([peer.name for peer in peers])
        self.hung = {peer.name: 0 for peer in peers}
        self.log = os.path.join(os.path.dirname(os.path.abspath(arguments.json)),
                                "failed-console.log")
        self.python_program = [os.path.join(ROOT, "examples/python_ddp/train.py")]
        self.cpp_program = ["--no-python", os.path.join(arguments.build, "bin", "train_digits")]

    def job(self, peer):
        return Job(peer, None, self.log)

    def train(self, job, program, slots, nnodes="1"):
        """Starts one node of a training that never ends by itself; returns its launcher."""
        command = [*job.peer.command, "--standalone"] if nnodes == "1" else job.peer.command
        return job.launch(command, [
            *program, "--epochs", "100000", "--batch-size", "32", "--lr", "0.002", "--seed", "1",
            "--checkpoint-dir", os.path.join(job.folder, "checkpoints")], slots, nnodes=nnodes,
            restarts=100, hears_lines=True, variables=self.variables, folder=job.folder)[0]

    def first_step(self, job, before):
        """Returns ms, or None if no step comes: ranks may hang for ever, in Gloo for example."""
        try:
            job.lines.await_line(r"^resumed from ", NEVER_S)
            return (job.lines.await_line(FIRST_STEP, NEVER_S)[0] - before) / MS
        except RuntimeError as error:
            say(f"{job.peer.name} hangs after a kill: {error}")
            self.hung[job.peer.name] += 1
            return None

    def kill(self, peer, program, what, goal, is_warm):
        """A worker is killed; to the first step of the resumed training."""
        samples = []
        with self.job(peer) as job:
            launcher = self.train(job, program, 2)
            job.lines.await_line(FIRST_STEP, PATIENCE_S)
            for _ in range(KILLS_PER_JOB):
                if is_warm:
                    await_standbys(job, launcher, 2)
                job.lines.drop()
                job.lines.await_line(EPOCH, PATIENCE_S)
                victim = workers_of(job, launcher)[-1]
                before = time.monotonic_ns()
                os.kill(victim, signal.SIGKILL)
                took = self.first_step(job, before)
                if took is None:
                    break
                samples.append(took)
        self.table.add(what, "ms", goal, peer.name, samples)

    def kill_python(self, peer):
        self.kill(peer, self.python_program,
                  "Python worker killed to first step after resume, 2 workers", "<= 150",
                  is_warm=peer.name == "warm")

    def kill_cpp(self, peer):
        is_warm = peer.name == "warm"
        if is_warm:  # Modules are Python's; and this is what ddprun does unasked.
            peer = peer._replace(command=peer.command[:1])
        self.kill(peer, self.cpp_program,
                  "C++ worker killed to first step after resume, 2 workers; warm: by default, with "
                  "a standby waiting for each", "<= 100", is_warm)

    def replace(self, peer):
        """Two nodes and a spare: one of the two is lost with all its processes."""
        what = "one of two nodes lost, a spare takes its place, to first step after resume"
        with self.job(peer) as job:
            nodes = [self.train(job, self.python_program, 1, nnodes="2") for _ in range(2)]
            job.lines.await_line(FIRST_STEP, PATIENCE_S)
            spare = self.train(job, self.python_program, 1, nnodes="2")
            if peer.name == "warm":
                for node in (nodes[0], spare):
                    await_standbys(job, node, 1)
            else:
                time.sleep(5)  # Until it waits to be needed.
            job.lines.drop()
            job.lines.await_line(EPOCH, PATIENCE_S)
            lost = job.descendants(lambda pid: True, [nodes[1]])
            before = time.monotonic_ns()
            for pid in lost:
                kill_if_there(pid)
            took = self.first_step(job, before)
        self.table.add(what, "ms", "<= 300", peer.name, [] if took is None else [took], NEVER_S)

    def speed(self, peer):
        """Images a second, the median of many epochs; with standbys, once they wait."""
        with self.job(peer) as job:
            launcher = self.train(job, self.python_program, 2)
            job.lines.await_line(EPOCH, PATIENCE_S)
            if peer.name == "warm":
                await_standbys(job, launcher, 2)
            job.lines.drop()
            rates = [int(job.lines.await_line(EPOCH, PATIENCE_S)[1][2])
                     for _ in range(self.epochs + 1)]
        self.table.add("images/s in steady state, 2 workers", "images/s", ">= 0.99 of cold",
                       peer.name, [statistics.median(rates[1:])], more_is_better=True)

    def deaths(self, peer):
        """A Python worker with much memory is killed; to its neighbour told to end. With the
        ddprun package in its Python and without."""
        if peer.name == "warm":
            return
        script = os.path.join(self.environment.folder, "big.py")
        test_standby.WithEnvironment.write(script, BIG)
        pythons = [(self.environment.python, "")]
        if peer.name == "cold":
            pythons.append((self.plain_python, ", without the package"))
        for python, suffix in pythons:
            for mebibytes in (100, 2048):
                with self.job(peer) as job:
                    launcher, _ = job.launch([*peer.command, "--standalone"],
                                             [script, str(mebibytes)], 2, hears_lines=True,
                                             variables={"PYTHON_EXEC": python})
                    ready = [job.lines.await_line(r"^rank (\d) pid (\d+)", PATIENCE_S)[1]
                             for _ in range(2)]
                    victim = next(int(match[2]) for match in ready if match[1] == "0")
                    time.sleep(0.2)  # Both wait, and so does every other process.
                    before = time.monotonic_ns()
                    os.kill(victim, signal.SIGKILL)
                    told = int(job.lines.await_line(r"^told (\d+)", PATIENCE_S)[1][1])
                    launcher.wait(PATIENCE_S)
                self.table.add(f"Python worker with {mebibytes / 1024:.1f} GiB killed to its "
                               f"neighbour told{suffix}", "ms", "" if suffix else "<= 1",
                               peer.name, [(told - before) / MS])

    def first_line(self, peer):
        """One standby is told its place; to the program's first line. This is its agent. Files are
        compared when workers are stopped, as the agent has it, or only then, as on a spare."""
        if peer.name != "warm":
            return
        self.first_line_of(peer, "", "<= 5", is_compared=True)
        self.first_line_of(peer, ", its files compared only then", "", is_compared=False)

    def first_line_of(self, peer, suffix, goal, is_compared):
        script = os.path.join(self.environment.folder, "stamp.py")
        test_standby.WithEnvironment.write(script, STAMP)
        standby = test_standby.Standby(self.environment, script)
        standby.socket.settimeout(PATIENCE_S)
        standby.says()
        standby.order(*self.modules.split(","))
        while (said := standby.says())[0] != "ready":
            if said[0] == "unfit":
                raise RuntimeError(f"unfit: {said[1:]}")
        if is_compared:
            standby.socket.send(b"check")
            time.sleep(0.2)  # It does not answer.
        before = time.monotonic_ns()
        written, _ = standby.release({"RANK": "0", "WORLD_SIZE": "1"})
        standby.end()
        self.table.add("told its place to the program's first line" + suffix, "ms", goal,
                       peer.name, [(int(written) - before) / MS])

    def memory(self, peer):
        """Measures the memory of standbys whose worker itself imports nothing."""
        if peer.name != "warm":
            return
        script = os.path.join(self.environment.folder, "hold.py")
        test_standby.WithEnvironment.write(script, HOLD)
        for count in (1, STANDBYS_MANY):
            with self.job(peer) as job:
                launcher, _ = job.launch([*peer.command, "--standalone"], [script], count,
                                         restarts=9, hears_lines=True, variables=self.variables)
                standbys = await_standbys(job, launcher, count)
                mebibytes = [[kib / 1024 for kib in memory_kib(pid)] for pid in standbys]
            text = "a standby" if count == 1 else f"each of {count} standbys"
            for index, name in enumerate(("RSS", "PSS")):
                self.table.add(f"memory of {text}, {name}", "MiB", "", peer.name,
                               [statistics.mean(both[index] for both in mebibytes)])

    def all(self, wanted):
        measures = {
            "kill": self.kill_python,
            "replace": self.replace,
            "kill-cpp": self.kill_cpp,
            "first-line": self.first_line,
            "death": self.deaths,
            "speed": self.speed,
            "memory": self.memory,
        }
        for name, measure in measures.items():
            if not wanted or name in wanted:
                runs = {"kill": -(-self.runs // KILLS_PER_JOB),
                        "kill-cpp": -(-self.runs // KILLS_PER_JOB), "memory": 1}.get(
                            name, self.runs)
                alternate(name, self.peers, measure, runs, self.log)


def kill_if_there(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Environment(test_standby.WithEnvironment):
    """A virtual environment of the .venv's Python: the ddprun package and the .venv's packages."""

    @classmethod
    def make(cls, folder, python):
        cls.folder = folder
        prefix = os.path.join(folder, "environment")
        subprocess.run([python, "-m", "venv", "--without-pip", prefix], check=True)
        cls.python = os.path.join(prefix, "bin", "python")
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages, theirs = (subprocess.run([one, "-c", ask], check=True, text=True,
                                           capture_output=True).stdout.strip()
                            for one in (cls.python, python))
        os.symlink(os.path.join(ROOT, "worker_runtime/python/ddprun"),
                   os.path.join(packages, "ddprun"))
        cls.write(os.path.join(packages, "pytorch.pth"), theirs + "\n")
        cls.variables = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HOME": folder}
        return cls


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="per launcher and measure")
    parser.add_argument("--epochs", type=int, default=40, help="of each run that measures speed")
    parser.add_argument("--build", default="build/release", help="where ddprun was built")
    parser.add_argument("--python", default=".venv/bin/python", help="one that has PyTorch")
    parser.add_argument("--torchrun", default=".venv/bin/torchrun", help="the peer")
    parser.add_argument("--json", default="build/bench/warm.json")
    parser.add_argument("--warm", default=MODULES, help="what standbys import")
    parser.add_argument("--only", action="append", metavar="MEASURE",
                        choices=["kill", "replace", "kill-cpp", "first-line", "death", "speed",
                                 "memory"])
    parser.add_argument("--peers", default="warm,cold,torchrun", help="what to run")
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)

    ddprun = os.path.join(arguments.build, "bin", "ddprun")
    known = {"warm": [ddprun, "--warm", arguments.warm], "cold": [ddprun, "--warm", "off"],
             "torchrun": [os.path.abspath(arguments.torchrun)]}
    peers = []
    for name in arguments.peers.split(","):
        if os.access(known.get(name, [""])[0], os.X_OK):
            peers.append(Peer(name, known[name]))
        else:
            say(f"LEFT OUT: {name}: there is no {known.get(name, ['such launcher'])[0]}")
    if not peers:
        return 1
    os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ddprun-warm-bench-") as folder:
        bench = Bench(arguments, peers, Environment.make(folder, arguments.python))
        bench.all(arguments.only)
    bench.table.write_json(arguments.json, {"runs": arguments.runs, "bench": "warm",
                                            "modules": arguments.warm,
                                            f"no first step within {NEVER_S} s": bench.hung})
    print(bench.table.text())
    for name, count in bench.hung.items():
        if count:
            say(f"{name}: after {count} kills no first step came within {NEVER_S} s")
    say(f"samples are in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
