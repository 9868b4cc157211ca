"""Which Python runs a script, with real environments of venv that have a ddprun.

usage: python_choice.py BIN_DIR [unittest's words]
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN = ""
SCRIPT = "import only_here\n"


class PythonChoice(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-python-")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)
        with open(self.path("train.py"), "w", encoding="utf-8") as script:
            script.write(SCRIPT)
        self.own = self.environment("own")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def environment(self, name):
        """With ddprun and a package that says whose it is."""
        root = self.path(name)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
        os.symlink(os.path.join(BIN, "ddprun"), os.path.join(root, "bin", "ddprun"))
        version = "python{}.{}".format(*sys.version_info)
        with open(os.path.join(root, "lib", version, "site-packages", "only_here.py"), "w",
                  encoding="utf-8") as package:
            package.write(f"print('under', {name!r})\n")
        return root

    def run_job(self, program, *words, **variables):
        kept = {key: value for key, value in os.environ.items() if not re.match(
            "SLURM|PET_|DDPRUN_|TORCH|PYTHON|VIRTUAL_ENV|CONDA_", key)}
        job = subprocess.run([program, "--log-dir", self.path("logs"), *words, "train.py"],
                             env={**kept, **variables}, cwd=self.folder, text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False)
        return job.returncode, job.stdout

    def test_the_packages_beside_a_ddprun_that_is_not_activated_are_found(self):
        python = os.path.join(self.own, "bin", "python3")
        for program in (os.path.join(self.own, "bin", "ddprun"), "own/bin/ddprun",
                        "./own/lib/../bin/ddprun"):
            code, said = self.run_job(program)
            self.assertEqual(code, 0, said)
            self.assertIn("under own", said)
            self.assertIn(f"Python: {python} (beside ddprun), not ", said)
        _, plan = self.run_job("own/bin/ddprun", "--dry-run")
        self.assertIn(f"python   {python} (beside ddprun)\n", plan)

    def test_the_ddprun_of_path_brings_its_environment(self):
        path = os.path.join(self.own, "bin")
        # Another Python comes first in PATH.
        os.mkdir(self.path("first"))
        os.symlink(sys.executable, self.path("first", "python3"))
        code, said = self.run_job("ddprun", PATH=f"{self.path('first')}:{path}")
        self.assertEqual(code, 0, said)
        self.assertIn("under own", said)

    def test_an_environment_that_was_activated_wins(self):
        code, said = self.run_job("own/bin/ddprun", VIRTUAL_ENV=self.environment("other"))
        self.assertEqual(code, 0, said)
        self.assertIn("under other", said)
        self.assertIn("($VIRTUAL_ENV), not ", said)

    def test_the_environment_of_a_tool_is_not_for_scripts(self):
        for receipt in ("pipx_metadata.json", "uv-receipt.toml"):
            with open(os.path.join(self.own, receipt), "w", encoding="utf-8"):
                pass
            code, said = self.run_job("own/bin/ddprun")
            self.assertEqual(code, 1, said)
            self.assertIn("No module named 'only_here'", said)
            os.remove(os.path.join(self.own, receipt))


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv.pop(1))
    unittest.main()
