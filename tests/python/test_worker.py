"""A worker's place, and what it writes into and reads from its agent's page.

Method: pages made here as worker_runtime/contract/README.md says; tests/process/page_python.cpp
has the agent's own. Needs no torch.
"""

import contextlib
import io
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PACKAGE = os.path.join(ROOT, "worker_runtime", "python")
sys.path.insert(0, PACKAGE)

import ddprun  # noqa: E402

MAGIC = 0x4547415072706464
FOR_EVER = (1 << 63) - 1
SLOTS = 3


class AgentPage:
    """The agent's end of a page."""

    def __init__(self, version=4, generation=7, slots=SLOTS, size=None):
        self._file = tempfile.NamedTemporaryFile()
        bytes_of_version = (64 + 128 * slots + (64 * slots if version >= 4 else 0) +
                            (1024 * slots if version >= 6 else 0) +
                            (64 * slots if version >= 7 else 0))
        self._file.truncate(bytes_of_version if size is None else size)
        self.path = self._file.name
        if size != 0:
            self.memory = mmap.mmap(self._file.fileno(), 0)
        if size is None or size >= 64:
            struct.pack_into("=QIIQqqII", self.memory, 0, MAGIC, version, slots, generation,
                             FOR_EVER, 0, 0, 0)

    def number(self, format, offset):
        return struct.unpack_from("=" + format, self.memory, offset)[0]

    def put(self, format, offset, value):
        struct.pack_into("=" + format, self.memory, offset, value)


def environment_of(page=None, **changes):
    """Returns ddprun's variables for local rank 1 of 3 on the second node."""
    environment = {
        "RANK": "4", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3",
        "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "llama", "DDPRUN_GENERATION": "7", "DDPRUN_SLOT": "1",
        "DDPRUN_START_REASON": "rank 3 on gpu-07 was killed by SIGKILL",
        "DDPRUN_PAGE": page.path if page else "",
    }
    environment.update(changes)
    return {key: value for key, value in environment.items() if value is not None}


