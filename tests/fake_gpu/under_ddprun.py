#!/usr/bin/env python3
"""Workers on the fake GPU under ddprun, which asks the fake driver and the fake NCCL.

usage: under_ddprun.py --build FOLDER --programs FOLDER --fake-gpu FOLDER [--python FILE]
                       [unittest's words]

--programs says where ddprun and ddprun-gpu-use are, of any build; without them nothing runs, aloud.
--python is one that has what PyTorch imports.
"""

import argparse
import glob
import os
import pickle
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest

DEADLINE = 180  # seconds, for what hangs
KILLS = 20
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

    def train(self, name):
        return self.start("--max-restarts", "3", os.path.join(options.build, "bin", "train_digits"),
                          "--epochs", "4", "--checkpoint-dir", os.path.join(self.folder, name))

    def train_python(self, name, *flags, steps, **variables):
        """With the package ddprun of this tree, and PyTorch of the same LibTorch."""
        here = os.path.dirname(os.path.abspath(__file__))
        package = os.path.join(here, "..", "..", "worker_runtime", "python")
        self.environment.update(variables, PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=":".join(
            [os.path.join(options.build, "libtorch"), package]))
        found = subprocess.run([options.python, "-c", "import torch; torch.zeros(1).cuda()"],
                               env=self.environment, capture_output=True, text=True, check=False,
                               timeout=DEADLINE)
        lacks = re.search(r"ModuleNotFoundError: No module named '(\w+)", found.stderr)
        if lacks and lacks[1] not in ("torch", "torchgen", "functorch", "ddprun"):
            self.skipTest(f"{options.python} lacks what PyTorch imports: "
                          f"{found.stderr.splitlines()[-1]}; scripts/setup.sh installs it")
        self.assertEqual(found.returncode, 0, found.stderr)
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        return self.start(*flags, options.python, os.path.join(here, "python_training.py"), folder,
                          str(steps))

    def start_behind(self, *flags, **variables):
        """Rank 1 does not launch the second AllReduce, for which rank 0 waits."""
        self.environment.update(variables)
        peer = os.path.join(options.build, "tests", "fake_gpu", "nccl_peer")
        return self.start(*flags, peer, "behind", "nccl")

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

    def read_until(self, run, words):
        said = ""
        while words not in said:
            line = run.stdout.readline()
            self.assertTrue(line, said)
            said += line
        return said

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
        run = self.train("undisturbed")
        said = run.communicate(timeout=DEADLINE)[0]
        self.assertEqual(run.returncode, 0, said)
        self.assertIn("training on 2 workers", said)
        self.assertEqual(len(self.used_gpus()), 2, said)
        expected = self.parameters(said)

        run = self.train("disturbed")
        said = self.read_until(run, "epoch 1/")
        os.kill(self.worker(1), 9)
        said += run.communicate(timeout=DEADLINE)[0]
        self.assertEqual(run.returncode, 0, said)
        self.assertEqual(self.parameters(said), expected, said)

    def test_a_training_in_python_ends_alike_after_many_kills(self):
        steps = 3 * KILLS
        run = self.train_python("undisturbed", steps=steps)
        said = run.communicate(timeout=DEADLINE)[0]
        self.assertEqual(run.returncode, 0, said)
        expected = self.parameters(said)

        # Each one comes within three steps of the one before, at most two of which are kept.
        dice = random.Random(KILLS)
        deaths = [f"{dice.randrange(2)}@{3 * kill + dice.randrange(1, 4)}{dice.choice(['', '+'])}"
                  for kill in range(KILLS)]
        run = self.train_python("disturbed", "--max-restarts", str(KILLS), steps=steps,
                                DEATHS=" ".join(deaths))
        said = run.communicate(timeout=KILLS * DEADLINE)[0]
        self.assertEqual(run.returncode, 0, said)
        self.assertIn(f"generation {KILLS + 1}: 2 workers", said)
        self.assertEqual(self.parameters(said), expected, said)

    def test_a_training_in_python_leaves_when_asked_and_goes_on(self):
        run = self.train_python("left", steps=10**9)
        said = self.read_until(run, "step 3\n")
        run.terminate()
        said += run.communicate(timeout=DEADLINE)[0]
        left = re.findall(r"rank \d leaves after step (\d+)$", said, re.MULTILINE)
        self.assertEqual((len(left), len(set(left))), (2, 1), said)
        steps = int(left[0]) + 5
        run = self.train_python("left", steps=steps)
        said = run.communicate(timeout=DEADLINE)[0]
        self.assertIn(f"resumed after step {left[0]}\n", said)
        undisturbed = self.train_python("undisturbed", steps=steps)
        expected = self.parameters(undisturbed.communicate(timeout=DEADLINE)[0])
        self.assertEqual(self.parameters(said), expected, said)

    def test_the_slow_rank_of_a_training_in_python_is_named(self):
        """The waits are those that DistributedDataParallel measures by CUDA's events."""
        run = self.train_python("slow", steps=10**9, SLOW="0.02")
        self.read_until(run, "step 200\n")
        said, end = "", time.monotonic() + DEADLINE
        while "slowest" not in said:
            self.assertLess(time.monotonic(), end, said)
            self.read_until(run, "step")
            said = subprocess.run(
                [os.path.join(options.programs, "ddpctl"), "status", "--log-dir",
                 os.path.join(self.folder, "logs")], env=self.environment, capture_output=True,
                text=True, check=True, timeout=DEADLINE).stdout
        self.assertIn("slowest rank 1; ", said)

    def test_the_rank_that_has_launched_less_is_named(self):
        """Rests on this: RAS counts a collective when it is called."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = "127.0.0.1:%d" % free.getsockname()[1]
        said = self.read_until(self.start_behind("--hang-notice", "2", NCCL_RAS_ADDR=address),
                               "stands still")
        self.assertRegex(said, r"communicator of 2 ranks stands still for \d+ s: rank 1 on "
                               r"127\.0\.0\.1 has launched 1 AllReduce, others 2")

    def test_that_gpus_draw_little_of_what_they_drew_is_told(self):
        """Rests on this: a kernel of NCCL that waits draws less than half of what work draws."""
        said = self.read_until(self.start_behind("--hang-notice", "2"), "only wait for")
        self.assertRegex(said, r"least draws GPU \d+ \(rank \d\), 120 W of 400 W before")

    def test_flight_recorders_are_kept_beside_the_stacks(self):
        """Rests on this: a kernel of NCCL that waits touches no memory of its GPU."""
        run = self.start_behind(
            "--hang-timeout", "4", "--max-restarts", "0",
            TORCH_NCCL_DEBUG_INFO_PIPE_FILE=os.path.join(self.folder, "ask_"),
            TORCH_FR_DUMP_TEMP_FILE=os.path.join(self.folder, "record_"))
        said = run.communicate(timeout=DEADLINE)[0]
        self.assertEqual(run.returncode, 94, said)
        [stacks] = {os.path.realpath(path) for path in
                    glob.glob(os.path.join(self.folder, "logs", "*", "*", "stacks"))}
        states = {}
        for rank in range(2):
            with open(os.path.join(stacks, f"rank{rank}.txt"), encoding="utf-8") as file:
                self.assertIn(f"saved as nccl_trace_rank_{rank}", file.read())
            with open(os.path.join(stacks, f"nccl_trace_rank_{rank}"), "rb") as file:
                entries = pickle.load(file)["entries"]
            states[rank] = [entry["state"] for entry in entries
                            if entry["profiling_name"] == "nccl:all_reduce"]
        self.assertEqual(states, {0: ["completed", "scheduled"], 1: ["completed"]})

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
        # Each GPU has number:permille of use:memory:all memory:milliwatts:ranks. GPU 0 is idle.
        self.assertRegex(figures, r"^0:0:0:17179869184:70000:- 1:1000:[1-9]\d+:17179869184:\d+:0$")
        self.assertEqual(use, "unused")  # it holds memory, and computes nothing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--programs", required=True, type=os.path.abspath)
    parser.add_argument("--fake-gpu", required=True, type=os.path.abspath)
    parser.add_argument("--python", default="")
    parser.add_argument("tests", nargs="*")
    parser.parse_args(namespace=options)
    options.python = options.python or sys.executable
    if not os.path.exists(os.path.join(options.programs, "ddprun")):
        print(f"LEFT OUT: all of it: no ddprun in {options.programs}; "
              "configure with -DDDPRUN_PROGRAMS=FOLDER", flush=True)
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], "-v", *options.tests])
