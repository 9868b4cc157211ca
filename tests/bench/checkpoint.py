#!/usr/bin/env python3
"""Saving and resuming: the worker runtime beside torch.save, dcp.save and dcp.async_save.

checkpoint_rank.cpp and checkpoint_peer.py train the same network: parameters and momentum, one
thread per rank. Each run starts all ranks afresh and has ten rounds. In a round ddprun and PyTorch
take turns at every measure, with a sync() in between. Each round also measures three floors:
memcpy() into memory that has its pages, a write past the page cache with fsync, and one exchange
between the ranks. The bench asserts nothing: the table holds the figures of this run on the file
system of --folder.

memory_rank.cpp, under ddprun --memory-checkpoints, does the same through the memory of its nodes
and through the disk in turn: two ranks on one node, and on two nodes of this machine, each with a
copy on the other one, in clear and through TLS. Its floors: memcpy() of the rank's share, or of the
whole state that each rank loads, and the share through a TCP connection.
"""

import argparse
import os
import select
import shutil
import subprocess
import sys
from typing import NamedTuple

from job import PATIENCE_S, free_port, say, start_ranks
from report import Table

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS = 10
LAYER_MEBIBYTES = 32
CALIBRATION = 50  # multiplications
MS = 1e3
MEASURES = ("save", "async", "hidden", "load", "memory")


class Times(NamedTuple):
    """Seconds: of the slowest rank, and the CPU of all."""
    stall: float
    durable: float
    work: float
    cpu: float


