#!/usr/bin/env python3
"""The worker runtime on GPUs: what must hold is asserted, and what was measured is printed.

usage: runtime_on_gpu.py --build FOLDER [--on gpu|cpu] [--fake-gpu FOLDER]

Needs a build with gpu_peer and train_digits; no launcher, and PyTorch only for one figure beside
it. Without a GPU nothing runs, aloud. With --on cpu, what makes sense there runs over Gloo on CPUs,
with fewer kills. --fake-gpu says where the libraries of tests/fake_gpu are that the build uses.
"""

import argparse
import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import ranks as of_ranks
from ranks import say

DEADLINE = of_ranks.DEADLINE
FAULT = "DDPRUN_FAKE_GPU_NCCL_FAULT"
LAGGING = {"DDPRUN_FAKE_GPU_TASK_DELAY_US": 200, "DDPRUN_FAKE_GPU_POISON": 1}
options = argparse.Namespace()


def milliseconds_since(start):
    return round(1000 * (time.monotonic() - start))


class Nvml:
    """The first visible GPU, as NVIDIA's driver describes it."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                    ("used", ctypes.c_ulonglong)]

    class Utilization(ctypes.Structure):
        _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]

    def __init__(self):
        self.library = ctypes.CDLL(os.path.join(options.fake_gpu, "libnvidia-ml.so.1"))
        self.call("nvmlInit_v2")
        self.device = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByUUID", options.uuid.encode(), ctypes.byref(self.device))

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} failed with {code}")

    def name(self):
        text = ctypes.create_string_buffer(96)
        self.call("nvmlDeviceGetName", self.device, text, len(text))
        return text.value.decode()

    def used_mib(self):
        memory = self.Memory()
        self.call("nvmlDeviceGetMemoryInfo", self.device, ctypes.byref(memory))
        return memory.used >> 20

    def figures(self):
        utilization, power = self.Utilization(), ctypes.c_uint()
        self.call("nvmlDeviceGetUtilizationRates", self.device, ctypes.byref(utilization))
        self.call("nvmlDeviceGetPowerUsage", self.device, ctypes.byref(power))
        return (f"GPU use {utilization.gpu} %, memory use {utilization.memory} %, "
                f"{power.value / 1000:.0f} W, {self.used_mib()} MiB")


def gpu_count():
    return options.gpus if options.on == "gpu" else 0


def needs(count):
    if gpu_count() < count:
        raise unittest.SkipTest(f"needs {count} GPU{'s' * (count > 1)}, {gpu_count()} there")


def four_gpus():
    """The variables of ranks that see four GPUs."""
    if options.fake_gpu and options.on == "gpu":
        return {"DDPRUN_FAKE_GPU_COUNT": 4}
    needs(4)
    return {}


def needs_fake():
    if not options.fake_gpu or options.on == "cpu":
        raise unittest.SkipTest("needs a fault of the fake GPU (--fake-gpu)")


def peer(*arguments):
    return [os.path.join(options.build, "tests", "gpu_peer"), *arguments]


def start(world, program, variables=None, of_rank=None):
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if options.on == "cpu" else {}
    return of_ranks.Ranks(world, program, peer()[0], {**(variables or {}), **hidden}, of_rank)


def find_gpus():
    """Asks the built program which GPUs it sees."""
    told = subprocess.run(peer("gpus"), check=True, capture_output=True, text=True).stdout
    options.gpus = int(told.split()[0])
    options.libraries = re.search(r"LibTorch .*", told)[0]
    uuid = re.search(r"^the first is (\S+)$", told, re.MULTILINE)
    options.uuid = uuid[1] if uuid else ""


def has_python_torch():
    """Whether this Python has a PyTorch that sees the same GPUs."""
    count = "import torch; print(torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True)
    return asked.returncode == 0 and (options.on == "cpu" or int(asked.stdout) == gpu_count())


class RuntimeOnGpu(unittest.TestCase):
    def require_exits(self, ranks, *wanted):
        codes = ranks.wait()
        texts = "\n".join(f"rank {rank}: {ranks.text(rank)}" for rank in range(len(codes)))
        self.assertTrue(all(code in wanted for code in codes), f"{codes}\n{texts}")

    def test_a_group_is_bound_to_its_device_when_it_is_joined(self):
        """And how long CUDA, the join and the first collective take."""
        world = min(2, gpu_count()) or 2
        before = time.monotonic()
        with start(world, peer("start", "auto", "own")) as ranks:
            self.require_exits(ranks, 0)
            say(f"start of {world} ranks: {milliseconds_since(before)} ms in all; rank 0:")
            print(ranks.text(0), end="")
            for rank in range(world):
                joined = re.search(r"^joined in \d+ ms: (\S+) over (\S+), bound to (\S+),",
                                   ranks.text(rank), re.MULTILINE)
                device = f"cuda:{rank}" if gpu_count() else "cpu"
                engine = "nccl" if gpu_count() else "gloo"
                bound = device if gpu_count() else "none"
                self.assertEqual(joined.groups(), (device, engine, bound))
                # NCCL's time-out is for when this group's own has not ended a wait.
                longer = "600000" if gpu_count() else "0"
                told = re.search(r"^the group is (\S*), its default (\S*); its engine is (\S*), "
                                 r"and waits (\S+) ms longer$", ranks.text(rank), re.MULTILINE)
                self.assertEqual(told.groups(), ("ddprun/1", engine, "ddprun/1", longer))

    def test_nccl_uses_the_interface_of_the_group_unless_the_user_names_one(self):
        needs(1)
        for variables, wanted in ({}, "=lo"), ({"NCCL_SOCKET_IFNAME": "lo"}, "lo"):
            with start(1, peer("start", "nccl", "own"), variables) as ranks:
                self.require_exits(ranks, 0)
                self.assertRegex(ranks.text(0), f"(?m)^joined .*, interface {wanted}$")

    def test_two_ranks_on_one_gpu_are_refused_by_name(self):
        needs(1)
        with start(2, peer("start", "auto", "own"), {"CUDA_VISIBLE_DEVICES": "0"}) as ranks:
            self.require_exits(ranks, 3)
            for rank in range(2):
                said = ranks.await_line(rank, "^refused in .*$").group()
                say(said)
                self.assertRegex(said, "rank 0 on host .* and rank 1 on host .* have the same GPU, "
                                       "GPU-")

    def test_two_ranks_on_one_gpu_train_over_gloo_like_one_process(self):
        variables = {"CUDA_VISIBLE_DEVICES": "0"} if gpu_count() else {}
        with start(2, peer("train", "auto", "shared"), {**LAGGING, **variables}) as ranks:
            self.require_exits(ranks, 0)
            for rank in range(2):
                self.assertRegex(ranks.text(rank), "over gloo")
            say("two ranks over Gloo beside one process, fp64: " +
                ranks.await_line(0, "^largest difference .*$").group())

    def test_ranks_on_a_gpu_each_train_over_nccl_like_one_process(self):
        needs(2)
        with start(2, peer("train", "nccl", "own"), LAGGING) as ranks:
            self.require_exits(ranks, 0)
            say("two ranks over NCCL beside one process, fp64: " +
                ranks.await_line(0, "^largest difference .*$").group())

    def test_ranks_with_two_gpus_each_train_over_nccl_like_one_process(self):
        with start(2, peer("train", "nccl", "pair"), {**LAGGING, **four_gpus()}) as ranks:
            self.require_exits(ranks, 0)
            for rank in range(2):
                self.assertRegex(ranks.text(rank),
                                 f"(?m)^joined .*: cuda:{2 * rank} over nccl, bound to none,")
            say("two ranks with two GPUs each, over NCCL, beside one process, fp64: " +
                ranks.await_line(0, "^largest difference .*$").group())

    def test_two_ranks_with_the_same_two_gpus_are_refused_by_name(self):
        needs(2)
        with start(2, peer("start", "nccl", "pair"), {"CUDA_VISIBLE_DEVICES": "0,1"}) as ranks:
            self.require_exits(ranks, 3)
            self.assertRegex(ranks.text(0), "rank 0 on host .* and rank 1 on host .* have the same "
                                            "GPU, GPU-")

    def test_a_network_on_a_gpu_of_another_rank_is_refused_when_it_is_wrapped(self):
        needs(2)
        with start(2, peer("misplace", "nccl", "own")) as ranks:
            self.require_exits(ranks, 3)
            for rank in range(2):
                self.assertRegex(ranks.text(rank),
                                 rf"(?m)^refused: DistributedDataParallel: 2\.weight is on "
                                 rf"cuda:{1 - rank}, but rank {rank} of the group has cuda:{rank};")

    def test_data_parallel_of_libtorch_gives_what_one_gpu_gives(self):
        """But the running statistics of a batch normalisation stay as they were."""
        needs(2)
        program = os.path.join(options.build, "tests", "data_parallel")
        for threads in ("1", "2"):
            with self.subTest(threads=threads), start(1, [program, threads], LAGGING) as ranks:
                self.require_exits(ranks, 0)
                ranks.await_line(0, "^running statistics are lost$")

    def test_nccl_says_why_it_refuses_two_ranks_on_one_gpu(self):
        """Assumed of NCCL: it refuses them while they connect, and says "Duplicate GPU"."""
        needs(1)
        with start(2, peer("start", "nccl", "shared"), {"CUDA_VISIBLE_DEVICES": "0"}) as ranks:
            self.require_exits(ranks, 3)
            said = ranks.await_line(0, "^refused in .*$").group()
            say(said)
            self.assertRegex(said, "[Dd]uplicate GPU")

    def test_distinct_host_ids_are_tried_on_one_gpu(self):
        """Nothing is asserted: NCCL may take them or not, and this says which."""
        needs(1)
        with start(2, peer("start", "nccl", "shared"), {"CUDA_VISIBLE_DEVICES": "0"},
                   {0: {"NCCL_HOSTID": "a"}, 1: {"NCCL_HOSTID": "b"}}) as ranks:
            try:
                codes = ranks.wait()
            except subprocess.TimeoutExpired:
                codes = "none: it hangs"
                ranks.kill()
            say(f"two ranks on one GPU with NCCL_HOSTIDs of their own: exit codes {codes}")
            print(ranks.text(0), end="")

    def test_the_memory_of_a_killed_worker_is_free_again(self):
        """Assumed of CUDA: the memory of a process is free soon after its end."""
        needs(1)
        mib = 256 if options.fake_gpu else 8192  # the fake's memory is the machine's
        nvml = Nvml()
        before = nvml.used_mib()
        with start(1, peer("hold", "auto", "own", str(mib))) as ranks:
            ranks.await_line(0, "^holding$")
            held = nvml.used_mib()
            self.assertGreaterEqual(held, before + mib)
            killed = time.monotonic()
            ranks.processes[0].kill()
            ranks.processes[0].wait()
            reaped = milliseconds_since(killed)
            while nvml.used_mib() > before + 64:
                self.assertLess(time.monotonic() - killed, DEADLINE, "it is never free again")
            say(f"{held - before} MiB of a killed worker: gone from the process table after "
                f"{reaped} ms, free after {milliseconds_since(killed)} ms")

    def test_what_the_driver_tells_of_a_waiting_collective(self):
        needs(2)
        nvml = Nvml()
        say(f"idle: {nvml.figures()}")
        with start(2, peer("wait", "nccl", "own")) as ranks:
            ranks.await_line(0, "^waiting$")
            for _ in range(3):
                # The driver's figures are averages over up to a second.
                self.assertFalse(ranks.is_over_within(0, 1))
                say(f"rank 0 waits in a collective: {nvml.figures()}")

    def lose(self, timeout_ms, join_timeout_ms=60_000, of_rank=None):
        return start(2, peer("lose", "nccl", "own", str(timeout_ms), str(join_timeout_ms)),
                     of_rank=of_rank)

    def begin_to_wait(self, ranks):
        """Rank 0, for a collective that rank 1 never calls."""
        for rank in range(2):
            ranks.await_line(rank, "^ready$")
        ranks.tell(0)

    def require_loss(self, ranks, pattern, bound_ms):
        said = ranks.await_line(0, r"^lost in (\d+) ms: (.*)$")
        say(said.group())
        self.assertRegex(said.group(2), pattern)
        self.assertLess(int(said.group(1)), bound_ms)
        ranks.processes[0].stdin.close()
        self.assertEqual(ranks.processes[0].wait(DEADLINE), 0, ranks.text(0))

    def test_a_killed_peer_ends_the_wait_for_a_result_on_the_gpu(self):
        """Assumed of NCCL: over NVLink a kernel waits for ever for a dead peer. An abort ends
        it."""
        needs(2)
        with self.lose(600_000) as ranks:
            self.begin_to_wait(ranks)
            ranks.await_line(0, "^begun$")
            ranks.processes[1].kill()
            ranks.processes[1].wait()
            self.require_loss(ranks, "the connection to rank 1 at .* has ended", 60_000)

    def test_the_end_of_a_group_does_not_wait_for_a_peer_in_nccl(self):
        """Nothing watches the peers any more in the last barrier, and NCCL would wait for ever for
        one that dies there. Assumed of NCCL: over NVLink a kernel waits for ever for a dead
        peer."""
        needs_fake()
        needs(2)
        # The sum twice and the first barrier are operations of NCCL, and the last barrier is none.
        for fault, wanted, said in (
                ("die@2", [1, -signal.SIGKILL], "barrier failed on rank 0 of 2"),
                ("die@3", [0, 0], "second collective")):
            with self.subTest(fault=fault), \
                    start(2, peer("start", "nccl", "own"), of_rank={1: {FAULT: fault}}) as ranks:
                self.assertEqual(ranks.wait(), wanted, ranks.text(0) + ranks.text(1))
                self.assertIn(said, ranks.text(0))

    def test_a_silent_peer_is_named_at_the_time_out_and_ends_no_process(self):
        """Assumed of NCCL: a kernel waits for a peer that does not call, and an abort ends it."""
        needs(2)
        with self.lose(3000) as ranks:
            self.begin_to_wait(ranks)
            self.require_loss(ranks, "is not done after 3000 ms: rank 1 has not begun it", 60_000)

    def refusal(self, ranks, rank):
        """Milliseconds and reason of a join that failed."""
        said = ranks.await_line(rank, r"^refused in (\d+) ms: (.*)$")
        say(said.group())
        return said

    def test_the_join_is_bounded_while_nccl_connects(self):
        """Assumed of NCCL: a rank that connects waits for ever for one that hangs there."""
        needs_fake()
        with self.lose(600_000, 3000, of_rank={1: {FAULT: "init-hang"}}) as ranks:
            self.require_exits(ranks, 3)
            for rank in range(2):
                self.assertLess(int(self.refusal(ranks, rank).group(1)), 30_000)
            self.assertRegex(ranks.text(0) + ranks.text(1),
                             "not all ranks are connected after 3000 ms")

    def test_a_rank_that_dies_while_nccl_connects_ends_the_others_join(self):
        """Assumed of NCCL: a rank that connects waits for ever for the others."""
        needs_fake()
        with self.lose(600_000, 600_000, of_rank={1: {FAULT: "init-die"}}) as ranks:
            self.assertEqual(ranks.processes[0].wait(DEADLINE), 3)
            self.assertRegex(self.refusal(ranks, 0).group(2),
                             "the connection to rank 1 at .* has ended")

    def test_all_that_the_runtime_offers_gives_on_gpus_what_it_gives_on_cpus(self):
        """The fake's streams lag behind their callers, and its freed memory holds NaNs."""
        if gpu_count() == 1:
            self.skipTest("needs 2 GPUs, or none")
        with tempfile.TemporaryDirectory() as folder, \
                start(2, peer("walk", "auto", "own", "60000", "60000", folder), LAGGING) as ranks:
            self.require_exits(ranks, 0)

    def test_gloo_gives_on_a_shared_gpu_what_it_gives_on_cpus(self):
        needs(1)
        with tempfile.TemporaryDirectory() as folder, \
                start(2, peer("walk", "auto", "shared", "60000", "60000", folder),
                      {**LAGGING, "CUDA_VISIBLE_DEVICES": "0"}) as ranks:
            self.require_exits(ranks, 0)

    def test_a_peer_that_dies_in_a_call_is_named_and_its_result_is_not_used(self):
        """Assumed of NCCL: over NVLink a kernel waits for ever for a dead peer, and an abort ends
        it as if the work had been done."""
        needs(2)
        for what in ("build", "clip", "judge", "normalise", "scale"):
            with self.subTest(what=what), \
                    start(2, peer("lose_in", "nccl", "own", "600000", "60000", what),
                          LAGGING) as ranks:
                for rank in range(2):
                    ranks.await_line(rank, "^begins$")
                ranks.processes[0].kill()
                said = ranks.await_line(1, "^(lost|wrong): .*$").group()
                self.assertRegex(said, "^lost: .*the connection to rank 0 at .* has ended")
                self.assertEqual(ranks.processes[1].wait(DEADLINE), 0, ranks.text(1))

    def test_a_gpu_that_breaks_is_an_error_of_the_call_that_reads_from_it(self):
        """The process lives on, and the others learn of it. It reads before its GPU breaks. Assumed
        of CUDA: an asynchronous error stays, and no stream runs on."""
        needs_fake()
        for what, call in (("clip", "clipping gradients"),
                           ("step", "agreeing on finite gradients")):
            with self.subTest(what=what), \
                    start(2, peer("break_in", "nccl", "own", "600000", "60000", what), LAGGING,
                          of_rank={1: {FAULT: "break:500@0"}}) as ranks:
                ranks.await_line(1, f"^own failure: {call} failed on rank 1 of 2: CUDA error: an "
                                    "illegal memory access .*the group is cut")
                ranks.await_line(0, f"^peer lost: {call} failed on rank 0 of 2: the connection to "
                                    "rank 1 at .* has ended")
                self.assertFalse(ranks.is_over_within(1, 1), ranks.outputs[1])
                for process in ranks.processes:
                    process.stdin.close()
                self.require_exits(ranks, 0)

    def test_engines_that_a_process_holds_at_its_exit_end_once(self):
        """Before LibTorch's static objects: NCCL's watchdog uses them. Assumed of NCCL: an abort
        ends a kernel that waits."""
        needs(2)
        log = {"TORCH_CPP_LOG_LEVEL": "INFO", "DDPRUN_FAKE_GPU_EXIT_DELAY_MS": 1000}
        for group in ("finished", "waiting"):
            with self.subTest(group=group), \
                    start(2, peer("exit", "nccl", "own", "600000", "60000", group), log) as ranks:
                self.assertEqual(ranks.processes[0].wait(DEADLINE), 0, ranks.text(0))
                ends = re.findall("Starting to destroy process group", ranks.text(0))
                self.assertEqual(len(ends), 1, ranks.text(0))

    def test_a_sum_that_a_dead_peer_takes_no_part_in_is_not_saved(self):
        """Both ranks have called the collectives of the state; the other's GPU has not run them.
        Assumed of NCCL: a kernel waits for ever for a dead peer, and an abort ends it as if the
        work had been done."""
        needs_fake()
        with tempfile.TemporaryDirectory() as folder, \
                start(2, peer("save_sum", "nccl", "own", "600000", "60000", folder), LAGGING,
                      of_rank={1: {FAULT: "hang@0"}}) as ranks:
            for rank in range(2):
                ranks.await_line(rank, "^collected$")
            ranks.processes[1].kill()
            said = ranks.await_line(0, "^(lost: .*|saved)$").group()
            self.assertRegex(said, "the connection to rank 1 at .* has ended")
            self.assertEqual(os.listdir(folder), [])

    def test_a_rank_without_memory_for_a_result_ends_the_others_wait(self):
        """Assumed of NCCL: a kernel waits for a peer that does not call, and an abort ends it."""
        needs_fake()
        with start(2, peer("lose_in", "nccl", "own", "600000", "60000", "gather_much"),
                   of_rank={1: {"DDPRUN_FAKE_GPU_MEMORY_MIB": 380}}) as ranks:
            self.require_exits(ranks, 0)
            self.assertRegex(ranks.text(1), "lost: all_gather failed on rank 1 of 2: CUDA out of "
                                            "memory.*the group is cut")
            self.assertRegex(ranks.text(0), "lost: .*the connection to rank 1 at .* has ended")

    def test_each_kind_of_operation_has_the_time_out_of_its_group(self):
        """Assumed of NCCL: a kernel waits for a peer that does not call, a send until the peer has
        received all, and an abort ends them."""
        needs(2)
        with start(2, peer("wait_in_all", "nccl", "own", "5000", "60000"), LAGGING) as ranks:
            self.assertEqual(ranks.processes[1].wait(DEADLINE), 0, ranks.text(1))
            told = re.findall(r"^(\w+): .* is not done after 5000 ms: rank 0 has not begun it",
                              ranks.text(1), re.MULTILINE)
            self.assertEqual(len(told), 12, ranks.text(1))

    def lose_in_part(self, timeout_ms, who, of_rank=None):
        """Three ranks, with a sub-group of ranks 0 and 2."""
        if not options.fake_gpu:
            needs(3)
        ranks = start(3, peer("lose_in_part", "nccl", "own", str(timeout_ms), "60000", who),
                      {**LAGGING, "DDPRUN_FAKE_GPU_COUNT": 3}, of_rank)
        self.addCleanup(ranks.__exit__)
        for rank in range(3):
            ranks.await_line(rank, "^begins$")
        return ranks

    def test_a_member_killed_in_a_collective_of_its_sub_group_is_named(self):
        """Assumed of NCCL: over NVLink a kernel waits for ever for a dead peer. An abort ends
        it."""
        needs_fake()
        ranks = self.lose_in_part(600_000, "all", {2: {FAULT: "die@0"}})
        ended = r"the connection to rank {} at 127\.0\.0\.1:\d+ has ended"
        # The rank's number in the sub-group.
        ranks.await_line(0, "^part: .* on rank 0 of 2: " + ended.format(1))
        for rank in range(2):
            ranks.tell(rank)
            ranks.await_line(rank, f"^whole: .* on rank {rank} of 3: " + ended.format(2))
            self.assertEqual(ranks.processes[rank].wait(DEADLINE), 0, ranks.text(rank))

    def test_the_time_out_of_a_sub_group_leaves_its_group_whole(self):
        """Assumed of NCCL: a kernel waits for a peer that does not call, and an abort ends it, and
        none of another communicator."""
        needs(2)
        ranks = self.lose_in_part(5000, "one")
        ranks.await_line(0, "^part: .* on rank 0 of 2: .* is not done after 5000 ms: "
                            "rank 1 has not begun it")
        for rank in range(3):
            ranks.tell(rank)
        self.require_exits(ranks, 0)
        for rank in range(3):
            ranks.await_line(rank, "^whole: a sum$")

    def model_parallel(self, world, folder, epochs, *flags):
        """Its losses, the later one of each epoch, and the hash of its parameters."""
        program = os.path.join(options.build, "bin", "model_parallel")
        variables = {**LAGGING, **(four_gpus() if world == 2 else {})}
        with start(world, [program, "--epochs", str(epochs), "--checkpoint-dir", folder, *flags],
                   variables) as ranks:
            self.require_exits(ranks, 0)
            return re.findall(r"(?m)^(?:first half|epoch|parameters) .*$", ranks.text(0))

    def test_a_network_in_halves_on_two_gpus_is_trained_and_resumed_as_on_one(self):
        needs(2)
        for world in (1, 2):
            with self.subTest(world=world), tempfile.TemporaryDirectory() as folder:
                place, *alone = self.model_parallel(world, folder + "/alone", 2, "--one-device")
                self.assertEqual(place, "first half on cuda:0, second half on cuda:0")
                place, *halves = self.model_parallel(world, folder + "/halves", 2)
                self.assertEqual(place, "first half on cuda:0, second half on cuda:1")
                self.assertEqual(halves, alone)
                self.model_parallel(world, folder + "/parts", 1)
                resumed = self.model_parallel(world, folder + "/parts", 2)
                self.assertEqual(resumed[1:], halves[1:])
        say(f"a network in halves on two GPUs, and on one: {halves[-1]}")

    def train_digits(self, world, folder, epochs):
        return start(world, [os.path.join(options.build, "bin", "train_digits"), "--epochs",
                             str(epochs), "--checkpoint-dir", folder])

    def test_a_training_ends_with_the_same_parameters_whatever_is_killed(self):
        """Assumed of NCCL: over NVLink a kernel waits for ever for a dead peer, a rank that
        connects for the others, and an abort ends a kernel as if the work had been done."""
        world = min(2, gpu_count()) or 2
        kills = 20 if gpu_count() else 2
        epochs = 6
        seed = random.randrange(1 << 32)
        dice = random.Random(seed)
        say(f"train_digits, {world} ranks, seed {seed}")

        def finished(ranks):
            self.require_exits(ranks, 0)
            return ranks.await_line(0, "^parameters ([0-9a-f]{16})$").group(1)

        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            with self.train_digits(world, folder, epochs) as ranks:
                expected = finished(ranks)
            duration = time.monotonic() - started
        killed = 0
        runs = 0
        while killed < kills:
            runs += 1
            self.assertLess(runs, 10 * kills, "too few kills hit a training that runs")
            with tempfile.TemporaryDirectory() as folder:
                while killed < kills:
                    with self.train_digits(world, folder, epochs) as ranks:
                        victim = dice.randrange(world)
                        if ranks.is_over_within(victim, dice.uniform(0, duration)):
                            break
                        # The others are killed as well, as a launcher would: one that waits for
                        # the dead one to come waits for join_timeout.
                        ranks.processes[victim].kill()
                        killed += 1
                with self.train_digits(world, folder, epochs) as ranks:
                    self.assertEqual(finished(ranks), expected, f"seed {seed}")
        say(f"train_digits, {world} ranks: {killed} kills in {runs} trainings, all end with "
            f"{expected}")

    def test_images_a_second_beside_python(self):
        epochs = 10 if gpu_count() and not options.fake_gpu else 2
        order = ("C++", "Python") * (2 if gpu_count() else 1)
        if not has_python_torch():
            say("LEFT OUT: images a second in Python: its PyTorch sees other GPUs, or is missing")
            order = ("C++",)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_digits.py")
        for world in (1, 2) if gpu_count() else (2,):
            if gpu_count() and gpu_count() < world:
                say(f"LEFT OUT: images a second with {world} ranks: {gpu_count()} GPU there")
                continue
            rates = {}
            for name in order:
                with tempfile.TemporaryDirectory() as folder:
                    arguments = ["--epochs", str(epochs), "--checkpoint-dir", folder]
                    program = ([os.path.join(options.build, "bin", "train_digits")]
                               if name == "C++" else [sys.executable, script])
                    with start(world, [*program, *arguments]) as ranks:
                        self.require_exits(ranks, 0)
                        found = re.findall(r"(\d+) images/s", ranks.text(0))
                        self.assertEqual(len(found), epochs)
                        # The first epoch loads kernels.
                        rates.setdefault(name, []).extend(sorted(map(int, found[1:])))
            medians = {name: sorted(found)[len(found) // 2] for name, found in rates.items()}
            say(f"images a second, {world} rank{'s' * (world > 1)}: " +
                ", ".join(f"{name} {median}" for name, median in medians.items()))


def main():
    of_ranks.read_options(argparse.ArgumentParser(description=__doc__), options)
    find_gpus()
    if options.on == "gpu" and options.gpus == 0:
        print("LEFT OUT: all tests on GPUs: LibTorch sees none", flush=True)
        return 1 if options.fake_gpu else 0
    if options.on == "gpu":
        say(f"{gpu_count()} x {Nvml().name()}, {options.libraries}")
    return of_ranks.run_tests(RuntimeOnGpu, options)


if __name__ == "__main__":
    sys.exit(main())
