"""ddprun --log-keep beside the job: what takes for ever to remove delays neither its start nor, for
long, its end.

usage: log_keep.py BIN_DIR [unittest's words]

Method: a copy of ddprun with a ddpctl beside it that does what a test wants. Fifos order all.
"""

import errno
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN = ""


class LogKeep(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-keep-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(self.path("bin"))
        for program in ("ddprun", "ddprun-keeper"):
            shutil.copy(os.path.join(BIN, program), self.path("bin"))
        self.environment = {
            key: value for key, value in os.environ.items()
            if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_", key)}
        self.environment.update(HOME=self.folder)
        for fifo in ("begun", "held"):
            os.mkfifo(self.path(fifo))

    def path(self, name):
        return os.path.join(self.folder, name)

    def ddpctl(self, script):
        """Writes the ddpctl beside ddprun. The script writes its arguments to `begun`."""
        with open(self.path("bin/ddpctl"), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.path("begun")}\n{script}\n')
        os.chmod(self.path("bin/ddpctl"), 0o755)

    def run_job(self):
        """Its worker ends only once ddpctl has begun: each waits for the other."""
        done = subprocess.run(
            [self.path("bin/ddprun"), "--log-dir", self.path("logs"), "--log-keep", "3",
             "--rdzv-id", "llama", "--warm", "off", "sh", "-c", f"cat {self.path('begun')}"],
            env=self.environment, cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        words = ["clean", "--log-dir", self.path("logs"), "--keep", "2", "--besides"]
        found = re.search("\n".join(map(re.escape, words)) + r"\n(llama_[0-9a-f]{8})\n",
                          done.stdout)
        self.assertTrue(found, done.stdout)
        self.assertEqual(os.readlink(self.path("logs/latest")), found[1])
        return done.stdout

    def test_workers_start_while_it_removes_and_its_complaint_is_told(self):
        self.ddpctl('echo "ddpctl: left /logs/llama_00000001: renaming it: no" >&2; exit 1')
        self.assertIn("ddprun: warning: --log-keep could not remove every run: ddpctl: left "
                      "/logs/llama_00000001: renaming it: no\n", self.run_job())

    def test_what_stays_for_ever_is_told_though_nothing_has_failed(self):
        self.ddpctl('echo "ddpctl: left 2 runs in /logs" >&2; echo "ddpctl: left more" >&2')
        told = self.run_job()
        self.assertIn("ddprun: warning: --log-keep could not remove every run: ddpctl: left "
                      "2 runs in /logs\n", told)
        self.assertNotIn("left more", told)

    def test_what_removes_for_ever_ends_with_ddprun(self):
        # Nothing ever writes to `held`.
        self.ddpctl(f"exec cat {self.path('held')}")
        self.assertNotIn("warning", self.run_job())
        try:
            held = os.open(self.path("held"), os.O_WRONLY | os.O_NONBLOCK)
        except OSError as refused:
            self.assertEqual(refused.errno, errno.ENXIO)
            return
        # It was killed, and the kernel may be about to end it.
        self.addCleanup(os.close, held)
        reader = select.poll()
        reader.register(held, 0)
        self.assertEqual(reader.poll(PATIENCE_S * 1000), [(held, select.POLLERR)], "it still reads")

    def test_a_file_system_that_stalls_holds_up_no_worker(self):
        """A lease on a file stands for it: who executes that file waits until it is given back."""
        self.ddpctl("exit 0")
        os.mkfifo(self.path("go"))
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # By it the kernel asks for the lease.
        with open(self.path("bin/ddpctl"), encoding="utf-8") as stalled:
            try:
                fcntl.fcntl(stalled, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as failure:
                self.skipTest(f"LEFT OUT: no lease can be had here: {failure}")
            with subprocess.Popen(
                    [self.path("bin/ddprun"), "--log-dir", self.path("logs"), "--log-keep", "3",
                     "--warm", "off", "sh", "-c",
                     f"echo here > {self.path('held')}; "
                     f"cat {self.path('go')} {self.path('begun')}"],
                    env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL) as job:
                with open(self.path("held"), encoding="utf-8") as held:
                    self.assertEqual(held.read(), "here\n")
                # It would wait for a reader of `begun`.
                is_executed = self.is_executed(self.path("bin/ddpctl"))
                fcntl.fcntl(stalled, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                with open(self.path("go"), "w", encoding="utf-8"):
                    pass
                self.assertEqual(job.wait(PATIENCE_S), 0)
        self.assertFalse(is_executed, "its worker waited for ddpctl")

    def is_executed(self, script):
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/cmdline", encoding="utf-8") as file:
                    words = file.read().split("\0")
            except OSError:
                continue
            # `env` waits to execute it; the shell that reads the script has done so.
            if words[1:2] == [script] and os.path.basename(words[0]) != "env":
                return True
        return False

    def test_without_it_nothing_is_removed_and_no_more_is_said_than_that(self):
        os.unlink(self.path("begun"))
        with open(self.path("begun"), "w", encoding="utf-8"):
            pass
        done = subprocess.run(
            [self.path("bin/ddprun"), "--log-dir", self.path("logs"), "--log-keep", "3",
             "--warm", "off", "true"],
            env=self.environment, cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("warning: --log-keep could not remove every run: ddpctl cannot be executed; "
                      "install it beside ddprun", done.stdout)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main()
