#!/usr/bin/env python3
"""The worker runtime on GPUs: what must hold is asserted, and what was measured is printed.

usage: runtime_on_gpu.py --build FOLDER [--on gpu|cpu]

Needs a build with gpu_peer and train_digits, and PyTorch; no launcher. Without a GPU nothing runs,
aloud. With --on cpu, what makes sense there runs over Gloo on CPUs, with fewer kills.
"""

import argparse
import ctypes
import os
import random
import re
import select
import subprocess
import sys
import tempfile
import time
import unittest

import torch

DEADLINE = 180  # seconds, for what hangs
options = argparse.Namespace()


def say(text):
    print(f"gpu: {text}", flush=True)


def milliseconds_since(start):
    return round(1000 * (time.monotonic() - start))


class Ranks:
    """A generation of processes that take their place from the environment."""

    def __init__(self, world, program, variables=None, of_rank=None):
        # The store is c10d's own: a machine with nothing but PyTorch has no other.
        self.store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True,
                                                wait_for_workers=False)
        self.outputs = [b"" for _ in range(world)]
        self.processes = []
        for rank in range(world):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world,
                     "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": self.store.port,
                     "TORCHELASTIC_USE_AGENT_STORE": "True", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
            place.update(variables or {})
            place.update((of_rank or {}).get(rank, {}))
            if options.on == "cpu":
                place["CUDA_VISIBLE_DEVICES"] = ""
            environment = dict(os.environ, **{key: str(value) for key, value in place.items()})
            self.processes.append(subprocess.Popen(
                program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()

    def read(self, rank, seconds):
        """More of what the rank says, within so many seconds; false at its end."""
        pipe = self.processes[rank].stdout
        if not select.select([pipe], [], [], seconds)[0]:
            return True
        more = os.read(pipe.fileno(), 1 << 16)
        self.outputs[rank] += more
        return more != b""

    def text(self, rank):
        """All that a rank has said which has ended."""
        while self.read(rank, DEADLINE):
            pass
        return self.outputs[rank].decode(errors="replace")

    def wait(self):
        """The exit codes of all."""
        end = time.monotonic() + DEADLINE
        for rank, _ in enumerate(self.processes):
            while time.monotonic() < end and self.read(rank, end - time.monotonic()):
                pass
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]

    def is_over_within(self, rank, seconds):
        try:
            self.processes[rank].wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def await_line(self, rank, pattern):
        end = time.monotonic() + DEADLINE
        goes_on = True
        while True:
            said = self.outputs[rank].decode(errors="replace")
            found = re.search(pattern, said, re.MULTILINE)
            if found:
                return found
            if not goes_on or time.monotonic() > end:
                raise AssertionError(f"rank {rank} has not said {pattern!r}:\n{said}")
            goes_on = self.read(rank, end - time.monotonic())


class Nvml:
    """What NVIDIA's driver says of the first visible GPU."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                    ("used", ctypes.c_ulonglong)]

    class Utilization(ctypes.Structure):
        _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.call("nvmlInit_v2")
        self.device = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
        self.call("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(self.device))

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} failed with {code}")

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
    return torch.cuda.device_count() if options.on == "gpu" else 0


def needs(count):
    if gpu_count() < count:
        raise unittest.SkipTest(f"needs {count} GPU{'s' * (count > 1)}, {gpu_count()} there")


def peer(*arguments):
    return [os.path.join(options.build, "tests", "gpu_peer"), *arguments]


class RuntimeOnGpu(unittest.TestCase):
    def require_exits(self, ranks, *wanted):
        codes = ranks.wait()
        texts = "\n".join(f"rank {rank}: {ranks.text(rank)}" for rank in range(len(codes)))
        self.assertTrue(all(code in wanted for code in codes), f"{codes}\n{texts}")

    def test_a_group_is_bound_to_its_device_when_it_is_joined(self):
        """And how long CUDA, the join and the first collective take."""
        world = min(2, gpu_count()) or 2
        before = time.monotonic()
        with Ranks(world, peer("start", "auto", "own")) as ranks:
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

    def test_two_ranks_on_one_gpu_are_refused_by_name(self):
        needs(1)
        with Ranks(2, peer("start", "auto", "own"), {"CUDA_VISIBLE_DEVICES": "0"}) as ranks:
            self.require_exits(ranks, 3)
            for rank in range(2):
                said = ranks.await_line(rank, "^refused in .*$").group()
                say(said)
                self.assertRegex(said, "rank 0 on host .* and rank 1 on host .* have the same GPU, "
                                       "GPU-")

    def test_two_ranks_on_one_gpu_train_over_gloo_like_one_process(self):
        variables = {"CUDA_VISIBLE_DEVICES": "0"} if gpu_count() else {}
        with Ranks(2, peer("train", "auto", "shared"), variables) as ranks:
            self.require_exits(ranks, 0)
            for rank in range(2):
                self.assertRegex(ranks.text(rank), "over gloo")
            say("two ranks over Gloo beside one process, fp64: " +
                ranks.await_line(0, "^largest difference .*$").group())

    def test_ranks_on_a_gpu_each_train_over_nccl_like_one_process(self):
        needs(2)
        with Ranks(2, peer("train", "nccl", "own")) as ranks:
            self.require_exits(ranks, 0)
            say("two ranks over NCCL beside one process, fp64: " +
                ranks.await_line(0, "^largest difference .*$").group())

    def test_nccl_says_why_it_refuses_two_ranks_on_one_gpu(self):
        needs(1)
        with Ranks(2, peer("start", "nccl", "shared"), {"CUDA_VISIBLE_DEVICES": "0"}) as ranks:
            self.require_exits(ranks, 3)
            said = ranks.await_line(0, "^refused in .*$").group()
            say(said)
            self.assertRegex(said, "[Dd]uplicate GPU")

    def test_distinct_host_ids_are_tried_on_one_gpu(self):
        """Nothing is asserted: NCCL may take them or not, and this says which."""
        needs(1)
        with Ranks(2, peer("start", "nccl", "shared"), {"CUDA_VISIBLE_DEVICES": "0"},
                   {0: {"NCCL_HOSTID": "a"}, 1: {"NCCL_HOSTID": "b"}}) as ranks:
            try:
                codes = ranks.wait()
            except subprocess.TimeoutExpired:
                codes = "none: it hangs"
            say(f"two ranks on one GPU with NCCL_HOSTIDs of their own: exit codes {codes}")
            print(ranks.text(0), end="")

    def test_the_memory_of_a_killed_worker_is_free_again(self):
        needs(1)
        nvml = Nvml()
        before = nvml.used_mib()
        with Ranks(1, peer("hold", "auto", "own", "8192")) as ranks:
            ranks.await_line(0, "^holding$")
            held = nvml.used_mib()
            self.assertGreaterEqual(held, before + 8192)
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
        with Ranks(2, peer("wait", "nccl", "own")) as ranks:
            ranks.await_line(0, "^waiting$")
            for _ in range(3):
                # The driver's figures are averages over up to a second.
                self.assertFalse(ranks.is_over_within(0, 1))
                say(f"rank 0 waits in a collective: {nvml.figures()}")

    def train_digits(self, world, folder, epochs):
        return Ranks(world, [os.path.join(options.build, "bin", "train_digits"), "--epochs",
                             str(epochs), "--checkpoint-dir", folder])

    def test_a_training_ends_with_the_same_parameters_whatever_is_killed(self):
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
        epochs = 10 if gpu_count() else 2
        order = ("C++", "Python") * (2 if gpu_count() else 1)
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
                    with Ranks(world, [*program, *arguments]) as ranks:
                        self.require_exits(ranks, 0)
                        found = re.findall(r"(\d+) images/s", ranks.text(0))
                        self.assertEqual(len(found), epochs)
                        # The first epoch loads kernels.
                        rates.setdefault(name, []).extend(sorted(map(int, found[1:])))
            medians = {name: sorted(found)[len(found) // 2] for name, found in rates.items()}
            say(f"images a second, {world} rank{'s' * (world > 1)}: "
                f"C++ {medians['C++']}, Python {medians['Python']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, help="where gpu_peer and train_digits were built")
    parser.add_argument("--on", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("tests", nargs="*", help="names, all unless given")
    parser.parse_args(namespace=options)
    options.build = os.path.abspath(options.build)
    if options.on == "gpu" and not torch.cuda.is_available():
        print("LEFT OUT: all tests on GPUs: PyTorch sees none", flush=True)
        return 0
    if options.on == "gpu":
        say(f"{gpu_count()} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    tests = [f"RuntimeOnGpu.{name}" for name in options.tests]
    result = unittest.main(argv=[sys.argv[0], "-v", *tests], exit=False).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
