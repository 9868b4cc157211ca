"""Trainings in C++ with --warm: the next generation goes on in processes that waited before main().

Method: train_digits, whose parameters at the end are the same bits on every run. After its first
epoch both workers are stopped, so that nothing ends, until both standbys wait; then one worker is
killed. Needs LibTorch, as the program does.

usage: warm_program.py BIN_DIR [unittest's words]
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from process_tree import descendants

BIN = ""
SLOTS = 2
RECVMSG = {"x86_64": 47, "aarch64": 212}[platform.machine()]

# Notes each of its starts, and becomes the program.
SCRIPT = """#!/bin/sh
echo started >> "$STARTS"
exec "$PROGRAM" "$@"
"""


def was_standby(pid):
    """It was started as a standby, and may have its place by now."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"DDPRUN_STANDBY=" in file.read()
    except OSError:
        return False


def is_waiting(pid):
    """A standby that waits for its place: it is in recvmsg()."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return was_standby(pid) and file.read().startswith(f"{RECVMSG} ")
    except OSError:
        return False


class Programs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ddprun-warm-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.program = os.path.join(BIN, "train_digits")
        self.said = ""

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *flags, program=None, checkpoints="checkpoints", **variables):
        self.said = ""
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("PET_", "DDPRUN_", "TORCH", "OMP_", "SLURM"))}
        job = subprocess.Popen(
            [os.path.join(BIN, "ddprun"), "--nproc-per-node", str(SLOTS), "--max-restarts", "3",
             *flags, program or self.program, "--epochs", "3", "--checkpoint-dir",
             self.path(checkpoints)], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**environment, "TMPDIR": self.folder, "HOME": self.folder, **variables})
        for clean in (job.stdout.close, job.wait, job.kill):  # the last one first
            self.addCleanup(clean)
        return job

    def wait_for(self, job, pattern):
        for line in job.stdout:
            self.said += line
            if re.search(pattern, line):
                return
        self.fail(f"no line with '{pattern}'; it said:\n{self.said}")

    def end(self, job):
        """The parameters of a job that succeeds."""
        self.said += job.communicate()[0]
        self.assertEqual(job.returncode, 0, self.said)
        return re.search("^parameters (.*)$", self.said, re.MULTILINE)[1]

    def cold(self):
        """The parameters of an undisturbed training."""
        return self.end(self.start(checkpoints="others"))

    def workers(self, job, program=None):
        path = os.path.realpath(program or self.program)
        found = []
        for pid in descendants(job.pid):
            try:
                if os.readlink(f"/proc/{pid}/exe") == path and not is_waiting(pid):
                    found.append(pid)
            except OSError:
                pass
        return found

    def standbys_of(self, job):
        """Both, once they wait; the workers stand still from now on."""
        self.wait_for(job, "^epoch 2/3")  # The checkpoint of epoch 1 is on the disk.
        # A standby that still starts does not wait yet.
        workers = [pid for pid in self.workers(job, job.args[job.args.index("--epochs") - 1])
                   if not was_standby(pid)]
        self.assertEqual(len(workers), SLOTS, self.said)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        standbys = []
        while len(standbys) < SLOTS:
            self.assertIsNone(job.poll())
            os.sched_yield()
            standbys = [pid for pid in descendants(job.pid) if is_waiting(pid)]
        return workers, standbys

    @staticmethod
    def kill_one(workers):
        os.kill(workers[1], signal.SIGKILL)
        os.kill(workers[0], signal.SIGCONT)

    def test_a_killed_training_goes_on_in_its_standbys_bit_for_bit(self):
        expected = self.cold()
        for how in ("on", "auto"):
            with self.subTest(how):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                job = self.start("--warm", how)
                workers, standbys = self.standbys_of(job)
                self.kill_one(workers)
                self.wait_for(job, "^resumed from")
                self.assertEqual(sorted(self.workers(job)), sorted(standbys), self.said)
                self.assertEqual(self.end(job), expected)
                self.assertNotIn("--warm", self.said)
                for pid in workers + standbys:
                    self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_standbys_that_die_or_hang_are_no_reason_to_wait(self):
        expected = self.cold()
        for does in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(does):
                shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
                job = self.start("--warm", "on")
                workers, standbys = self.standbys_of(job)
                for pid in standbys:
                    os.kill(pid, does)
                self.kill_one(workers)
                self.assertEqual(self.end(job), expected)
                self.assertRegex(
                    self.said, "--warm: (these start cold|local rank [01] starts cold)")

    def test_a_program_that_was_replaced_has_its_standbys_thrown_away(self):
        expected = self.cold()
        program = self.path("train")
        shutil.copy(self.program, program)
        job = self.start("--warm", "on", program=program)
        workers, _ = self.standbys_of(job)
        shutil.copy(self.program, program + ".new")
        os.rename(program + ".new", program)
        self.kill_one(workers)
        self.assertEqual(self.end(job), expected)
        self.assertIn(f"{os.path.realpath(program)} has changed", self.said)

    def test_a_script_that_starts_the_program_is_never_started_before_its_time(self):
        script = self.path("train.sh")
        with open(script, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        os.chmod(script, 0o755)
        job = self.start("--warm", "on", program=script, PROGRAM=self.program,
                         STARTS=self.path("starts"))
        self.wait_for(job, "^epoch 2/3")  # The checkpoint of epoch 1 is on the disk.
        workers = self.workers(job)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        self.wait_for(job, "--warm: train.sh has not told that it waits for its place")
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        self.end(job)
        with open(self.path("starts"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "started\n" * SLOTS)


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    unittest.main()
