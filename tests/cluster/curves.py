"""Curves of trainings that are killed, read by the real TensorBoard.

usage: curves.py DDPRUN GAN [unittest's words]; GAN may be empty: no LibTorch.
"""

import glob
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

DDPRUN = GAN = ""
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../worker_runtime/python")
PATIENCE_S = 300  # on a machine that has no time for it

# Two ranks; the first dies before the save of step 10, in the first generation.
TRAINING = """
import os, signal, sys
import ddprun
worker = ddprun.worker()
saved = sys.argv[1]
start = int(open(saved).read()) if os.path.exists(saved) else 0
for step in range(start + 1, 13):
    worker.scalar("loss", 1 / step, step)
    if step == 10 and worker.generation == 1 and worker.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if step % 5 == 0 and worker.rank == 0:
        with open(saved + ".new", "w") as file:
            file.write(str(step))
        os.replace(saved + ".new", saved)
    if worker.rank == 1 and worker.generation == 1 and step == 12:
        signal.pause()
"""


class CurvesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def train(self, *command, **environment):
        """Returns the console output of a job of two workers."""
        environment = {**os.environ, "PYTHONPATH": PACKAGE, **environment}
        done = subprocess.run(
            [DDPRUN, "--nproc-per-node", "2", "--max-restarts", "5", *command],
            cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def train_in_python(self, **environment):
        script = os.path.join(self.folder, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(TRAINING)
        saved = os.path.join(self.folder, "saved")
        return self.train(sys.executable, script, saved, **environment)

    def curves(self, folder):
        """Every curve as TensorBoard shows it: (step, value) in its order."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        run = EventAccumulator(os.path.join(self.folder, folder), size_guidance={"scalars": 0})
        run.Reload()
        return {tag: [(event.step, event.value) for event in run.Scalars(tag)]
                for tag in run.Tags()["scalars"]}

    def files(self, folder):
        return glob.glob(os.path.join(self.folder, folder, "events.out.tfevents.*"))

    def test_a_killed_training_in_cpp_has_every_step_once(self):
        if not GAN:
            self.skipTest("LEFT OUT: there is no LibTorch here")
        self.train(GAN, "train", os.path.join(self.folder, "saved"), "4", "1",
                   DDPRUN_TENSORBOARD_DIR="curves")
        # A generation that ends before its first step, because the other rank died, writes no file.
        generations = sorted(int(name.rsplit(".", 1)[1]) for name in self.files("curves"))
        self.assertLessEqual(set(generations), {1, 2, 3, 4, 5})
        self.assertEqual(len(set(generations)), len(generations), "rank 0 writes, nobody else")
        self.assertEqual(generations[-1], 5)
        curves = self.curves("curves")
        self.assertEqual([step for step, _ in curves["rate"]], list(range(1, 37)))
        # 12 steps of an epoch, and the rate is halved after each.
        self.assertEqual([round(value, 6) for _, value in curves["rate"]],
                         [0.05] * 12 + [0.025] * 12 + [0.0125] * 12)
        marks = curves["ddprun/generation"]
        self.assertEqual(marks[-1][1], 5)
        self.assertGreater(len(marks), 1, "no restart can be seen")

    def test_a_killed_training_in_python_has_every_step_once(self):
        self.train_in_python()
        runs = os.listdir(os.path.join(self.folder, "runs"))
        self.assertEqual(len(runs), 1, "a run's generations are in one folder")
        run = os.path.join("runs", runs[0])
        self.assertEqual(len(self.files(run)), 2, "rank 0 of each generation writes, nobody else")
        curves = self.curves(run)
        self.assertEqual([step for step, _ in curves["loss"]], list(range(1, 13)))
        self.assertAlmostEqual(curves["loss"][9][1], 0.1, places=6)
        self.assertEqual(curves["ddprun/generation"], [(1, 1.0), (6, 2.0)])

    def test_a_folder_that_cannot_be_made_is_one_line_and_the_training_goes_on(self):
        text = self.train_in_python(DDPRUN_TENSORBOARD_DIR="/proc/no/such")
        told = [line for line in text.splitlines() if line.startswith("ddprun: rank 0: ")]
        self.assertEqual(len(told), 2, text)  # of two generations
        for line in told:
            self.assertIn("No such file or directory: '/proc/no'", line)
            self.assertIn("no curve is written from now on", line)

    def test_without_tensorboard_it_says_what_to_install(self):
        os.mkdir(os.path.join(self.folder, "hidden"))
        with open(os.path.join(self.folder, "hidden", "tensorboard.py"), "w",
                  encoding="utf-8") as file:
            file.write("raise ModuleNotFoundError(\"No module named 'tensorboard'\")\n")
        text = self.train_in_python(
            PYTHONPATH=os.path.join(self.folder, "hidden") + os.pathsep + PACKAGE)
        self.assertIn("rank 0: No module named 'tensorboard'; no curve is written from now on; "
                      "pip install tensorboard", text)


if __name__ == "__main__":
    if importlib.util.find_spec("tensorboard") is None:
        print("LEFT OUT: there is no package tensorboard: scripts/setup.sh --peers installs it")
        sys.exit(0)
    DDPRUN, GAN = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