def worker_of(page=None, **changes):
    """The worker, and what it said on stderr."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        worker = ddprun.Worker(environment_of(page, **changes))
    return worker, said.getvalue()


def run_python(code, environment=None):
    plain = {key: value for key, value in os.environ.items()
             if not key.startswith(("DDPRUN_", "TORCHELASTIC_"))}
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        plain.pop(key, None)
    plain.update({"PYTHONPATH": PACKAGE, **(environment or {})})
    return subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True)


class Place(unittest.TestCase):
    def test_it_is_what_ddprun_says(self):
        worker, said = worker_of()
        self.assertEqual(said, "")
        self.assertTrue(worker.is_under_ddprun)
        self.assertEqual((worker.rank, worker.world_size), (4, 6))
        self.assertEqual((worker.local_rank, worker.local_world_size), (1, 3))
        self.assertEqual((worker.group_rank, worker.group_world_size), (1, 2))
        self.assertEqual((worker.generation, worker.restart_count), (7, 2))
        self.assertEqual(worker.start_reason, "rank 3 on gpu-07 was killed by SIGKILL")
        self.assertEqual(worker.job, "llama")

    def test_the_size_it_is_meant_for_is_told_or_the_one_it_has(self):
        self.assertEqual(worker_of()[0].target_world_size, 6)
        told, _ = worker_of(DDPRUN_TARGET_WORLD_SIZE="24")
        self.assertEqual((told.world_size, told.target_world_size), (6, 24))
        with self.assertRaisesRegex(ValueError, "DDPRUN_TARGET_WORLD_SIZE=many is no number"):
            worker_of(DDPRUN_TARGET_WORLD_SIZE="many")

    def test_nobody_launched_it(self):
        worker = ddprun.Worker({"PATH": "/bin"})
        self.assertFalse(worker.is_under_ddprun)
        self.assertEqual((worker.rank, worker.world_size, worker.generation), (0, 1, 1))
        self.assertEqual((worker.restart_count, worker.start_reason), (0, ""))

    def test_torchrun_launched_it(self):
        worker = ddprun.Worker({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1",
                                "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "3"})
        self.assertFalse(worker.is_under_ddprun)
        self.assertEqual((worker.rank, worker.world_size, worker.generation), (1, 2, 4))

    def test_a_missing_variable_is_named(self):
        for key in environment_of():
            if key != "DDPRUN_GENERATION":
                with self.assertRaisesRegex(ValueError, f"{key} is not set"):
                    page = AgentPage()
                    ddprun.Worker(environment_of(page, **{key: None}))

    def test_what_is_no_number_is_named_with_its_value(self):
        for text in ("", "-1", "1x", " 1", "99999999999", "\u0661"):
            with self.assertRaisesRegex(ValueError, "worker environment: RANK="):
                ddprun.Worker(environment_of(RANK=text))


class WithoutPage(unittest.TestCase):
    def test_all_of_it_works_and_answers_no(self):
        for environment in ({}, environment_of(WORLD_SIZE="1", RANK="0")):
            worker = ddprun.Worker(environment)
            worker.group_ready()
            worker.resumed()
            worker.progress(0)
            worker.progress(1, samples=8, loss=0.5)
            self.assertFalse(worker.stop_requested())
            self.assertIsNone(worker.stop_deadline())
            self.assertFalse(worker.is_isolated())
            with self.assertRaises(SystemExit) as left:
                worker.leave()
            self.assertEqual(left.exception.code, 75)

    def test_under_torchrun_several_workers_are_asked_nothing(self):
        worker = ddprun.Worker({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1",
                                "LOCAL_WORLD_SIZE": "2"})
        self.assertFalse(worker.stop_requested())

    def test_a_page_that_cannot_be_used_is_one_line(self):
        for page, what in [
            (AgentPage(version=2), "version 2"),
            (AgentPage(generation=8), "generation 8"),
            (AgentPage(slots=4), "4 workers"),
            (AgentPage(size=100), "100 bytes"),
            (AgentPage(size=64 + 128 * SLOTS), "version 4"),
        ]:
            worker, said = worker_of(page)
            self.assertIn(what, said)
            self.assertTrue(said.startswith("ddprun: rank 4: "), said)
            self.assertTrue(said.endswith("; a request to stop will come as a signal\n"), said)
            self.assertEqual(said.count("\n"), 1)
            worker.progress(1)
        worker, said = worker_of(DDPRUN_PAGE="/nonexistent/page")
        self.assertIn("/nonexistent/page", said)


class Interrupted:
    """Words of a page at which a Ctrl-C comes."""

    def __setitem__(self, index, value):
        raise KeyboardInterrupt


class Turns:
    """The words of a page's pace, whose counter two threads read and write in turns.

    A thread that has gone on without its turn is not waited for.
    """

    ORDER = ("this", "other", "this", "other", "this", "this", "other", "other")

    def __init__(self, words):
        self.words = words
        self.done = 0
        self.is_over = False
        self.threads = {"this": threading.current_thread()}

    def wait_for_turn(self):
        while not self.is_over:
            whose = self.threads[self.ORDER[self.done]]
            if whose is threading.current_thread():
                return
            self.is_over = self.is_over or not whose.is_alive()
            os.sched_yield()

    def __getitem__(self, index):
        if index == 0:
            self.wait_for_turn()
        value = self.words[index]
        self.take_turn(index)
        return value

    def __setitem__(self, index, value):
        if index == 0:
            self.wait_for_turn()
        self.words[index] = value
        self.take_turn(index)

    def take_turn(self, index):
        if index == 0:
            self.done += 1
            self.is_over = self.is_over or self.done == len(self.ORDER)


class WithPage(unittest.TestCase):
    SLOT = 64 + 128
    FIGURES = 64 + 128 * SLOTS + 64
    CHECKPOINTS = 64 + 192 * SLOTS + 1024

    def test_progress_is_in_the_slot_of_this_worker(self):
        page = AgentPage()
        worker, _ = worker_of(page)
        worker.progress(4812)
        self.assertEqual(page.number("Q", self.SLOT + 8), 4812)
        worker.progress((1 << 64) - 2)
        self.assertEqual(page.number("Q", self.SLOT + 8), (1 << 64) - 2)
        self.assertEqual(page.number("Q", self.SLOT - 128 + 8), 0)
        self.assertEqual(page.number("Q", self.SLOT + 128 + 8), 0)

    def test_the_slot_is_not_that_of_a_virtual_local_rank(self):
        page = AgentPage()
        worker, _ = worker_of(page, LOCAL_RANK="0", DDPRUN_SLOT="2")
        worker.progress(5)
        self.assertEqual(page.number("Q", 64 + 2 * 128 + 8), 5)

    def test_samples_add_up_and_the_last_loss_stays(self):
        page = AgentPage()
        worker, _ = worker_of(page)
        worker.progress(1, samples=32, loss=2.5)
        worker.progress(2, samples=16)
        self.assertEqual(page.number("Q", self.FIGURES + 32), 48)
        self.assertEqual(page.number("d", self.FIGURES + 40), 2.5)

    def test_each_time_is_noted_once(self):
        page = AgentPage()
        before = time.monotonic_ns()
        worker, _ = worker_of(page)

        def stamps():
            return [page.number("q", self.FIGURES + 8 * i) for i in range(4)]

        self.assertGreaterEqual(stamps()[0], before)
        self.assertEqual(stamps()[1:], [0, 0, 0])
        worker.group_ready()
        worker.resumed()
        worker.progress(1)
        noted = stamps()
        self.assertEqual(noted, sorted(noted))
        self.assertLessEqual(noted[3], time.monotonic_ns())
        worker.group_ready()
        worker.resumed()
        worker.progress(2)
        self.assertEqual(stamps(), noted)

    def test_where_checkpoints_are_is_told_as_a_path_from_the_root(self):
        page = AgentPage(version=6)
        worker, _ = worker_of(page)

        def told():
            size = page.number("I", self.CHECKPOINTS)
            return bytes(page.memory[self.CHECKPOINTS + 4:self.CHECKPOINTS + 4 + size])

        self.assertEqual(told(), b"")
        worker.checkpoints_in("check/../points")
        self.assertEqual(told(), os.fsencode(os.path.join(os.getcwd(), "points")))
        longest = "/" + "x" * 1019
        worker.checkpoints_in(longest)
        self.assertEqual(told(), longest.encode())
        self.assertEqual(page.number("I", self.CHECKPOINTS - 1024), 0)
        self.assertEqual(page.number("I", self.CHECKPOINTS + 1024), 0)
        worker.checkpoints_in(longest + "x")
        self.assertEqual(told(), longest.encode())
        worker.checkpoints_in("/short")
        self.assertEqual(told(), b"/short")

    def test_each_step_is_told_with_its_time_and_what_was_waited_until_then(self):
        page = AgentPage(version=7)
        worker, _ = worker_of(page)
        at = 64 + 1216 * SLOTS + 64  # local rank 1's
        worker.progress(5)
        self.assertEqual(struct.unpack_from("=QQ", page.memory, at), (2, 5))
        first_ns, waited, first_waited = struct.unpack_from("=qqq", page.memory, at + 16)
        self.assertEqual((waited, first_waited), (-1, -1))
        worker.waited(0.25)
        worker.waited(0.5)
        worker.total_steps(100)
        worker.progress(6)
        self.assertEqual(struct.unpack_from("=QQ", page.memory, at), (4, 6))
        last_ns, waited, first_waited, total, waiting = struct.unpack_from(
            "=qqqQq", page.memory, at + 16)
        self.assertGreaterEqual(last_ns, first_ns)
        self.assertEqual((waited, first_waited, total, waiting),
                         (750_000_000, -1, 100, 750_000_000))

    def test_two_threads_that_tell_progress_leave_the_counter_even(self):
        page = AgentPage(version=8)
        worker, _ = worker_of(page)
        turns = Turns(worker._page._pace)
        worker._page._pace = turns
        other = threading.Thread(target=worker.progress, args=(2,), name="other")
        turns.threads["other"] = other
        other.start()
        worker.progress(1)
        turns.is_over = True
        other.join()
        at = 64 + 1216 * SLOTS + 64
        writes, step = page.number("Q", at), page.number("Q", at + 8)
        self.assertIn(writes, (2, 4))
        self.assertIn(step, (1, 2))
        worker.progress(3)
        self.assertEqual((page.number("Q", at), page.number("Q", at + 8)), (writes + 2, 3))

    def test_progress_that_is_interrupted_leaves_the_counter_even(self):
        page = AgentPage(version=8)
        worker, _ = worker_of(page)
        words = worker._page._pace_i64
        worker._page._pace_i64 = Interrupted()
        with self.assertRaises(KeyboardInterrupt):
            worker.progress(1)
        at = 64 + 1216 * SLOTS + 64
        self.assertEqual(page.number("Q", at), 2)
        worker._page._pace_i64 = words
        worker.progress(2)
        self.assertEqual((page.number("Q", at), page.number("Q", at + 8)), (4, 2))

    def test_a_step_is_told_whole_after_another_teller_has_got_stuck(self):
        page = AgentPage(version=7)
        worker, _ = worker_of(page)
        at = 64 + 1216 * SLOTS + 64  # local rank 1's
        struct.pack_into("=Q", page.memory, at, 3)  # by a thread in between, or a process killed
        worker.progress(5)
        self.assertEqual(struct.unpack_from("=QQ", page.memory, at), (4, 5))
        worker.progress(6)
        self.assertEqual(struct.unpack_from("=QQ", page.memory, at), (6, 6))

    def test_checkpoints_count_from_the_first_step_on_and_however_they_end(self):
        page = AgentPage(version=8)
        worker, _ = worker_of(page)
        at = 64 + 1216 * SLOTS + 64 + 56  # local rank 1's
        with worker.checkpointing():
            pass
        self.assertEqual(page.number("q", at), 0)  # it was a part of the start
        worker.progress(5)
        with worker.checkpointing():
            pass
        first = page.number("q", at)
        self.assertGreater(first, 0)
        with self.assertRaises(OSError), worker.checkpointing():
            raise OSError
        self.assertGreater(page.number("q", at), first)
        before = time.monotonic_ns()
        with worker.checkpointing():
            while time.monotonic_ns() - before < 1_000_000:
                pass
        self.assertGreaterEqual(page.number("q", at), first + 1_000_000)

    def test_where_checkpoints_are_is_kept_by_nobody_in_an_older_page(self):
        page = AgentPage(version=5)
        worker, said = worker_of(page)
        worker.checkpoints_in("/data")
        self.assertEqual(said, "")
        worker_of()[0].checkpoints_in("/data")

    def test_a_page_of_version_3_gets_what_it_has(self):
        page = AgentPage(version=3)
        worker, said = worker_of(page)
        self.assertEqual(said, "")
        worker.group_ready()
        worker.progress(9, samples=3, loss=1.0)
        self.assertEqual(page.number("Q", self.SLOT + 8), 9)

    def test_a_page_of_a_later_version_is_used_as_far_as_it_is_known(self):
        page = AgentPage(version=9, size=64 + 192 * SLOTS + 4096)
        worker, said = worker_of(page)
        self.assertEqual(said, "")
        worker.progress(9, loss=1.0)
        self.assertEqual(page.number("d", self.FIGURES + 40), 1.0)

    def test_what_is_no_step_sample_or_loss_is_refused(self):
        worker, _ = worker_of(AgentPage())
        for wrong in (-1, 1 << 64):
            self.assertRaises(ValueError, worker.progress, wrong)
        self.assertRaises(TypeError, worker.progress, 1.5)
        self.assertRaises(TypeError, worker.progress, 1, loss="low")
        self.assertRaises(ValueError, worker.progress, 1, samples=-1)

    def test_the_agent_is_told_to_ask_here_by_the_first_question_only(self):
        page = AgentPage()
        before = signal.getsignal(signal.SIGTERM)
        worker, _ = worker_of(page, RANK="0", WORLD_SIZE="1")
        worker.progress(1)
        self.assertEqual(page.number("I", self.SLOT), 0)
        self.assertFalse(worker.stop_requested())
        self.assertEqual(page.number("I", self.SLOT), 1)
        self.assertIs(signal.getsignal(signal.SIGTERM), before)

    def test_a_request_is_answered_and_its_deadline_known(self):
        page = AgentPage()
        worker, _ = worker_of(page, RANK="0", WORLD_SIZE="1")
        self.assertFalse(worker.stop_requested())
        page.put("q", 32, 12_500_000_000)
        page.put("I", 40, int(signal.SIGTERM))
        self.assertTrue(worker.stop_requested())
        self.assertEqual(worker.stop_deadline(), 12.5)

    def test_publishing_ends_with_the_clock(self):
        page = AgentPage()
        worker, _ = worker_of(page)
        self.assertFalse(worker.is_isolated())
        page.put("q", 24, time.monotonic_ns())
        self.assertTrue(worker.is_isolated())
        page.put("q", 24, time.monotonic_ns() + 3600 * 10**9)
        self.assertFalse(worker.is_isolated())
        page.put("q", 24, 0)
        self.assertTrue(worker.is_isolated())

    def test_workers_cannot_agree_without_a_process_group(self):
        code = ("import os, ddprun\n"
                "try: ddprun.worker().stop_requested()\n"
                "except (RuntimeError, ImportError) as error: print(type(error).__name__, error)")
        told = run_python(code, environment_of())
        if "ImportError" in told.stdout or "ModuleNotFoundError" in told.stdout:
            self.skipTest("no torch here")
        self.assertIn("RuntimeError stop_requested: rank 4 of 6", told.stdout, told.stderr)
        self.assertIn("init_process_group()", told.stdout)


class Costs(unittest.TestCase):
    def test_importing_it_imports_nothing_else(self):
        told = run_python("import sys, time, __future__\nbefore = set(sys.modules)\n"
                          "import ddprun\nprint(*sorted(set(sys.modules) - before))")
        self.assertEqual(told.stdout.split(), ["ddprun", "ddprun._page", "ddprun._worker"],
                         told.stderr)

    def test_importing_and_progress_leave_signals_alone(self):
        told = run_python(
            "import signal\n"
            "def all(): return [signal.getsignal(one) for one in signal.valid_signals()]\n"
            "before = all()\nimport ddprun\nddprun.worker().progress(1)\nprint(before == all())")
        self.assertEqual(told.stdout, "True\n", told.stderr)

    def test_progress_makes_no_system_call(self):
        """In a process that the kernel ends at any other system call than read and write. Some
        machines ask the kernel for the time: here the clock stands still."""
        page = AgentPage(version=7)
        told = run_python(
            "import ctypes, gc, ddprun\n"
            "worker = ddprun.worker()\n"
            "ddprun._worker.monotonic_ns = lambda: 7\n"
            "libc = ctypes.CDLL(None)\n"
            "gc.disable()\n"
            "assert libc.prctl(22, 1, 0, 0, 0) == 0\n"
            "for step in range(1000): worker.progress(step, samples=32, loss=0.5)\n"
            "libc.write(1, b'told', 4)\n", environment_of(page))
        self.assertEqual(told.stdout, "told", told.stderr)
        self.assertEqual(page.number("Q", WithPage.SLOT + 8), 999)


if __name__ == "__main__":
    unittest.main()
