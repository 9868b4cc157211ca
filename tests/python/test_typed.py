"""The package is clean under `mypy --strict`, as its pyproject.toml has it."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PACKAGE = os.path.join(ROOT, "worker_runtime", "python")


class Typed(unittest.TestCase):
    def test_mypy_finds_nothing(self):
        if importlib.util.find_spec("mypy") is None:
            print("LEFT OUT: no mypy here, run scripts/setup.sh")
            self.skipTest("no mypy here")
        with tempfile.TemporaryDirectory() as cache:
            told = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", cache],
                                  cwd=PACKAGE, capture_output=True, text=True)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        self.assertRegex(told.stdout, r"no issues found in \d+ source files")


if __name__ == "__main__":
    unittest.main()
