#!/usr/bin/env python3
"""The fake GPU without LibTorch: its CUDA and its NCCL under a program that calls them itself, and
its driver and that program under ddprun.

usage: without_libtorch.py --build FOLDER --programs FOLDER --fake-gpu FOLDER [unittest's words]

--programs says where ddprun is, of any build; without it the tests under ddprun are left out,
aloud. On a machine with NVIDIA's driver all of it is left out.
"""

import json
import os
import re
import signal
import socket
import subprocess
import time
import unittest

import fake_machine
from fake_machine import DEADLINE, of_ranks, options, program


class NcclTest(fake_machine.FakeMachine):
    def start(self, scenario, world=2, of_rank=None, **variables):
        return self.with_cleanup(of_ranks.Processes(
            world, [program("bare_peer"), scenario, self.folder],
            {"DDPRUN_FAKE_GPU_COUNT": world, "TORCHELASTIC_RESTART_COUNT": 0, **self.variables,
             **variables}, of_rank))

    def start_sums(self, fault, **variables):
        """Rank 0 has the fault, and has said what it says before operation 3."""
        ranks = self.start("sums", of_rank={0: {"DDPRUN_FAKE_GPU_NCCL_FAULT": fault}}, **variables)
        for rank in range(2):
            ranks.await_line(rank, "^sum 2 ")
        return ranks

    def require_death(self, ranks, rank):
        self.assertEqual(ranks.processes[rank].wait(DEADLINE), -signal.SIGKILL)

    def require_failure(self, ranks, rank, why, gpu="no error"):
        """Sum 3 of the rank fails, after which its GPU is in that state."""
        ranks.await_line(rank, f"^sum 3 has failed: {why}")
        ranks.await_line(rank, f"^the GPU then: {gpu}$")
        self.assertEqual(ranks.processes[rank].wait(DEADLINE), 4)

    def require_wait_until_abort(self, ranks, rank):
        self.require_silent(ranks, rank)
        ranks.tell(rank)
        self.require_failure(ranks, rank, "aborted$")

    def test_collectives_are_right_in_some_types(self):
        for world in (2, 3):
            with self.subTest(world=world):
                self.require_exits(self.start("collectives", world), *[0] * world)
        left = [name for name in os.listdir(self.state) if name.startswith("nccl-")]
        self.assertEqual(left, [])

    def test_a_killed_peer_is_not_noticed_over_nvlink_and_an_abort_ends_the_wait(self):
        """Assumed of NCCL: a kernel that waits for memory of a dead peer waits for ever, and
        ncclCommAbort() ends it, so that the stream goes on as if it had been done."""
        ranks = self.start_sums("die@3")
        self.require_death(ranks, 0)
        self.require_wait_until_abort(ranks, 1)

    def test_a_killed_peer_is_noticed_over_a_network(self):
        """Assumed of NCCL: the end of a socket makes the communicator's asynchronous error."""
        ranks = self.start_sums("die@3", DDPRUN_FAKE_GPU_LINK="network")
        self.require_death(ranks, 0)
        self.require_failure(ranks, 1, "remote process exited or there was a network error")

    def test_a_zombie_is_a_dead_peer(self):
        """Assumed of NCCL: the end of a socket makes the communicator's asynchronous error."""
        ranks = self.start_sums("die@3", DDPRUN_FAKE_GPU_LINK="network")  # no process waits for it
        self.require_failure(ranks, 1, "remote process exited or there was a network error")
        with open(f"/proc/{ranks.processes[0].pid}/stat", encoding="utf-8") as file:
            self.assertEqual(file.read().rpartition(")")[2].split()[0], "Z")

    def test_operations_fail_as_they_are_told_to(self):
        """Assumed of NCCL: it tells an error of a connection when it is asked, begins nothing of a
        call that it refuses, and waits for ever for a peer that takes no part, until it is aborted.
        Assumed of CUDA: an asynchronous error stays."""
        for fault, why, gpu in (
                ("error@3", "remote process exited or there was a network error", "no error"),
                ("refuse@3", "unhandled system error", "no error"),
                ("break:200@3", "an illegal memory access was encountered",
                 "an illegal memory access was encountered")):
            with self.subTest(fault=fault):
                ranks = self.start_sums(fault)
                self.require_failure(ranks, 0, why, gpu)
                self.require_wait_until_abort(ranks, 1)

    def test_an_operation_hangs_as_it_is_told_to(self):
        """Assumed of NCCL: a kernel waits for ever for a peer that takes no part, and
        ncclCommAbort() ends it."""
        ranks = self.start_sums("hang@3")
        for rank in range(2):
            self.require_wait_until_abort(ranks, rank)

    def test_an_operation_is_slow_as_it_is_told_to(self):
        ranks = self.start_sums("slow:400@3")
        milliseconds = int(ranks.await_line(0, r"^sum 3 after (\d+) ms")[1])
        self.assertGreaterEqual(milliseconds, 400)
        self.require_exits(ranks, 0, 0)

    def test_a_rank_that_is_refused_at_the_start_says_so(self):
        ranks = self.start("sums", of_rank={0: {"DDPRUN_FAKE_GPU_NCCL_FAULT": "init-refuse"}})
        ranks.await_line(0, "^not connected: unhandled system error")
        self.assertEqual(ranks.processes[0].wait(DEADLINE), 3)

    def test_a_rank_waits_at_the_start_for_one_that_died_there(self):
        """Assumed of NCCL: nothing ends that wait, not even the end of the other."""
        ranks = self.start("sums", DDPRUN_FAKE_GPU_LINK="network", of_rank={
            1: {"DDPRUN_FAKE_GPU_NCCL_FAULT": "init-die"}})
        self.require_death(ranks, 1)
        self.require_silent(ranks, 0)

    def test_an_abort_ends_a_start_that_hangs(self):
        """Assumed of NCCL: as its documentation says of communicators that do not block."""
        ranks = self.start("abort_init", DDPRUN_FAKE_GPU_NCCL_FAULT="init-hang")
        for rank in range(2):
            ranks.await_line(rank, "^connecting$")
            self.require_silent(ranks, rank)
            ranks.tell(rank)
            ranks.await_line(rank, "^aborted$")
        self.require_exits(ranks, 0, 0)

    def test_settings_that_cannot_be_used_are_refused_by_name(self):
        for name, value in (("COUNT", "two"), ("LINK", "pigeon"), ("MEMORY_MIB", "0"),
                            ("STATE", "/proc/nothing")):
            variable = f"DDPRUN_FAKE_GPU_{name}"
            ranks = self.start("where", world=1, **{variable: value})
            self.require_exits(ranks, -signal.SIGABRT)
            self.assertIn(f"fake GPU: {variable}={value} is not ", ranks.text(0))

    def test_the_readme_has_every_variable(self):
        folder = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(folder, "machine", "settings.cpp"), encoding="utf-8") as file:
            read = set(re.findall(r'(?:variable|number|is_set)\("([A-Z_]+)"', file.read()))
        with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
            told = set(re.findall(r"^\| `([A-Z_]+)`", file.read(), re.MULTILINE))
        self.assertEqual(read, told)


