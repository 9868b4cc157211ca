"""The wheel in a clean virtual environment: its programs, their helpers beside them, `python -m`.

The environment lies in a path with blanks, and nothing is taken from the network. Usage:
wheel_install.py BUILD SOURCE makes a wheel of what the build in BUILD installs, for this machine;
wheel_install.py --wheel WHEEL takes one that scripts/package.sh has made.
"""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = """
import os, sys
import ddprun
worker = ddprun.worker()
assert worker.is_under_ddprun
# In one piece: the other worker writes to the same console.
print(f"rank {worker.rank} of {worker.world_size} {' '.join(sys.argv[1:])}\\n", end="", flush=True)
"""
PROGRAMS = ["ddpctl", "ddprun", "ddprun-gpu-use", "ddprun-keeper", "ddprun-memory",
            "ddprun-preload.so", "ddprun-readahead", "ddprun-rendezvous", "ddprun-stacks"]


def output_of(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False, stdin=subprocess.DEVNULL, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def make_wheel(build, source, folder):
    installed = os.path.join(folder, "installed")
    output_of("cmake", "--install", build, "--component", "programs", "--prefix", installed)
    return output_of(sys.executable, os.path.join(source, "packaging", "wheel.py"),
                     "--installed", installed, "--version", "0.0.1",
                     "--platform", "linux_" + os.uname().machine, "--out", folder,
                     "--licence", os.path.join(source, "LICENSE")).strip()


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder_owner = tempfile.TemporaryDirectory(prefix="ddprun wheel ")
        cls.folder = cls.folder_owner.name
        wheel = ARGUMENTS[1] if ARGUMENTS[0] == "--wheel" else make_wheel(*ARGUMENTS, cls.folder)
        cls.environment = os.path.join(cls.folder, "an environment")
        cls.bin = os.path.join(cls.environment, "bin")
        cls.python = os.path.join(cls.bin, "python")
        output_of(sys.executable, "-m", "venv", cls.environment)
        output_of(cls.python, "-m", "pip", "install", "--quiet", "--no-index",
                  "--disable-pip-version-check", wheel)
        cls.script = os.path.join(cls.folder, "a script.py")
        with open(cls.script, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        home = os.path.join(cls.folder, "home")
        os.mkdir(home)
        cls.variables = {"PATH": cls.bin + ":/usr/bin:/bin", "HOME": home}

    @classmethod
    def tearDownClass(cls):
        cls.folder_owner.cleanup()

    def runs_two_workers(self, *command, arguments=(), says=""):
        text = output_of(*command, "--nproc-per-node", "2", self.script, *arguments,
                         env=self.variables, cwd=self.folder)
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2{says}", text)

    def test_bin_ddprun_is_the_program_with_its_helpers_beside_it(self):
        self.assertEqual(sorted(set(os.listdir(self.bin)) & set(PROGRAMS)), PROGRAMS)
        for program in PROGRAMS:
            path = os.path.join(self.bin, program)
            with open(path, "rb") as file:
                self.assertEqual(file.read(4), b"\x7fELF", program)
            self.assertTrue(os.access(path, os.X_OK), program)

    def test_the_library_of_checkpoints_is_in_the_package(self):
        text = output_of(self.python, "-B", "-c", "import ddprun._library as l\n"
                         "path = l.find_library()\nl.Library(path)\nprint(path)",
                         env=self.variables, cwd=self.folder)
        site = output_of(self.python, "-c", "import ddprun; print(ddprun.__path__[0])").strip()
        self.assertEqual(text.strip(), os.path.join(os.path.realpath(site),
                                                    "ddprun-checkpoint.so"))

    def test_ddprun_runs_a_script(self):
        self.runs_two_workers(os.path.join(self.bin, "ddprun"), arguments=["a b"], says=" a b")

    def test_ddprun_runs_through_a_link(self):
        link = os.path.join(self.folder, "link to ddprun")
        os.symlink(os.path.join(self.bin, "ddprun"), link)
        self.runs_two_workers(link)

    def test_python_m_ddprun_runs_a_script_with_that_python(self):
        self.variables = dict(self.variables, PATH="/usr/bin:/bin")
        self.runs_two_workers(self.python, "-m", "ddprun")

    def test_ddprun_torchrun_is_ddprun(self):
        self.runs_two_workers(os.path.join(self.bin, "ddprun-torchrun"))

    def test_ddprun_launch_passes_the_local_rank(self):
        self.runs_two_workers(os.path.join(self.bin, "ddprun-launch"), says=" --local")

    def test_the_programs_of_a_folder_that_pip_filled_are_found(self):
        target = os.path.join(self.folder, "a target")
        os.makedirs(os.path.join(target, "bin"))
        for name in PROGRAMS:
            os.symlink(os.path.join(self.bin, name), os.path.join(target, "bin", name))
        site = output_of(self.python, "-c", "import ddprun; print(ddprun.__path__[0])").strip()
        os.symlink(site, os.path.join(target, "ddprun"))
        self.variables = dict(self.variables, PATH="/usr/bin:/bin", PYTHONPATH=target)
        self.runs_two_workers("/usr/bin/env", "python3", "-m", "ddprun")

    def test_the_extra_debug_brings_py_spy(self):
        text = output_of(self.python, "-c", "import importlib.metadata as m\n"
                         "d = m.metadata('ddprun')\n"
                         "print(d.get_all('Provides-Extra'), d.get_all('Requires-Dist'))")
        self.assertRegex(text, r"^\['debug'\] \['py-spy>=[\d.]+; extra == \"debug\"'\]$")

    def test_the_flags_are_ddpruns(self):
        for name in ("ddprun", "ddprun-torchrun"):
            text = output_of(os.path.join(self.bin, name), "--help", env=self.variables)
            self.assertIn("--nproc-per-node", text)


if __name__ == "__main__":
    ARGUMENTS = [os.path.abspath(word) if not word.startswith("-") else word
                 for word in sys.argv[1:]]
    unittest.main(argv=sys.argv[:1])
