"""The common part of the tests on the fake GPU: options, a machine for each test, ddprun on it."""

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "gpu"))
import ranks as of_ranks  # noqa: E402  (it lies in another folder)

DEADLINE = of_ranks.DEADLINE
# Seconds that a waiting rank must stay silent. No figure is measured by this time.
A_WHILE = 2
options = argparse.Namespace()


def parser_of(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("tests", nargs="*")
    return parser


def add_options_of_ddprun(parser):
    parser.add_argument("--programs", required=True, type=os.path.abspath)
    parser.add_argument("--fake-gpu", required=True, type=os.path.abspath)


def has_ddprun():
    return os.path.exists(os.path.join(options.programs, "ddprun"))


def has_nvidia_driver():
    """Libraries that pretend to be NVIDIA's have no place beside NVIDIA's own."""
    script = os.path.join(HERE, "..", "..", "scripts", "has_nvidia_driver.sh")
    return subprocess.run([script], check=False).returncode == 0


def run_tests():
    """Runs no test beside NVIDIA's driver, and says so."""
    if has_nvidia_driver():
        print("LEFT OUT: all of it: NVIDIA's driver is here, so there is no fake GPU", flush=True)
    elif not os.path.exists(program("bare_peer")):
        sys.exit(f"{program('bare_peer')} is missing: scripts/build.sh builds it (presets fake-gpu "
                 "and release)")
    else:
        unittest.main(argv=[sys.argv[0], "-v", *options.tests])


def program(name):
    return os.path.join(options.build, "tests", "fake_gpu", name)


def environment_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


class FakeMachine(unittest.TestCase):
    """Each test has a machine of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.state = os.path.join(self.folder, "machine")
        os.mkdir(self.state)
        self.variables = {"DDPRUN_FAKE_GPU_STATE": self.state}

    def with_cleanup(self, ranks):
        self.addCleanup(ranks.__exit__)
        return ranks

    def texts(self, ranks):
        return "\n".join(f"rank {rank}: {ranks.text(rank)}"
                         for rank, process in enumerate(ranks.processes)
                         if process.poll() is not None)

    def require_exits(self, ranks, *wanted):
        codes = ranks.wait()
        self.assertEqual(codes, list(wanted), self.texts(ranks))

    def require_silent(self, ranks, rank):
        self.assertTrue(ranks.is_silent(rank, A_WHILE), ranks.outputs[rank])


class UnderDdprun(FakeMachine):
    """ddprun, which asks the fake driver and the fake NCCL."""

    def setUp(self):
        if not has_ddprun():
            self.skipTest(f"no ddprun in {options.programs}")
        super().setUp()
        # The driver alone is the system's: ranks find the rest by themselves.
        driver = os.path.join(self.folder, "driver")
        os.mkdir(driver)
        os.symlink(os.path.join(options.fake_gpu, "libnvidia-ml.so.1"),
                   os.path.join(driver, "libnvidia-ml.so.1"))
        self.environment = {**os.environ, **self.variables, "LD_LIBRARY_PATH": driver}

    def start(self, *arguments):
        run = subprocess.Popen(
            [os.path.join(options.programs, "ddprun"), "--nproc-per-node", "gpu", "--log-dir",
             os.path.join(self.folder, "logs"), *arguments],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def read_until(self, run, *words):
        """More of what the run says, until it has said all of these words."""
        said = ""
        deadline = threading.Timer(DEADLINE, run.kill)
        deadline.start()
        self.addCleanup(deadline.cancel)
        while not all(word in said for word in words):
            line = run.stdout.readline()
            self.assertTrue(line, said)
            said += line
        deadline.cancel()
        return said

    def read_to_end(self, run, code=0):
        said = run.communicate(timeout=DEADLINE)[0]
        self.assertEqual(run.returncode, code, said)
        return said

    def worker(self, rank, name):
        """The process of a worker of this test, which runs this program."""
        wanted = {f"RANK={rank}".encode(), f"DDPRUN_FAKE_GPU_STATE={self.state}".encode()}
        [pid] = [int(os.path.basename(path)) for path in glob.glob("/proc/[0-9]*")
                 if wanted <= set(environment_of(os.path.basename(path)))
                 and os.path.realpath(os.path.join(path, "exe")).endswith(f"/{name}")]
        return pid

    def status(self, run, *flags):
        """The answer of ddpctl about the run."""
        return subprocess.run(
            [os.path.join(options.programs, "ddpctl"), "status", str(run.pid), *flags,
             "--log-dir", os.path.join(self.folder, "logs")], env=self.environment,
            capture_output=True, text=True, check=True, timeout=DEADLINE).stdout
