#!/usr/bin/env python3
"""The fake GPU under LibTorch's own process groups: that it is right, that it fails when it is told
to, and that its failures have the effect that real ones are assumed to have.

usage: fake_gpu_test.py --build FOLDER [unittest's words]

On a machine with NVIDIA's driver all of it is left out, aloud.
"""

import os
import signal
import subprocess

import fake_machine
from fake_machine import of_ranks, options, program

ENGINES = ("nccl", "nccl2")


class NcclTest(fake_machine.FakeMachine):
    def start(self, scenario, engine, world=2, of_rank=None, **variables):
        return self.with_cleanup(of_ranks.Ranks(
            world, [program("nccl_peer"), scenario, engine],
            os.path.join(options.build, "tests", "gpu_peer"),
            {"DDPRUN_FAKE_GPU_COUNT": world, **self.variables, **variables}, of_rank))

    def test_collectives_are_right_in_all_types(self):
        for engine in ENGINES:
            for world in (2, 3):
                with self.subTest(engine=engine, world=world):
                    ranks = self.start("collectives", engine, world)
                    self.require_exits(ranks, *[0] * world)

    def test_collectives_are_right_with_slow_streams_and_poisoned_memory(self):
        for engine in ENGINES:
            with self.subTest(engine=engine):
                ranks = self.start("collectives", engine, DDPRUN_FAKE_GPU_TASK_DELAY_US=300,
                                   DDPRUN_FAKE_GPU_POISON=1)
                self.require_exits(ranks, 0, 0)

    def test_communicators_that_do_not_block_work(self):
        """Assumed of NCCL: the first call of each kind returns ncclInProgress, later ones not."""
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
                self.require_silent(ranks, 0)
                ranks.tell(0)
                ranks.await_line(0, "^aborted$")
                ranks.await_line(0, "^the wait has ended$")
                ranks.await_line(0, "^completed: true$")

    def test_a_killed_peer_is_noticed_over_a_network(self):
        """Assumed of NCCL: the end of a socket makes the communicator's asynchronous error."""
        ranks = self.lonely("nccl", DDPRUN_FAKE_GPU_LINK="network")
        self.kill(ranks, 1)
        ranks.tell(0)
        ranks.await_line(0, "remote process exited or there was a network error")

    def test_a_silent_peer_makes_a_time_out(self):
        """Assumed of NCCL: a kernel waits for ever for a peer that does not call."""
        ranks = self.lonely("nccl", GROUP_TIMEOUT=3)
        ranks.tell(0)
        ranks.await_line(0, r"Watchdog caught collective operation timeout")

    def test_operations_fail_as_they_are_told_to(self):
        """Assumed of NCCL: it tells an error of a connection when it is asked, and begins nothing
        of a call that it refuses. Assumed of CUDA: an asynchronous error stays."""
        for fault, wanted in (("break:200@3", "illegal memory access"),
                              ("error@3", "remote process exited|injected|asked for"),
                              ("refuse@3", "sum 3 has failed: .*\n?.*unhandled system error")):
            with self.subTest(fault=fault):
                ranks = self.start("sums", "nccl", of_rank={
                    0: {"DDPRUN_FAKE_GPU_NCCL_FAULT": fault}})
                ranks.await_line(0, "^sum 2$")
                ranks.await_line(0, wanted)

    def test_a_rank_that_is_refused_at_the_start_says_so(self):
        for engine in ENGINES:
            with self.subTest(engine=engine):
                ranks = self.start("sums", engine, of_rank={
                    0: {"DDPRUN_FAKE_GPU_NCCL_FAULT": "init-refuse"}})
                ranks.await_line(0, "^not connected: ")
                self.assertEqual(ranks.processes[0].wait(of_ranks.DEADLINE), 3)

    def test_a_start_that_hangs_ends_at_the_time_out_of_libtorch(self):
        """LibTorch's abort() waits for that start, so that nothing ends it sooner. Assumed of NCCL:
        a rank that connects waits for ever for the others."""
        ranks = self.start("sums", "nccl", TORCH_NCCL_USE_COMM_NONBLOCKING=1,
                           TORCH_NCCL_NONBLOCKING_TIMEOUT=3,
                           DDPRUN_FAKE_GPU_NCCL_FAULT="init-hang")
        for rank in range(2):
            ranks.await_line(rank, "^not connected: NCCL timeout")


class DeviceTest(fake_machine.FakeMachine):
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

    def test_an_operator_refuses_tensors_of_two_gpus_as_cuda_does(self):
        self.require_said("^Expected all tensors to be on the same device, but found at least two "
                          "devices, cuda:0 and cuda:1$", "two_gpus",
                          DDPRUN_FAKE_GPU_TASK_DELAY_US=200, DDPRUN_FAKE_GPU_POISON=1)

    def test_memory_that_is_used_after_it_was_freed_is_poisoned(self):
        self.require_said("^right$", "freed_memory", DDPRUN_FAKE_GPU_POISON=1,
                          DDPRUN_FAKE_GPU_TASK_DELAY_US=50000)

    def test_a_broken_gpu_stays_broken(self):
        """Assumed of CUDA: an asynchronous error stays: all later calls of the process fail."""
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


if __name__ == "__main__":
    fake_machine.parser_of(__doc__).parse_args(namespace=options)
    fake_machine.run_tests()
