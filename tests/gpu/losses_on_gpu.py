#!/usr/bin/env python3
"""A training of two ranks on GPUs in which ranks die, and NCCL fails, at every place of a step.

usage: losses_on_gpu.py --build FOLDER [--on gpu|cpu] [--fake-gpu FOLDER] [--kills N] [--seed N]

Every survivor ends within its bound and names the peer. The hashes of its parameters after each
step, after the loss, and of each checkpoint that is resumed from are those of a training in which
no rank died. --kills is the number of kills at each place, and four times the number of failures
of each kind that NCCL has at each place at which a rank calls NCCL ($DDPRUN_GPU_KILLS, else 4).
Needs two GPUs, and skips aloud without.
"""

import argparse
import collections
import os
import random
import re
import statistics
import sys
import tempfile
import unittest

import ranks as of_ranks
from ranks import say

WORLD = 2
PLACES = ["init", "copy", "collective", "reducer", "save"]
PLACES_WITH_NCCL = {"init", "collective", "reducer"}  # copies and saves call nothing of it
TIMEOUT_MS = 3000  # of a collective, where it is to be late
LONG_MS = 600_000  # no collective takes as long
BOUND_S = 60  # of a survivor, from the loss to its end
LOST, KILLED = 4, -9
LINKS = ("nvlink", "network")  # between the fake GPUs
STEPS_WITH_FAULTS = 3
options = argparse.Namespace()


def program(name):
    return os.path.join(options.build, "tests", name)


class Training:
    """The generations of one training."""

    def __init__(self, folder):
        self.folder = folder
        self.variables = {"CUDA_VISIBLE_DEVICES": ""} if options.on == "cpu" else {}
        if options.fake_gpu:
            self.variables.update(DDPRUN_FAKE_GPU_TASK_DELAY_US=50, DDPRUN_FAKE_GPU_POISON=1,
                                  DDPRUN_FAKE_GPU_EXIT_DELAY_MS=300)

    def start(self, steps, timeout_ms=LONG_MS, of_rank=None):
        return of_ranks.Ranks(WORLD, [program("endure"), self.folder, str(steps), str(timeout_ms)],
                              program("gpu_peer"), self.variables, of_rank)


class Undisturbed:
    """The training in which no rank dies: the parameters after each step, how long each place
    takes, in microseconds, and the numbers of NCCL's operations that a rank begins at each place of
    the first steps."""

    def __init__(self, steps):
        self.hashes = {}
        self.times = collections.defaultdict(list)
        self.operations = collections.defaultdict(list)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            with Training(folder).start(steps) as ranks:
                codes = ranks.wait()
                text = ranks.text(0)
        if codes != [0] * WORLD:
            raise RuntimeError(f"the training in which nobody dies ends with {codes}:\n{text}")
        for step, hash, times in re.findall(r"^(?:resumed|step) (\d+) (\w{32})(.*)$", text,
                                            re.MULTILINE):
            self.hashes[int(step)] = hash
            for place, time, first, end in re.findall(r"(\w+) (\d+) (\d+) (\d+)", times):
                self.times[place].append(int(time))
                if int(step) <= STEPS_WITH_FAULTS:
                    self.operations[place] += range(int(first), int(end))

    def time_in(self, place):
        return statistics.median(self.times[place])

    def require(self, text):
        """That all which a rank said is right."""
        told = re.findall(r"^(?:resumed|step|holds) (\d+) (\w{32})", text, re.MULTILINE)
        if "wrong:" in text or any(self.hashes[int(step)] != hash for step, hash in told):
            raise AssertionError(f"not what it is where nobody dies:\n{text}")


class LossesOnGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dice = random.Random(options.seed)
        # A kill is meant for one of the three steps behind a checkpoint. On a busy machine it may
        # come later, and must find the training at work.
        cls.last = 25 * options.kills + STEPS_WITH_FAULTS
        cls.undisturbed = Undisturbed(cls.last)
        say(f"seed {options.seed}; microseconds of each place: " +
            ", ".join(f"{place} {cls.undisturbed.time_in(place):.0f}" for place in PLACES) +
            f"; NCCL's operations of {STEPS_WITH_FAULTS} steps: {dict(cls.undisturbed.operations)}")

    def setUp(self):
        self.begin()

    def begin(self):
        """A training, from its first step on."""
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.training = Training(folder.name)

    def require_lost(self, ranks, rank, pattern):
        """That `rank` has ended with what it must say; where it learnt of the loss, and when."""
        if not ranks.is_over_within(rank, BOUND_S):
            ranks.processes[rank].kill()
            self.fail(f"rank {rank} has not ended {BOUND_S} s after the loss:\n{ranks.text(rank)}")
        text = ranks.text(rank)
        self.undisturbed.require(text)
        self.assertEqual(ranks.processes[rank].returncode, LOST, text)
        place, nanoseconds, why = re.search(r"^lost in (\w+) at (\d+): (.*)$", text,
                                            re.MULTILINE).groups()
        self.assertRegex(why, pattern)
        if place != "init":
            self.assertRegex(text, "(?m)^holds ")
        return place, int(nanoseconds)

    def kill_at(self, place):
        """A generation in which a rank dies there; where the other one learnt of it, and after how
        many milliseconds."""
        victim = self.dice.randrange(WORLD)
        survivor = 1 - victim
        step = 0 if place == "init" else self.dice.randrange(1, 4)
        delay = self.dice.uniform(0, 1.1 * self.undisturbed.time_in(place))
        if options.fake_gpu:
            self.training.variables["DDPRUN_FAKE_GPU_LINK"] = self.dice.choice(LINKS)
        with self.training.start(self.last, of_rank={
                victim: {"ENDURE_DEATH": f"{place} {step} {delay:.0f}"}}) as ranks:
            self.assertTrue(ranks.is_over_within(victim, of_ranks.DEADLINE))
            died = ranks.text(victim)
            self.undisturbed.require(died)
            self.assertEqual(ranks.processes[victim].returncode, KILLED, died)
            where, when = self.require_lost(
                ranks, survivor,
                f"rank {victim} at" + ("|could not join" if place == "init" else ""))
        dead = int(re.search(r"^dies at (\d+)$", died, re.MULTILINE)[1])
        return where, (when - dead) / 1e6

    def test_kills_at_every_place(self):
        """Assumed of NCCL: over NVLink it waits for ever for a dead peer, over a network it reports
        an error."""
        for place in PLACES:
            self.begin()
            learnt, times = collections.Counter(), []
            for _ in range(options.kills):
                where, after = self.kill_at(place)
                learnt[where] += 1
                times.append(after)
            times.sort()
            say(f"{options.kills} kills in {place}: the other rank learnt of it in " +
                ", ".join(f"{where} ({count})" for where, count in learnt.most_common()) +
                f"; after {statistics.median(times):.0f} ms, {times[-1]:.0f} at most")
            self.require_last_checkpoint()

    def test_a_checkpoint_of_gpus_goes_on_on_cpus(self):
        if options.on == "cpu":
            self.skipTest("needs 2 GPUs")
        with self.training.start(3) as ranks:
            self.assertEqual(ranks.wait(), [0, 0], ranks.text(0))
        self.training.variables["CUDA_VISIBLE_DEVICES"] = ""
        self.require_last_checkpoint()

    def require_last_checkpoint(self):
        with self.training.start(0) as ranks:  # no step more
            self.assertEqual(ranks.wait(), [0, 0], ranks.text(0))
            self.undisturbed.require(ranks.text(0))

    def fail_at(self, place, fault, timeout_ms=LONG_MS):
        """A generation in which NCCL fails so for one rank; the two, and that one."""
        victim = self.dice.randrange(WORLD)
        say(f"rank {victim} has {fault} in {place}")
        if options.fake_gpu:
            self.training.variables["DDPRUN_FAKE_GPU_LINK"] = self.dice.choice(LINKS)
        ranks = self.training.start(STEPS_WITH_FAULTS, timeout_ms, of_rank={
            victim: {"DDPRUN_FAKE_GPU_NCCL_FAULT": fault}})
        self.addCleanup(ranks.__exit__)
        return ranks, victim

    def faults_at_places(self, kind):
        """Pairs of a place and a fault of that kind there, so many of each place."""
        if not options.fake_gpu or options.on == "cpu":
            self.skipTest("needs a fault of the fake GPU (--fake-gpu)")
        count = max(1, options.kills // 4)
        if kind.startswith("init-"):
            return [("init", kind)] * count
        places = {place: numbers
                  for place, numbers in self.undisturbed.operations.items() if numbers}
        self.assertEqual(set(places), PLACES_WITH_NCCL)
        return [(place, f"{kind}@{self.dice.choice(numbers)}")
                for place, numbers in places.items() for _ in range(count)]

    def lose_by(self, kind, of_victim, of_survivor, timeout_ms=LONG_MS):
        """At each place. Patterns of what the two say: with {victim} for the rank that has the
        fault; none: it dies."""
        for place, fault in self.faults_at_places(kind):
            with self.subTest(place=place, fault=fault):
                self.begin()  # A resumed training may have fewer steps left than the fault's.
                self.lose_once_by(place, fault, of_victim, of_survivor, timeout_ms)

    def lose_once_by(self, place, fault, of_victim, of_survivor, timeout_ms):
        ranks, victim = self.fail_at(place, fault, timeout_ms)
        told = [of_survivor.format(victim=victim)] * WORLD
        told[victim] = of_victim
        for rank, pattern in enumerate(told):
            if pattern:
                where, _ = self.require_lost(ranks, rank, pattern)
                self.assertEqual(where, place)
            else:
                self.assertTrue(ranks.is_over_within(rank, of_ranks.DEADLINE))
                self.assertEqual(ranks.processes[rank].returncode, KILLED, ranks.text(rank))

    def test_an_operation_that_hangs_ends_at_the_time_out(self):
        """Assumed of NCCL: an abort ends an operation that hangs."""
        late = f"is not done after {TIMEOUT_MS} ms"
        # The survivor may wait over Gloo meanwhile, for which the time is over, too.
        self.lose_by("hang", f"{late}|has ended",
                     f"{late}|Timed out waiting {TIMEOUT_MS}ms|rank {{victim}} at", TIMEOUT_MS)

    def test_an_error_of_an_operation_is_told_before_its_result_is_used(self):
        """Assumed of NCCL: its communicator says so when it is asked, and the stream goes on once
        that is aborted."""
        self.lose_by("error", "NCCL has reported an error", "rank {victim} at")

    def test_a_call_that_nccl_refuses_ends_the_others_wait(self):
        """Assumed of NCCL: the call begins nothing, and the others wait until they are aborted."""
        self.lose_by("refuse", "ncclSystemError|NCCL", "rank {victim} at")

    def test_a_death_in_an_operation(self):
        """Assumed of NCCL: over NVLink it waits for ever for a dead peer, over a network it reports
        an error."""
        self.lose_by("die", None, "rank {victim} at")

    def test_what_is_slow_changes_nothing(self):
        """Assumed of NCCL: it waits for a peer that is late, also while it connects."""
        for place, fault in (self.faults_at_places("slow:500") +
                             self.faults_at_places("init-slow:500")):
            with self.subTest(place=place, fault=fault):
                self.begin()
                ranks, _ = self.fail_at(place, fault)
                self.assertEqual(ranks.wait(), [0, 0], ranks.text(0) + ranks.text(1))
                for rank in range(WORLD):
                    self.undisturbed.require(ranks.text(rank))

    def test_failures_while_nccl_connects(self):
        """Assumed of NCCL: a rank that connects waits for ever for the others, and one that NCCL
        refuses there is told so."""
        bound = "not all ranks are connected after"
        self.lose_by("init-hang", bound, f"{bound}|rank {{victim}} at")
        self.lose_by("init-error", "ncclSystemError|NCCL", "rank {victim} at")
        self.lose_by("init-refuse", "ncclSystemError|NCCL", "rank {victim} at")
        self.lose_by("init-die", None, "rank {victim} at")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=int(os.environ.get("DDPRUN_GPU_KILLS", 4)))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    of_ranks.read_options(parser, options)
    if options.on == "gpu" and of_ranks.count_gpus(program("gpu_peer")) < WORLD:
        print(f"LEFT OUT: all tests on GPUs: they need {WORLD}", flush=True)
        return 1 if options.fake_gpu else 0
    return of_ranks.run_tests(LossesOnGpu, options)


if __name__ == "__main__":
    sys.exit(main())
