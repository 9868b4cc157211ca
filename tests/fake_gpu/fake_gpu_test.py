#!/usr/bin/env python3
"""The fake GPU under LibTorch's own process groups: that it is right, that it fails when it is told
to, and that its failures have the effect that real ones are assumed to have.

usage: fake_gpu_test.py --build FOLDER [unittest's words]
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))
import ranks as of_ranks  # noqa: E402  (it lies in another folder)

BUILD = ""
ENGINES = ("nccl", "nccl2")
# Seconds that a waiting rank must stay silent. No figure is measured by this time.
A_WHILE = 2


def program(name):
    return os.path.join(BUILD, "tests", "fake_gpu", name)


class FakeMachine(unittest.TestCase):
    """Each test has a machine of its own."""

    def setUp(self):
        machine = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(machine.cleanup)
        self.variables = {"DDPRUN_FAKE_GPU_STATE": machine.name}
        self.folder = machine.name

    def start(self, scenario, engine, world=2, of_rank=None, **variables):
        ranks = of_ranks.Ranks(
            world, [program("nccl_peer"), scenario, engine],
            os.path.join(BUILD, "tests", "gpu_peer"),
            {"DDPRUN_FAKE_GPU_COUNT": world, **self.variables, **variables}, of_rank)
        self.addCleanup(ranks.__exit__)
        return ranks

    def texts(self, ranks):
        return "\n".join(f"rank {rank}: {ranks.text(rank)}"
                         for rank, process in enumerate(ranks.processes)
                         if process.poll() is not None)

    def require_exits(self, ranks, *wanted):
        codes = ranks.wait()
        self.assertEqual(codes, list(wanted), self.texts(ranks))


class NcclTest(FakeMachine):
    def test_collectives_are_right_in_all_types(self):
        for engine in ENGINES:
            for world in (2, 3):
                with self.subTest(engine=engine, world=world):
                    ranks = self.start("collectives", engine, world)
                    self.require_exits(ranks, *[0] * world)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("nccl-")], [])

    def test_collectives_are_right_with_slow_streams_and_poisoned_memory(self):
        for engine in ENGINES:
            with self.subTest(engine=engine):
                ranks = self.start("collectives", engine, DDPRUN_FAKE_GPU_TASK_DELAY_US=300,
                                   DDPRUN_FAKE_GPU_POISON=1)
                self.require_exits(ranks, 0, 0)

    def test_communicators_that_do_not_block_work(self):
        ranks = self.start("collectives", "nccl", TORCH_NCCL_USE_COMM_NONBLOCKING=1,
                           DDPRUN_FAKE_GPU_NCCL_FAULT="init-slow:300")
        self.require_exits(ranks, 0, 0)

    def test_a_collective_comes_after_the_copies_before_it(self):
        ranks = self.start("order", "nccl", DDPRUN_FAKE_GPU_TASK_DELAY_US=20000)
        self.require_exits(ranks, 0, 0)

    def lonely(self, engine, **variables):
        ranks = self.start("lonely", engine, **variables)
        for rank in range(2):
            ranks.await_line(rank, "^ready$")
        return ranks

    def kill(self, ranks, rank):
        ranks.processes[rank].kill()
        ranks.processes[rank].wait()

    def test_a_killed_peer_is_not_noticed_over_nvlink_and_an_abort_ends_the_wait(self):
        """Assumed of NCCL: a kernel that waits for memory of a dead peer waits for ever, and
        ncclCommAbort() ends it, so that the stream goes on as if it had been done."""
        for engine in ENGINES:
            with self.subTest(engine=engine):
                ranks = self.lonely(engine)
                self.kill(ranks, 1)
                ranks.tell(0)
                ranks.await_line(0, "^begun$")
                self.assertTrue(ranks.is_silent(0, A_WHILE), ranks.outputs[0])
                ranks.tell(0)
                ranks.await_line(0, "^aborted$")
                ranks.await_line(0, "^the wait has")

    def test_a_killed_peer_is_noticed_over_a_network(self):
        """Assumed of NCCL: the end of a socket makes the communicator's asynchronous error."""
        ranks = self.lonely("nccl", DDPRUN_FAKE_GPU_LINK="network")
        self.kill(ranks, 1)
        ranks.tell(0)
        ranks.await_line(0, "remote process exited or there was a network error")

    def test_a_zombie_is_a_dead_peer(self):
        ranks = self.lonely("nccl", DDPRUN_FAKE_GPU_LINK="network")
        ranks.processes[1].kill()  # and no process waits for it
        ranks.tell(0)
        ranks.await_line(0, "remote process exited or there was a network error")

    def test_a_silent_peer_makes_a_time_out(self):
        ranks = self.lonely("nccl", GROUP_TIMEOUT=3)
        ranks.tell(0)
        ranks.await_line(0, r"Watchdog caught collective operation timeout")

    def test_operations_fail_as_they_are_told_to(self):
        for fault, wanted in (("break:200@3", "illegal memory access"),
                              ("error@3", "remote process exited|injected|asked for"),
                              ("refuse@3", "sum 3 has failed: .*\n?.*unhandled system error")):
            with self.subTest(fault=fault):
                ranks = self.start("sums", "nccl", of_rank={
                    0: {"DDPRUN_FAKE_GPU_NCCL_FAULT": fault}})
                ranks.await_line(0, "^sum 2$")
                ranks.await_line(0, wanted)

    def test_an_operation_hangs_as_it_is_told_to(self):
        ranks = self.start("sums", "nccl", of_rank={
            0: {"DDPRUN_FAKE_GPU_NCCL_FAULT": "hang@3"}})
        ranks.await_line(0, "^sum 2$")
        ranks.await_line(1, "^sum 2$")
        for rank in range(2):
            self.assertTrue(ranks.is_silent(rank, A_WHILE), ranks.outputs[rank])

    def test_a_rank_dies_in_an_operation_as_it_is_told_to(self):
        ranks = self.start("sums", "nccl", of_rank={
            0: {"DDPRUN_FAKE_GPU_NCCL_FAULT": "slow:10@1,die@3"}})
        ranks.await_line(0, "^sum 2$")
        self.assertEqual(ranks.processes[0].wait(of_ranks.DEADLINE), -signal.SIGKILL)

    def test_a_rank_that_is_refused_at_the_start_says_so(self):
        for engine in ENGINES:
            with self.subTest(engine=engine):
                ranks = self.start("sums", engine, of_rank={
                    0: {"DDPRUN_FAKE_GPU_NCCL_FAULT": "init-refuse"}})
                ranks.await_line(0, "^not connected: ")
                self.assertEqual(ranks.processes[0].wait(of_ranks.DEADLINE), 3)

    def test_a_rank_waits_at_the_start_for_one_that_died_there(self):
        """Assumed of NCCL: nothing ends that wait, not even the end of the other."""
        ranks = self.start("sums", "nccl", DDPRUN_FAKE_GPU_LINK="network", of_rank={
            1: {"DDPRUN_FAKE_GPU_NCCL_FAULT": "init-die"}})
        self.assertEqual(ranks.processes[1].wait(of_ranks.DEADLINE), -signal.SIGKILL)
        self.assertTrue(ranks.is_silent(0, A_WHILE), ranks.outputs[0])

    def test_an_abort_ends_a_start_that_hangs(self):
        """Assumed of NCCL: as its documentation says of communicators that do not block."""
        ranks = self.start("abort_init", "nccl", DDPRUN_FAKE_GPU_NCCL_FAULT="init-hang")
        for rank in range(2):
            ranks.await_line(rank, "^connecting$")
            self.assertTrue(ranks.is_silent(rank, A_WHILE), ranks.outputs[rank])
            ranks.tell(rank)
            ranks.await_line(rank, "^aborted$")
        self.require_exits(ranks, 0, 0)

    def test_a_start_that_hangs_ends_at_the_time_out_of_libtorch(self):
        """LibTorch's abort() waits for that start, so that nothing ends it sooner."""
        ranks = self.start("sums", "nccl", TORCH_NCCL_USE_COMM_NONBLOCKING=1,
                           TORCH_NCCL_NONBLOCKING_TIMEOUT=3,
                           DDPRUN_FAKE_GPU_NCCL_FAULT="init-hang")
        for rank in range(2):
            ranks.await_line(rank, "^not connected: NCCL timeout")


