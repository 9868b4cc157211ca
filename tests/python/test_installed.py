"""`pip install` of the folder gives the package, with its types and without dependencies."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from test_worker import PACKAGE


class Installed(unittest.TestCase):
    def test_it_works_from_where_pip_puts_it(self):
        with tempfile.TemporaryDirectory() as folder:
            # setuptools leaves files beside what it builds.
            source, target = os.path.join(folder, "source"), os.path.join(folder, "target")
            shutil.copytree(PACKAGE, source)
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-compile",
                 "--no-build-isolation", "--disable-pip-version-check", "--target", target, source],
                capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            names = sorted(os.listdir(os.path.join(source, "ddprun")))
            expected = [name for name in names if name.endswith(".py") or name == "py.typed"]
            installed = sorted(os.listdir(os.path.join(target, "ddprun")))
            self.assertEqual(installed, expected)
            told = subprocess.run(
                [sys.executable, "-B", "-c", "import ddprun; print(ddprun.__file__)"], cwd=folder,
                env={"PYTHONPATH": target}, capture_output=True, text=True)
            self.assertTrue(told.stdout.startswith(target), told.stdout + told.stderr)


if __name__ == "__main__":
    missing = [name for name in ("pip", "setuptools") if importlib.util.find_spec(name) is None]
    if missing:
        print("LEFT OUT: no " + ", ".join(missing) + " here, run scripts/setup.sh")
    else:
        unittest.main()
