#!/usr/bin/env python3
"""Workers on the fake GPU under ddprun, which asks the fake driver and the fake NCCL.

usage: under_ddprun.py --build FOLDER --programs FOLDER --fake-gpu FOLDER [--python FILE]
                       [unittest's words]

--programs says where ddprun and ddprun-gpu-use are, of any build; without them nothing runs, aloud.
--python is one that has what PyTorch imports.
"""

import glob
import os
import pickle
import random
import re
import subprocess
import sys
import time

import fake_machine
from fake_machine import DEADLINE, options, program

KILLS = 20


class TrainingTest(fake_machine.UnderDdprun):
    has_python = False

    def train(self, name):
        return self.start("--max-restarts", "3", os.path.join(options.build, "bin", "train_digits"),
                          "--epochs", "4", "--checkpoint-dir", os.path.join(self.folder, name))

    def train_python(self, name, *flags, steps, **variables):
        return self.start_python("python_training.py", name, *flags, words=[str(steps)],
                                 **variables)

    def start_python(self, script, name, *flags, words=(), **variables):
        """With the package ddprun of this tree, and PyTorch of the same LibTorch."""
        here = os.path.dirname(os.path.abspath(__file__))
        package = os.path.join(here, "..", "..", "worker_runtime", "python")
        self.environment.update(variables, PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=":".join(
            [os.path.join(options.build, "libtorch"), package]),
            DDPRUN_CHECKPOINT_LIBRARY=os.path.join(options.programs, "ddprun-checkpoint.so"))
        self.require_python()
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        return self.start(*flags, options.python, os.path.join(here, script), folder, *words)

    def require_python(self):
        """Skips the test if --python lacks what PyTorch imports. Tried once: it takes seconds."""
        if TrainingTest.has_python:
            return
        found = subprocess.run([options.python, "-c", "import torch; torch.zeros(1).cuda()"],
                               env=self.environment, capture_output=True, text=True, check=False,
                               timeout=DEADLINE)
        lacks = re.search(r"ModuleNotFoundError: No module named '(\w+)", found.stderr)
        if lacks and lacks[1] not in ("torch", "torchgen", "functorch", "ddprun"):
            self.skipTest(f"{options.python} lacks what PyTorch imports: "
                          f"{found.stderr.splitlines()[-1]}; scripts/setup.sh installs it")
        self.assertEqual(found.returncode, 0, found.stderr)
        TrainingTest.has_python = True

    def parameters(self, said):
        found = re.findall(r"parameters ([0-9a-f]{16})", said)
        self.assertTrue(found, said)
        return found[-1]

    def used_gpus(self):
        """The GPUs that a process had a context on, by UUID."""
        return {name.rpartition(".")[0] for name in os.listdir(self.state)
                if name.startswith("GPU-")}

    def test_a_worker_for_each_gpu_trains_and_goes_on_after_a_kill(self):
        """Assumed of NCCL: over NVLink a kernel waits for ever for a dead peer."""
        run = self.train("undisturbed")
        said = self.read_to_end(run)
        self.assertIn("training on 2 workers", said)
        self.assertEqual(len(self.used_gpus()), 2, said)
        expected = self.parameters(said)

        run = self.train("disturbed")
        said = self.read_until(run, "epoch 1/")
        os.kill(self.worker(1, "train_digits"), 9)
        said += run.communicate(timeout=DEADLINE)[0]
        self.assertEqual(run.returncode, 0, said)
        self.assertEqual(self.parameters(said), expected, said)

    def test_a_training_in_python_ends_alike_after_many_kills(self):
        """Assumed of NCCL: over NVLink a kernel waits for ever for a dead peer."""
        steps = 3 * KILLS
        run = self.train_python("undisturbed", steps=steps)
        said = self.read_to_end(run)
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

    def test_a_training_in_python_verifies_that_a_resume_loses_nothing(self):
        run = self.train_python("undisturbed", steps=4)
        expected = self.parameters(self.read_to_end(run))
        run = self.train_python("verified", steps=4, VERIFY="2")
        said = self.read_to_end(run)
        self.assertIn("a resume restores all of model, optimizer and the random states, bit for "
                      "bit\n", said)
        self.assertEqual(self.parameters(said), expected, said)

    def test_a_checkpoint_in_python_outlives_the_model_that_it_copies(self):
        run = self.start_python("python_dropped.py", "dropped", DDPRUN_FAKE_GPU_POISON="1",
                                DDPRUN_FAKE_GPU_TASK_DELAY_US="5000")
        self.read_to_end(run)

    def test_the_slow_rank_of_a_training_in_python_is_named(self):
        """The waits are those that DistributedDataParallel measures by CUDA's events."""
        run = self.train_python("slow", steps=10**9, SLOW="0.02")
        self.read_until(run, "step 200\n")
        said, end = "", time.monotonic() + DEADLINE
        while "slowest" not in said:
            self.assertLess(time.monotonic(), end, said)
            self.read_until(run, "step")
            said = self.status(run)
        self.assertIn("slowest rank 1; ", said)

    def test_flight_recorders_are_kept_beside_the_stacks(self):
        """Assumed of NCCL: a kernel that waits touches no memory of its GPU."""
        self.environment.update(
            TORCH_NCCL_DEBUG_INFO_PIPE_FILE=os.path.join(self.folder, "ask_"),
            TORCH_FR_DUMP_TEMP_FILE=os.path.join(self.folder, "record_"))
        run = self.start("--hang-timeout", "4", "--max-restarts", "0", program("nccl_peer"),
                         "behind", "nccl")
        self.read_to_end(run, 94)
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


if __name__ == "__main__":
    of_this_test = fake_machine.parser_of(__doc__)
    fake_machine.add_options_of_ddprun(of_this_test)
    of_this_test.add_argument("--python", default="")
    of_this_test.parse_args(namespace=options)
    options.python = options.python or sys.executable
    if not fake_machine.has_ddprun():
        print(f"LEFT OUT: all of it: no ddprun in {options.programs}; "
              "configure with -DDDPRUN_PROGRAMS=FOLDER", flush=True)
        sys.exit(0)
    fake_machine.run_tests()