class Ranks:
    """The ranks of one program, which answer the lines that they are sent. A context."""

    def __init__(self, name, command, world, log):
        self.name = name
        self.ranks = start_ranks(command, world, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=log, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            if any(error):
                rank.kill()
            rank.wait(PATIENCE_S)
            rank.stdout.close()

    def ask(self, line):
        for rank in self.ranks:
            rank.stdin.write(line + "\n")
            rank.stdin.flush()
        answers = []
        for rank in self.ranks:
            if not select.select([rank.stdout], [], [], PATIENCE_S)[0]:
                raise RuntimeError(f"{self.name}: no answer to '{line}' within {PATIENCE_S} s")
            answer = rank.stdout.readline()
            try:
                answers.append([float(word) for word in answer.split()])
                Times(*answers[-1])
            except (TypeError, ValueError) as error:
                raise RuntimeError(f"{self.name}: '{line}' was answered by '{answer}'") from error
        stall, durable, work, cpu = zip(*answers)
        return Times(max(stall), max(durable), max(work), sum(cpu))


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.wanted = set(arguments.only or MEASURES)
        self.table = Table(("ddprun", "beside"))
        self.log = os.path.join(os.path.dirname(os.path.abspath(arguments.json)),
                                "failed-console.log")
        self.loads = []

    def session(self, mebibytes, world, log):
        """Runs ten rounds in new processes; returns a list of Times for each measure."""
        ours_in = os.path.join(self.arguments.folder, "ours")
        theirs_in = os.path.join(self.arguments.folder, "theirs")
        os.makedirs(ours_in)
        os.mkdir(theirs_in)
        ours = [os.path.join(self.arguments.build, "tests", "checkpoint_rank"), str(mebibytes),
                ours_in]
        theirs = [self.arguments.python, os.path.join(HERE, "checkpoint_peer.py"), str(mebibytes)]
        samples = {}

        def measure(ranks, command, multiplications=0, path=""):
            line = f"{command} {multiplications} {os.path.join(theirs_in, path) if path else ''}"
            key = f"{command}, hidden" if multiplications else command
            samples.setdefault(key, []).append(ranks.ask(line.strip()))
            os.sync()  # Work that this measure leaves to the disk must not slow the next one.

        with Ranks("ddprun", ours, world, log) as own, Ranks("PyTorch", theirs, world, log) as peer:
            peer.ask("compute 1 -")  # Both have started.
            once = own.ask(f"compute {CALIBRATION}").work / CALIBRATION
            count = max(1, round(hidden_ms(mebibytes) / MS / once))
            for _ in range(ROUNDS):
                self.loads.append(os.getloadavg()[0])
                measure(own, "memcpy")
                measure(own, "direct")
                if self.wanted & {"save", "load"}:
                    measure(own, "save")
                    measure(own, "save_removing")
                    measure(peer, "torch_save", path="whole.pt")
                    measure(peer, "dcp_save", path="dcp")
                if "load" in self.wanted:
                    measure(own, "resume")
                    measure(peer, "torch_load", path="whole.pt")
                    measure(peer, "torch_load_mapped", path="whole.pt")
                    measure(peer, "dcp_load", path="dcp")
                if "async" in self.wanted:
                    measure(own, "beside")
                    measure(peer, "async_save", path="async")
                    measure(peer, "async_save_staged", path="async-staged")
                if "hidden" in self.wanted:
                    measure(own, "exchange")
                    measure(own, "beside", count)
                    measure(peer, "async_save", count, "async-hidden")
                    measure(peer, "async_save_staged", count, "async-staged-hidden")
                    samples.setdefault("compute", []).append(own.ask(f"compute {count}"))
                for folder in (ours_in, theirs_in):
                    shutil.rmtree(folder)
                    os.mkdir(folder)
                os.sync()
        return samples

    def measure(self, mebibytes, world):
        sessions = []
        for run in range(self.arguments.runs):
            say(f"{label_of(mebibytes, world)}: run {run + 1} of {self.arguments.runs}")
            with open(self.log, "wb") as log:
                try:
                    sessions.append(self.session(mebibytes, world, log))
                except RuntimeError as error:
                    say(f"FAILED: {error}; its console is in {self.log}")
                    return
                finally:
                    shutil.rmtree(self.arguments.folder, ignore_errors=True)
        Rows(self.table, sessions, mebibytes, world).add(self.wanted)

    def memory_session(self, mebibytes, nodes, tls, log):
        """The times of each round but the first, by measure: of the slowest rank, in ms."""
        folder = os.path.join(os.path.abspath(self.arguments.folder), "memory")
        os.makedirs(folder)
        flags = ["--nproc-per-node", str(2 // nodes), "--warm", "off", "--memory-checkpoints",
                 "16G"]
        if nodes > 1:
            flags += ["--nnodes", str(nodes), "--memory-replicas", "1", "--rdzv-id", "bench",
                      "--rdzv-endpoint", f"127.0.0.1:{free_port()}", *tls]
        command = [os.path.join(self.arguments.build, "bin", "ddprun"), *flags,
                   os.path.join(self.arguments.build, "tests", "memory_rank"), str(mebibytes),
                   folder, str(ROUNDS)]
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("PET_", "TORCHELASTIC_", "DDPRUN_"))}
        environment["OMP_NUM_THREADS"] = "1"
        self.loads.append(os.getloadavg()[0])
        jobs = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=log, text=True)
                for _ in range(nodes)]
        said = [job.communicate()[0] for job in jobs]
        if any(job.returncode for job in jobs):
            raise RuntimeError(f"{' '.join(command)} has failed")
        ranks = [{} for _ in range(2)]
        for node, output in enumerate(said):
            for words in map(str.split, output.splitlines()):
                if words[:1] == ["time"]:
                    # The ranks of a node say the same measures, in any order.
                    rounds = [rank.setdefault(words[1], []) for rank in ranks[node::nodes]]
                    min(rounds, key=len).append(float(words[2]) * MS)
        return {name: [max(times) for times in zip(*(rank[name] for rank in ranks))][1:]
                for name in ranks[0]}

    def measure_memory(self, mebibytes):
        certificates = os.path.join(os.path.dirname(os.path.abspath(self.arguments.json)),
                                    "certificates")
        with_tls = make_certificate(certificates)
        for where, nodes, tls in (("1 node", 1, []), ("2 nodes, a copy on the other", 2, []),
                                  ("2 nodes, a copy through TLS", 2, with_tls)):
            samples = {}
            for run in range(self.arguments.runs):
                say(f"{mebibytes} MiB in memory, {where}: run {run + 1} of {self.arguments.runs}")
                with open(self.log, "wb") as log:
                    try:
                        for name, times in self.memory_session(mebibytes, nodes, tls, log).items():
                            samples.setdefault(name, []).extend(times)
                    except RuntimeError as error:
                        say(f"FAILED: {error}; its console is in {self.log}")
                        return
                    finally:
                        shutil.rmtree(self.arguments.folder, ignore_errors=True)
            add_memory(self.table, f"{mebibytes} MiB, 2 ranks, {where}", samples, nodes > 1)


