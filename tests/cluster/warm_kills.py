"""Whole jobs with standbys, of which one process is killed: afterwards nothing is left of them.

Method: each cycle is a job of a real ddprun with two workers. Each worker has a descendant in a
session of its own, an orphan that SIGTERM does not end. At a random moment, which may be that of a
restart, the agent, a keeper, a worker or a standby is killed by SIGKILL. The job then ends: with 0
once its workers are let go, at once if its agent was killed. A cycle is a process that adopts
orphans: when it has no child any more, no process has survived. A lock shows that generations
never overlap on a slot: worker and descendant hold the lock as long as they live.
Needs no torch. The worker is a script, or PROGRAM, which does the same in C++.

usage: warm_kills.py BIN_DIR LEVEL CYCLES [PROGRAM]
"""

import collections
import ctypes
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import unittest

import warm
from process_tree import descendants
from warm_deaths import stat_of

PATIENCE_S = 120  # on a machine that has no time for it
JOBS_AT_ONCE = 12  # They wait most of the time: standbys are prepared after 5 s.
MOMENT_S = 0.02  # A restart takes about 10 ms.
KINDS = ("agent", "keeper", "worker", "standby")
PR_SET_CHILD_SUBREAPER = 36

WORKER = """
import fcntl, os, signal, sys
slot = open(os.environ["OUT"] + "/slot" + os.environ["LOCAL_RANK"], "w")
try:
    fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    os.open(os.environ["OUT"] + "/overlap", os.O_CREAT | os.O_WRONLY)
def tell(what):
    with open(os.environ["TOLD"], "w") as told:
        told.write(what)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    tell("descendant\\n")
    while True:
        signal.pause()
os.wait()
tell("worker\\n")
with open(os.environ["OUT"] + "/held") as held:
    fcntl.flock(held, fcntl.LOCK_SH)
"""


class Survives(Exception):
    pass


def kind_of(pid):
    """Returns the kind of a process below an agent, or None if this test does not kill it."""
    try:
        if stat_of(pid)[0] == "ddprun-keeper":
            return "keeper"
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read()
        if os.getsid(pid) != pid or b"LOCAL_RANK=" not in variables:
            return None
        return "standby" if b"DDPRUN_STANDBY=" in variables else "worker"
    except OSError:
        return None  # It has ended.


class Cycle:
    """One job and one kill, in a process of its own."""

    def __init__(self, jobs, number):
        self.random = random.Random(f"{LEVEL} {number}")
        self.wanted = KINDS[number % len(KINDS)]
        self.moment = self.random.choice(["workers", "a standby", "standbys", "restart"])
        self.folder = jobs.path(f"cycle-{number}")
        os.mkdir(self.folder)
        os.mkfifo(self.file("told"))
        self.told = open(os.open(self.file("told"), os.O_RDWR | os.O_CLOEXEC), encoding="ascii")
        self.seen = collections.Counter()
        self.held = open(self.file("held"), "w", encoding="ascii")
        fcntl.flock(self.held, fcntl.LOCK_EX)
        program = {"program": ["--warm", "on", PROGRAM]} if PROGRAM else {}
        self.job = jobs.start("--containment", LEVEL, OUT=self.folder, TOLD=self.file("told"),
                              **program)

    def file(self, name):
        return os.path.join(self.folder, name)

    def await_told(self, what, count):
        while self.seen[what] < count:
            line = self.told.readline().strip()
            self.seen["standby" if line.isdigit() else line] += 1

    def kill(self, kind):
        """Returns what was killed: the agent if there is none of this kind."""
        found = [pid for pid in descendants(self.job.pid) if kind_of(pid) == kind]
        try:
            os.kill(self.random.choice(found or [self.job.pid]), signal.SIGKILL)
        except ProcessLookupError:
            return "nobody"
        return kind if found else "agent"

    def run(self):
        """Returns what was killed, and how long after ddprun's end the last process was gone."""
        self.await_told("worker", 2)
        self.await_told("descendant", 2)
        if self.moment != "workers":
            self.await_told("standby", 1 if self.moment == "a standby" else 2)
        if self.moment == "restart":
            self.kill("worker")
            time.sleep(self.random.uniform(0, MOMENT_S))
        killed = self.kill(self.wanted)
        if killed == "worker":
            self.await_told("worker", 4)
        fcntl.flock(self.held, fcntl.LOCK_UN)
        self.job.wait()  # It says so little that it waits for no reader.
        ended = time.monotonic()
        said, _ = self.job.communicate()
        wanted_code = -signal.SIGKILL if killed == "agent" else 0
        if self.job.returncode != wanted_code:
            raise Survives(f"it exited with {self.job.returncode}; it said:\n{said}")
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            pass  # There is none any more.
        if os.path.exists(self.file("overlap")):
            raise Survives(f"a worker started beside an earlier one; it said:\n{said}")
        return f"{killed} {1000 * (time.monotonic() - ended):.0f}"

    def survivors(self):
        found = []
        for pid in descendants(os.getpid()):
            try:
                found.append((pid, *stat_of(pid)))
            except OSError:
                pass  # It has ended.
        return found


def run_cycle(jobs, number):
    """In a process that was forked for this; never returns."""
    def give_up(*_):
        raise Survives(f"after {PATIENCE_S} s there is {cycle.survivors()}, {cycle.seen}")

    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        cycle = Cycle(jobs, number)
        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(PATIENCE_S)
        jobs.write(cycle.file("result"), cycle.run())
        code = 0
    except Survives as error:
        print(f"cycle {number}: {cycle.wanted} at {cycle.moment}: {error}", flush=True)
        for pid, *_ in cycle.survivors():
            os.kill(pid, signal.SIGKILL)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Kills(warm.Jobs):
    def test_whoever_is_killed_nothing_survives(self):
        self.write(self.path("train.py"), WORKER)
        self.leave_out_where_it_cannot_be_had()
        running, failed, killed, longest = {}, [], collections.Counter(), 0
        for number in [*range(CYCLES), None]:
            while len(running) == JOBS_AT_ONCE or running and number is None:
                pid, status = os.wait()
                ended = running.pop(pid)
                if status != 0:
                    failed.append(ended)
                    continue
                with open(self.path(f"cycle-{ended}/result"), encoding="ascii") as file:
                    who, took_ms = file.read().split()
                killed[who] += 1
                longest = max(longest, int(took_ms))
            if number is not None:
                pid = os.fork()
                if pid == 0:
                    run_cycle(self, number)
                running[pid] = number
        print(*(f"{what} {count} times" for what, count in sorted(killed.items())),
              f"the last process was gone {longest} ms after ddprun", sep=", ")
        self.assertEqual(failed, [])

    def leave_out_where_it_cannot_be_had(self):
        trial = subprocess.run(
            [os.path.join(warm.BIN, "ddprun"), "--containment", LEVEL, "--dry-run", "train.py"],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        if trial.returncode != 0:
            print(f"LEFT OUT: --containment {LEVEL}: {trial.stdout}")
            self.skipTest("this level cannot be had here")


if __name__ == "__main__":
    warm.BIN = os.path.abspath(sys.argv.pop(1))
    LEVEL, CYCLES = sys.argv.pop(1), int(sys.argv.pop(1))
    PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    unittest.main()