class DdprunTest(fake_machine.UnderDdprun):
    def run_peers(self, scenario, *flags, **variables):
        self.environment.update(variables)
        return self.start(*flags, program("bare_peer"), scenario, self.folder)

    def run_behind(self, *flags, generations=1, are_told=True, **variables):
        """Rank 1 does not launch the second AllReduce, for which rank 0 waits. Both compute before,
        until they are told to go on."""
        path = os.path.join(self.folder, "go")
        os.mkfifo(path)
        self.go = open(path, "r+b", buffering=0)
        self.addCleanup(self.go.close)
        if are_told:
            self.tell_to_go_on(generations)
        return self.run_peers("behind", *flags, **variables)

    def tell_to_go_on(self, generations=1):
        self.go.write(b"\n" * 2 * generations)

    def places(self, run):
        said = self.read_to_end(run)
        return sorted(re.findall(r"rank (\d) of (\d) is on (\S+)", said))

    def test_a_worker_for_each_gpu(self):
        expected = [("0", "2", "0000:1A:00.0"), ("1", "2", "0000:1B:00.0")]
        for flags in ([], ["--virtual-local-rank"]):
            with self.subTest(flags=flags):
                self.assertEqual(self.places(self.run_peers("where", *flags)), expected)

    def test_no_worker_for_a_hidden_gpu(self):
        run = self.run_peers("where", CUDA_VISIBLE_DEVICES="1")
        self.assertEqual(self.places(run), [("0", "1", "0000:1B:00.0")])

    def test_the_helper_reports_who_uses_which_gpu(self):
        holder = self.with_cleanup(of_ranks.Processes(
            1, [program("bare_peer"), "hold", self.folder],
            {**self.variables, "TORCHELASTIC_RESTART_COUNT": 0, "CUDA_VISIBLE_DEVICES": "1"}))
        pid = holder.processes[0].pid
        holder.await_line(0, "^holding$")
        figures, use = self.ask_helper(f"figures {pid}", f"use 60000 {pid}")
        # Each GPU has number:permille of use:memory:all memory:milliwatts:ranks. GPU 0 is idle.
        mib = 300 + 64  # of a context, and what the program holds
        gpu = 16 << 30
        self.assertEqual(figures, f"0:0:0:{gpu}:70000:- 1:1000:{mib << 20}:{gpu}:120000:0")
        self.assertEqual(use, "unused")  # it holds memory, and computes nothing
        holder.tell(0)
        holder.await_line(0, "^has computed$")
        self.assertEqual(self.ask_helper(f"use 60000 {pid}"), ["used"])

    def ask_helper(self, *questions):
        return subprocess.run(
            [os.path.join(options.programs, "ddprun-gpu-use")],
            input="".join(f"{question}\n" for question in questions), env=self.environment,
            capture_output=True, text=True, check=True, timeout=DEADLINE).stdout.splitlines()

    def test_the_rank_that_has_launched_less_is_named(self):
        """Assumed of NCCL: RAS counts a collective when it is called, and a kernel waits for ever
        for a peer that does not call."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = "127.0.0.1:%d" % free.getsockname()[1]
        run = self.run_behind("--hang-notice", "2", NCCL_RAS_ADDR=address)
        said = self.read_until(run, "stands still")
        self.assertRegex(said, r"communicator of 2 ranks stands still for \d+ s: rank 1 on "
                               r"127\.0\.0\.1 has launched 1 AllReduce, others 2")

    def test_that_gpus_draw_little_of_what_they_drew_is_told(self):
        """Assumed of NCCL: a kernel that waits draws less than half of what work draws, and waits
        for ever for a peer that does not call."""
        run = self.run_behind("--hang-notice", "2", are_told=False)
        self.read_until(run, "connected")
        end = time.monotonic() + DEADLINE
        while self.powers(run) != [400, 400]:
            self.assertLess(time.monotonic(), end)
        self.tell_to_go_on()
        said = self.read_until(run, "only wait for")
        self.assertRegex(said, r"least draws GPU \d+ \(rank \d\), 120 W of 400 W before")

    def test_a_gpu_that_nobody_uses_is_named_after_a_minute(self):
        run = self.start("--no-python", "sh", "-c", '[ "$RANK" = 1 ] && exec sleep 600; exec "$@"',
                         "sh", program("bare_peer"), "hold", self.folder)
        said = self.read_until(run, "busy in the first minute")
        self.assertRegex(said, r"1 of 2 GPUs of \S+ is busy in the first minute; "
                               r"GPU 1 \(rank 1\) is idle: 0 %")

    def powers(self, run):
        """The watts that ddprun has read of the GPU of each rank."""
        return [rank.get("gpu_power_w") for rank in json.loads(self.status(run, "--json"))["ranks"]]

    def test_a_killed_rank_of_a_collective_makes_a_new_generation(self):
        """Assumed of NCCL: over NVLink a kernel waits for ever for a dead peer."""
        run = self.run_behind("--max-restarts", "1", generations=2)
        self.read_until(run, "rank 0 has computed", "rank 1 has computed")
        waits = self.worker(0, "bare_peer")
        os.kill(self.worker(1, "bare_peer"), signal.SIGKILL)
        said = self.read_to_end(run)
        self.assertIn("generation 2: 2 workers", said)
        self.assertFalse(os.path.exists(f"/proc/{waits}"))


if __name__ == "__main__":
    of_this_test = fake_machine.parser_of(__doc__)
    fake_machine.add_options_of_ddprun(of_this_test)
    of_this_test.parse_args(namespace=options)
    fake_machine.run_tests()