def make_certificate(folder):
    """One for 127.0.0.1 that is its own authority; the flags that name it."""
    os.makedirs(folder, exist_ok=True)
    cert, key = (os.path.join(folder, name) for name in ("cert.pem", "key.pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=bench",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    return ["--tls-cert", cert, "--tls-key", key, "--tls-ca", cert]


def add_memory(table, label, samples, has_copies):
    rows = [("resume() from memory; memcpy of the whole state", "ratio >= 0.67", "resume-memory",
             "copy-whole"),
            ("resume() from memory; from the page cache", "", "resume-memory", "resume-disk"),
            ("save_async() into memory: stall; memcpy of the share", "", "save-memory-stall",
             "copy-share"),
            ("save_async(): stall, into memory; onto the disk", "", "save-memory-stall",
             "save-disk-stall"),
            ("save_async() until kept in memory; until on the disk", "", "save-memory",
             "save-disk")]
    if has_copies:
        rows.append(("save_async() until kept on both nodes; the share through a socket", "",
                     "save-memory", "socket-share"))
    for what, goal, ours, theirs in rows:
        table.add(f"{label}: {what}", "ms", goal, "ddprun", samples[ours])
        table.add(f"{label}: {what}", "ms", goal, "beside", samples[theirs])


def hidden_ms(mebibytes):
    """The length of a computation that can hide the copy."""
    return mebibytes / 2


def label_of(mebibytes, world):
    return f"{mebibytes} MiB, {world} rank{'s' * (world > 1)}"


class Rows:
    """The table's rows of one size and world."""

    def __init__(self, table, sessions, mebibytes, world):
        self.table = table
        self.sessions = sessions
        self.label = label_of(mebibytes, world)
        self.mebibytes = mebibytes

    def later(self, command, of):
        """Milliseconds of all rounds but the first, which has rows of its own."""
        return [of(times) * MS for session in self.sessions for times in session[command][1:]]

    def compare(self, what, goal, ours, theirs, unit="ms"):
        what = f"{self.label}: {what}"
        self.table.add(what, unit, goal, "ddprun", ours)
        self.table.add(what, unit, goal, "beside", theirs)

    def add(self, wanted):
        if "save" in wanted:
            self.add_save()
        if "async" in wanted:
            self.add_async()
        if "hidden" in wanted:
            self.add_hidden()
        if "load" in wanted:
            self.add_load()

    def cpu(self, command):
        return [seconds / MS * 1024 / self.mebibytes
                for seconds in self.later(command, lambda times: times.cpu)]

    def add_save(self):
        ours = self.later("save", lambda times: times.durable)
        for what, goal, command, of in (
                ("torch.save, which syncs nothing", "", "torch_save", lambda times: times.stall),
                ("torch.save, then fsync", "", "torch_save", lambda times: times.durable),
                ("dcp.save", "", "dcp_save", lambda times: times.durable),
                ("the disk: O_DIRECT, fsync", "ratio >= 0.77", "direct",
                 lambda times: times.durable)):
            self.compare(f"save(); {what}", goal, ours, self.later(command, of))
        self.compare("save(), which also removes the save before it; save()", "",
                     self.later("save_removing", lambda times: times.stall), ours)
        self.add_first("save()", "save", lambda times: times.durable)
        for command, name in (("torch_save", "torch.save"), ("dcp_save", "dcp.save")):
            self.compare(f"CPU of save(); {name}", "", self.cpu("save"), self.cpu(command), "s/GiB")

    def add_first(self, what, command, of):
        firsts, tenths = ([of(session[command][index]) * MS for session in self.sessions]
                          for index in (0, ROUNDS - 1))
        self.compare(f"{what}, the first of a process; the tenth", "ratio >= 1.0", firsts, tenths)

    def add_async(self):
        stall = self.later("beside", lambda times: times.stall)
        durable = self.later("beside", lambda times: times.durable)
        self.compare("save_async(), then a step at once: stall; memcpy", "ratio >= 0.83", stall,
                     self.later("memcpy", lambda times: times.stall))
        for command, name, goal in (("async_save", "dcp.async_save", "ratio >= 3"),
                                    ("async_save_staged", "dcp.async_save, own stager", "")):
            self.compare(f"save_async(), then a step at once: stall; {name}", goal, stall,
                         self.later(command, lambda times: times.stall))
            self.compare(f"save_async() until on the disk; {name}", "", durable,
                         self.later(command, lambda times: times.durable))
            self.compare(f"CPU of save_async(); {name}", "", self.cpu("beside"),
                         self.cpu(command), "s/GiB")
        self.compare("save_async() until on the disk; the disk: O_DIRECT, fsync", "ratio >= 0.77",
                     durable, self.later("direct", lambda times: times.durable))
        self.add_first("save_async(), then a step at once: stall", "beside",
                       lambda times: times.stall)

    def added(self, command):
        """The computation and the stall beside the computation alone, in the same round."""
        return [(times.stall + times.work - alone.work) * MS
                for session in self.sessions
                for times, alone in list(zip(session[command], session["compute"]))[1:]]

    def add_hidden(self):
        ours = "beside, hidden"
        computation = f"about {hidden_ms(self.mebibytes):.0f} ms of computation"
        self.compare(f"save_async(), then {computation}: stall; one exchange between the ranks", "",
                     self.later(ours, lambda times: times.stall),
                     self.later("exchange", lambda times: times.stall))
        for command, name, goal in (
                ("async_save, hidden", "dcp.async_save", "<= 1 ms"),
                ("async_save_staged, hidden", "dcp.async_save, own stager", "")):
            self.compare(f"save_async(), then {computation}: stall; {name}", goal,
                         self.later(ours, lambda times: times.stall),
                         self.later(command, lambda times: times.stall))
            self.compare(f"the same: by how much {computation} and the stall are longer; {name}",
                         "", self.added(ours), self.added(command))

    def add_load(self):
        ours = self.later("resume", lambda times: times.stall)
        for command, name in (("torch_load", "torch.load"),
                              ("torch_load_mapped", "torch.load(mmap=True)"),
                              ("dcp_load", "dcp.load"), ("memcpy", "memcpy")):
            self.compare(f"resume(), from the page cache; {name}", "", ours,
                         self.later(command, lambda times: times.stall))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5,
                        help=f"per size and world, each of {ROUNDS} rounds in new processes")
    parser.add_argument("--mebibytes", type=int, action="append", metavar="N",
                        help=f"of the state, a multiple of {LAYER_MEBIBYTES}; 256 and 1024")
    parser.add_argument("--ranks", type=int, action="append", metavar="N", help="1 and 2")
    parser.add_argument("--only", action="append", metavar="MEASURE", choices=MEASURES)
    parser.add_argument("--folder", default="build/bench/checkpoints",
                        help="for the checkpoints, on a disk; it is removed")
    parser.add_argument("--build", default="build/release", help="where checkpoint_rank was built")
    parser.add_argument("--python", default=".venv/bin/python", help="one that has PyTorch")
    parser.add_argument("--json", default="build/bench/checkpoint.json")
    arguments = parser.parse_args()
    sizes = arguments.mebibytes or [256, 1024]
    if any(size <= 0 or size % LAYER_MEBIBYTES for size in sizes):
        parser.error(f"--mebibytes: a multiple of {LAYER_MEBIBYTES}")
    if os.path.exists(arguments.folder):
        parser.error(f"--folder: {arguments.folder} exists; remove it or name another one")
    os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
    bench = Bench(arguments)
    for size in sizes:
        for world in arguments.ranks or [1, 2]:
            if bench.wanted - {"memory"}:
                bench.measure(size, world)
            if world == 2 and "memory" in bench.wanted:
                bench.measure_memory(size)
            # After each: the next ones take minutes, and may be interrupted.
            bench.table.write_json(arguments.json,
                                   {"bench": "checkpoint", "runs": arguments.runs,
                                    "rounds": ROUNDS, "load_averages": bench.loads})
    print(bench.table.text())
    if bench.loads:
        say(f"load average {min(bench.loads):.1f} to {max(bench.loads):.1f}")
    say(f"samples are in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
