#!/usr/bin/env python3
"""train_digits on the fake GPU under ddprun, which asks the fake driver.

usage: under_ddprun.py --build FOLDER --programs FOLDER --fake-gpu FOLDER [unittest's words]

--programs says where ddprun and ddprun-gpu-use are, of any build; without them nothing runs, aloud.
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

DEADLINE = 180  # seconds, for what hangs
options = argparse.Namespace()


def environment_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


class UnderDdprun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        state = os.path.join(folder.name, "machine")
        os.mkdir(state)
        # The driver alone is the system's: LibTorch finds the rest by itself.
        driver = os.path.join(folder.name, "driver")
        os.mkdir(driver)
        os.symlink(os.path.join(options.fake_gpu, "libnvidia-ml.so.1"),
                   os.path.join(driver, "libnvidia-ml.so.1"))
        self.environment = {**os.environ, "DDPRUN_FAKE_GPU_STATE": state,
                            "LD_LIBRARY_PATH": driver}

    def start(self, *arguments):
        run = subprocess.Popen(
            [os.path.join(options.programs, "ddprun"), "--nproc-per-node", "gpu",
             "--max-restarts", "3", "--log-dir", os.path.join(self.folder, "logs"),
             os.path.join(options.build, "bin", "train_digits"), "--epochs", "4",
             "--checkpoint-dir", os.path.join(self.folder, arguments[0])],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def parameters(self, said):
        found = re.findall(r"parameters ([0-9a-f]{16})", said)
        self.assertTrue(found, said)
        return found[-1]

    def worker(self, rank):
        """The process of a worker of this test."""
        wanted = {f"RANK={rank}".encode(),
                  f"DDPRUN_FAKE_GPU_STATE={self.environment['DDPRUN_FAKE_GPU_STATE']}".encode()}
        [pid] = [int(os.path.basename(path)) for path in glob.glob("/proc/[0-9]*")
                 if wanted <= set(environment_of(os.path.basename(path)))
                 and os.path.realpath(os.path.join(path, "exe")).endswith("/train_digits")]
        return pid

    def used_gpus(self):
        """The GPUs that a process had a context on, by UUID."""
        return {name.rpartition(".")[0]
                for name in os.listdir(self.environment["DDPRUN_FAKE_GPU_STATE"])
                if name.startswith("GPU-")}

    def test_a_worker_for_each_gpu_trains_and_goes_on_after_a_kill(self):
        run = self.start("undisturbed")
        said = run.communicate(timeout=DEADLINE)[0]
        self.assertEqual(run.returncode, 0, said)
        self.assertIn("training on 2 workers", said)
        self.assertEqual(len(self.used_gpus()), 2, said)
        expected = self.parameters(said)

        run = self.start("disturbed")
        said = ""
        while "epoch 1/" not in said:
            line = run.stdout.readline()
            self.assertTrue(line, said)
            said += line
        os.kill(self.worker(1), 9)
        said += run.communicate(timeout=DEADLINE)[0]
        self.assertEqual(run.returncode, 0, said)
        self.assertEqual(self.parameters(said), expected, said)

    def test_the_helper_reports_who_uses_which_gpu(self):
        holder = subprocess.Popen(
            [os.path.join(options.build, "tests", "gpu_peer"), "hold", "auto", "own", "64"],
            env={**self.environment, "CUDA_VISIBLE_DEVICES": "1"}, stdout=subprocess.PIPE,
            text=True)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline(), "holding\n")
        told = subprocess.run([os.path.join(options.programs, "ddprun-gpu-use")],
                              input=f"figures {holder.pid}\nuse 60000 {holder.pid}\n",
                              env=self.environment, capture_output=True, text=True, check=True,
                              timeout=DEADLINE).stdout
        print(f"gpu: {told}", flush=True)
        figures, use = told.splitlines()
        # Number, use in permille, memory, all memory, milliwatts, ranks: GPU 0 is idle.
        self.assertRegex(figures, r"^0:0:0:17179869184:70000:- 1:1000:[1-9]\d+:17179869184:\d+:0$")
        self.assertEqual(use, "unused")  # it holds memory, and computes nothing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--programs", required=True, type=os.path.abspath)
    parser.add_argument("--fake-gpu", required=True, type=os.path.abspath)
    parser.add_argument("tests", nargs="*")
    parser.parse_args(namespace=options)
    if not os.path.exists(os.path.join(options.programs, "ddprun")):
        print(f"LEFT OUT: all of it: no ddprun in {options.programs}; "
              "configure with -DDDPRUN_PROGRAMS=FOLDER", flush=True)
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], "-v", *options.tests])
