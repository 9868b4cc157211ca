"""examples/python_ddp/train_with_ddprun.py is train.py with ddprun's checkpoints."""

import ast
import difflib
import os
import subprocess
import sys
import unittest

from test_worker import PACKAGE, ROOT


class Example(unittest.TestCase):
    def test_it_is_the_unmodified_one_with_other_checkpoints(self):
        texts = []
        for name in ("train.py", "train_with_ddprun.py"):
            path = os.path.join(ROOT, "examples", "python_ddp", name)
            with open(path, encoding="utf-8") as file:
                texts.append(file.read().splitlines())
        changes = [line for line in difflib.ndiff(*texts) if line[0] in "+-"]
        added = [line for line in changes if line[0] == "+" and line[1:].strip()]
        self.assertLess(len(added), 60, added)
        self.assertLessEqual(len(texts[1]), len(texts[0]) + 10)
        self.assertNotIn("ddprun", "\n".join(texts[0]).lower())

    def test_it_asks_after_every_step(self):
        path = os.path.join(ROOT, "examples", "python_ddp", "train_with_ddprun.py")
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        loops = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.For)]
        steps = [loop for loop in loops if "optimizer.step()" in loop]
        self.assertEqual(len(steps), 1)
        self.assertIn("worker.stop_requested()", steps[0])

    def test_it_finds_the_package_of_its_checkout(self):
        # As a script's own folder is: before what is installed.
        look = "import sys; sys.path.insert(0, sys.argv[1]); import ddprun; print(ddprun.__file__)"
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        told = subprocess.run(
            [sys.executable, "-B", "-c", look, os.path.join(ROOT, "examples", "python_ddp")],
            cwd="/", env=environment, capture_output=True, text=True)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertEqual(os.path.realpath(told.stdout.strip()),
                         os.path.realpath(os.path.join(PACKAGE, "ddprun", "__init__.py")))


if __name__ == "__main__":
    unittest.main()