class DeviceTest(FakeMachine):
    def run_peer(self, scenario, **variables):
        environment = {**os.environ, **self.variables,
                       **{name: str(value) for name, value in variables.items()}}
        return subprocess.run([program("device_peer"), scenario], env=environment,
                              capture_output=True, text=True, timeout=of_ranks.DEADLINE)

    def require_said(self, words, scenario, code=0, **variables):
        ended = self.run_peer(scenario, **variables)
        said = ended.stdout + ended.stderr
        self.assertEqual(ended.returncode, code, said)
        self.assertRegex(said, words)
        return said

    def test_operators_give_what_the_cpu_gives(self):
        for scenario in ("operators", "training"):
            for poison in (0, 1):
                with self.subTest(scenario=scenario, poison=poison):
                    self.require_said("^right$", scenario, DDPRUN_FAKE_GPU_POISON=poison)

    def test_random_numbers_are_those_of_the_generator_of_the_gpu(self):
        self.require_said("^right$", "random_numbers")

    def test_memory_that_is_used_after_it_was_freed_is_poisoned(self):
        self.require_said("^right$", "freed_memory", DDPRUN_FAKE_GPU_POISON=1,
                          DDPRUN_FAKE_GPU_TASK_DELAY_US=50000)

    def test_a_broken_gpu_stays_broken(self):
        self.require_said("^broken$", "broken", DDPRUN_FAKE_GPU_BREAK_AT_TASK=20)

    def test_too_little_memory_is_an_error_and_the_rest_goes_on(self):
        said = self.require_said("^CUDA out of memory", "out_of_memory",
                                 DDPRUN_FAKE_GPU_MEMORY_MIB=900)
        self.assertIn("then 4", said)

    def test_what_the_fake_lacks_ends_the_process_by_name(self):
        self.require_said("fake GPU: CPUs have no kernel of aten::_cudnn_init_dropout_state",
                          "no_operator", -signal.SIGABRT)
        self.require_said("fake GPU: a kernel is launched: .*spin_kernel", "no_kernel",
                          -signal.SIGABRT)

    def test_every_name_that_libtorch_imports_is_there(self):
        self.require_said("^right$", "operators", LD_BIND_NOW=1)

    def test_settings_that_cannot_be_used_are_refused_by_name(self):
        for name, value in (("COUNT", "two"), ("LINK", "pigeon"), ("MEMORY_MIB", "0"),
                            ("STATE", "/proc/nothing")):
            self.require_said(f"fake GPU: DDPRUN_FAKE_GPU_{name}={value} is not ", "operators",
                              -signal.SIGABRT, **{f"DDPRUN_FAKE_GPU_{name}": value})

    def test_the_readme_has_every_variable(self):
        folder = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(folder, "machine", "settings.cpp"), encoding="utf-8") as file:
            read = set(re.findall(r'(?:variable|number|is_set)\("([A-Z_]+)"', file.read()))
        with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
            told = set(re.findall(r"^\| `([A-Z_]+)`", file.read(), re.MULTILINE))
        self.assertEqual(read, told)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    BUILD = os.path.abspath(arguments[arguments.index("--build") + 1])
    del arguments[arguments.index("--build"):arguments.index("--build") + 2]
    unittest.main(argv=[sys.argv[0], "-v", *arguments])
