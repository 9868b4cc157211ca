"""Real programs, cold beside warm: the same output, and the same parameters at the end.

Method: each is run with `--warm off`, with modules that are named, and with `--warm on`. It trains
with two workers and writes checkpoints; after the third step one of them is killed by SIGKILL, in
the warm runs once each slot has its standby. Then the second generation's workers must have been
standbys, or none of them, and what every worker of both generations wrote is compared, the hash of
the parameters among it. The test also compares what the second generation's workers find after
their first step, and what each of their imports could read (tests/python/recorder.py). The Python
is an environment of its own: the package, and all that is installed where this runs. Needs torch.

usage: warm_programs.py BIN_DIR [unittest's words]
"""

import concurrent.futures
import hashlib
import importlib.util
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import unittest

import warm
from process_tree import descendants

PATIENCE_S = 600  # on a machine that has no time for it
ATTEMPTS = 3  # A standby may be replaced, for what was learned late, at the moment of the kill.
HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(warm.ROOT, "examples", "python_ddp", "train.py")
NAMED = "torch,torch.distributed,torch._dynamo"

THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

NOTES = """
import recorder
recorder.note_imports(recorder.OF_GENERATION)
"""

VARYING = [
    (r"\d+ images/s, \d+ s left|'[^']*(_runtime|_per_second)': '?[\d.]+'?", "SPEED"),
    (r"(?<=\[W)\d+ [\d:.]+", " TIME"),
    (r"(?<=127\.0\.0\.1\]:)\d+", "PORT"),
    # It comes to it or not, of a process that was killed.
    (r".*resource_tracker: There appear .*\n  warnings.warn\(.*\n", ""),
]


def link_installed(target):
    """All that is installed where this runs, into another environment's site-packages."""
    for source in sys.path:
        if os.path.basename(source) in ("site-packages", "dist-packages"):
            for name in os.listdir(source):
                if not os.path.lexists(os.path.join(target, name)) and not name.endswith(
                        (".pth", "__pycache__")):
                    os.symlink(os.path.join(source, name), os.path.join(target, name))


def is_waiting_standby(pid):
    """True if it is a standby in recvmsg(); nothing more can be seen from outside."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if b"DDPRUN_STANDBY=" not in file.read():
                return False
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return file.read().split()[0] == warm.RECVMSG
    except OSError:
        return False


class Run:
    """One run of a program: its own folder, and what its workers wrote."""

    def __init__(self, jobs, mode, program, options):
        self.jobs = jobs
        self.mode = mode
        self.folder = jobs.path("run-" + re.sub(r"\W", "-", mode))
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("out", "checkpoints"):
            os.makedirs(os.path.join(self.folder, name))
        self.told_path = os.path.join(self.folder, "told")
        os.mkfifo(self.told_path)
        # Both ends are open all the time: no process that opens it waits for another.
        self.told = os.open(self.told_path, os.O_RDWR | os.O_CLOEXEC)
        self.said = b""
        self.checkpoints = os.path.join(self.folder, "checkpoints")
        try:
            self.process = jobs.start(
                "--warm", mode, "--redirects", "3", "--log-dir", os.path.join(self.folder, "logs"),
                program=[word.replace("CHECKPOINTS", self.checkpoints) for word in program],
                OUT=os.path.join(self.folder, "out"), TOLD=self.told_path, **options)
            try:
                self.kill_one()
                self.await_end()
            finally:
                self.process.kill()
                self.process.communicate()
        finally:
            os.close(self.told)

    def fail(self, why):
        logs = "".join(f"--- {name}\n{text}" for name, text in sorted(self.written().items()))
        self.jobs.fail(f"--warm {self.mode}: {why}; it said:\n{self.said.decode()}\n{logs}")

    def hear(self, wanted, timeout_s):
        """Returns the readable ones of `wanted`, maybe none; ddprun's output is kept."""
        stdout = self.process.stdout.fileno()
        ready = select.select([stdout, *wanted], [], [], timeout_s)[0]
        if stdout in ready:
            came = os.read(stdout, 65536)
            self.said += came
            if not came:
                self.fail("it has ended too early")
        return [one for one in ready if one != stdout]

    def kill_one(self):
        deadline = time.monotonic() + PATIENCE_S
        told = b""
        while told.count(b"\n") < 2:
            if self.hear([self.told], 1):
                told += os.read(self.told, 4096)
            if time.monotonic() > deadline:
                self.fail("it does not come to the step")
        pids = dict(map(int, line.split()) for line in told.decode().splitlines())
        while self.mode != "off" and self.waiting() < 2:
            self.hear([], 0.1)
            if time.monotonic() > deadline:
                self.fail("there are not two standbys")
        os.kill(pids[1], signal.SIGKILL)

    def waiting(self):
        return sum(map(is_waiting_standby, descendants(self.process.pid)))

    def await_end(self):
        try:
            came, _ = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.fail("it does not end")
        self.said += came.encode()
        if self.process.returncode != 0:
            self.fail(f"it exited with {self.process.returncode}")

    def written(self):
        """Each log, by its place in the run's folder."""
        found = {}
        for folder, _, names in os.walk(os.path.join(self.folder, "logs")):
            for name in names:
                if name in ("stdout.log", "stderr.log"):
                    place = "/".join(os.path.join(folder, name).split("/")[-3:])
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        found[place] = self.same_of_every_run(file.read())
        return found

    def same_of_every_run(self, text):
        """Without what no two cold runs share."""
        for pattern, instead in VARYING:
            text = re.sub(pattern, instead, text)
        return text.replace(self.folder, "FOLDER")

    def found(self, rank):
        """Returns what this rank of the second generation has found."""
        with open(os.path.join(self.folder, "out", f"1.{rank}.json"), encoding="utf-8") as file:
            return json.loads(file.read().replace(self.folder, "FOLDER"))

    def were_warm(self):
        with_place = {}
        for place in ("1.0", "1.1"):
            with open(os.path.join(self.folder, "out", place), encoding="ascii") as file:
                with_place[place] = file.read()
        return [with_place[place] == "warm" for place in sorted(with_place)]


class Programs(warm.Jobs):
    def setUp(self):
        self.needs("torch")
        super().setUp()
        self.maxDiff = None
        link_installed(self.packages)
        shutil.copytree(os.path.join(HERE, "workers", "warm"), self.folder, dirs_exist_ok=True)
        shutil.copy(os.path.join(HERE, "workers", "resnet.py"), self.folder)
        self.write(os.path.join(self.packages, "thread_test.py"), THREAD)
        shutil.copy(os.path.join(warm.ROOT, "tests", "python", "recorder.py"), self.packages)
        self.write(os.path.join(self.packages, "sitecustomize.py"), NOTES)

    def needs(self, *modules):
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            self.leave_out(f"no {', '.join(missing)} here: scripts/setup.sh --full")

    def leave_out(self, why):
        print(f"LEFT OUT: {self.id()}: {why}")
        self.skipTest(why)

    def run_until_warm(self, mode, program, options):
        for _ in range(ATTEMPTS):
            run = Run(self, mode, program, options)
            if all(run.were_warm()):
                return run
        run.fail("it was never warm")

    def check(self, *program, named=NAMED, modes=("named", "on"), **options):
        """Returns the cold run, and the warm ones, which have written the same."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            cold = pool.submit(Run, self, "off", program, options)
            others = [pool.submit(self.run_until_warm, named if mode == "named" else mode,
                                  program, options) for mode in modes]
            cold, others = cold.result(), [other.result() for other in others]
        self.assertFalse(any(cold.were_warm()))
        for other in others:
            with self.subTest(warm=other.mode):
                self.assertNotIn(b"--warm: torch and what follows it", other.said)
                self.assertEqual(other.written(), cold.written(), other.said.decode())
                # The user has chosen when modules that are named are imported.
                for rank in range(2 if other.mode == "on" else 0):
                    self.assert_found_the_same(other.found(rank), cold.found(rank))
                print(f"{self.id()}, --warm {other.mode}: {other.said.decode()}")
        return cold, others

    def assert_found_the_same(self, other, cold):
        """With the first things that differ in the message."""
        differences = []
        for what, ours in cold["step"].items():
            theirs = other["step"][what]
            if isinstance(ours, dict):
                names = [name for name in ours.keys() | theirs.keys()
                         if ours.get(name) != theirs.get(name)]
                differences += [f"{what} {name}: cold {ours.get(name)}, warm {theirs.get(name)}"
                                for name in sorted(names)]
            elif ours != theirs:
                differences.append(f"{what}: cold {ours}, warm {theirs}")
        for name, states in cold["imports"].items():
            theirs = other["imports"].get(name, [])
            # ddprun itself imports some in a standby, in its first state.
            if any(state not in theirs for state in states):
                keys = [key for key, value in states[-1].items()
                        if not theirs or theirs[-1][key] != value]
                differences.append(f"at the import of {name}: {keys}")
        if differences:
            self.fail("\n".join([f"{len(differences)} differences"] +
                                [one[:1000] for one in differences[:20]]))

    def check_parameters(self, *program, **options):
        cold, others = self.check(*program, **options)
        for rank in range(2):
            self.assertRegex(cold.written()[f"attempt_1/{rank}/stdout.log"], "parameters [0-9a-f]+")
        return cold, others

    def test_of_many_kinds_at_once(self):
        """A module of a package that hides GPUs before it imports torch, has a loader with forked
        workers, and imports what starts a thread."""
        self.make_package()
        _, others = self.check_parameters("-m", "package.train", "CHECKPOINTS", "hide", "thread",
                                          "fork", named=NAMED + ",thread_test")
        for other in others:
            self.assertIn(b"thread_test and what follows it is not imported beforehand: it starts "
                          b"a thread", other.said)

    def test_full_python_ddp(self):
        """The example as it is, but for two lines that hold it."""
        self.needs("sklearn")
        with open(EXAMPLE, encoding="utf-8") as file:
            text = file.read()
        saved = "        save(arguments, epoch, network, optimizer)\n"
        self.assertEqual(text.count(saved), 1)
        self.write(self.path("example.py"), text.replace(
            "import torch\n", "import held\nimport torch\n", 1).replace(
                saved, saved + "        held.after(epoch)\n"))
        cold, others = self.check("example.py", "--epochs", "5", "--checkpoint-dir", "CHECKPOINTS")
        for other in others:
            for name in os.listdir(cold.checkpoints):
                self.assertEqual(self.content(other, name), self.content(cold, name))

    @staticmethod
    def content(run, name):
        with open(os.path.join(run.checkpoints, name), "rb") as file:
            return file.read()

    def test_full_resnet(self):
        self.needs("tqdm")
        self.check_parameters("train.py", "CHECKPOINTS", "resnet")

    def test_full_huggingface_trainer(self):
        self.needs("transformers")
        self.check_parameters("train.py", "CHECKPOINTS", "huggingface")

    def test_full_lightning(self):
        self.needs("lightning")
        self.check_parameters("train.py", "CHECKPOINTS", "lightning")

    def test_full_accelerate(self):
        self.needs("accelerate")
        self.check_parameters("train.py", "CHECKPOINTS", "accelerate")

    def test_full_module_of_a_package(self):
        self.make_package()
        self.check_parameters("-m", "package.train", "CHECKPOINTS")

    def test_full_gpus_hidden_before_torch(self):
        self.check_parameters("train.py", "CHECKPOINTS", "hide")

    def test_full_spawned_loaders(self):
        self.check_parameters("train.py", "CHECKPOINTS", "spawn")

    def test_full_forked_loaders(self):
        self.check_parameters("train.py", "CHECKPOINTS", "fork")

    def test_full_thread_at_import(self):
        self.check_parameters("train.py", "CHECKPOINTS", "thread", named=NAMED + ",thread_test")

    def test_full_uv_run(self):
        uv = shutil.which("uv", path=os.path.dirname(sys.executable) + ":" + os.environ["PATH"])
        if uv is None:
            self.leave_out("no uv here: pip install uv")
        os.symlink(self.path("environment"), self.path(".venv"))
        self.write(self.path("pyproject.toml"), "[project]\nname = 'project'\nversion = '1'\n")
        self.check_parameters("train.py", "CHECKPOINTS", before=(uv, "run", "--no-sync"),
                              PYTHON_EXEC="", VIRTUAL_ENV="", UV_OFFLINE="1")

    def test_full_layout_of_conda(self):
        """The layout alone: an interpreter in its own prefix, with no pyvenv.cfg. The files are not
        conda's."""
        prefix, version = self.path("conda"), "python{}.{}".format(*sys.version_info)
        library = os.path.join(prefix, "lib", version)
        for folder in (os.path.join(prefix, "bin"), os.path.join(prefix, "conda-meta"),
                       os.path.join(library, "site-packages")):
            os.makedirs(folder)
        shutil.copy(os.path.realpath(sys.executable), os.path.join(prefix, "bin", version))
        os.symlink(version, os.path.join(prefix, "bin", "python3"))
        theirs = sysconfig.get_path("stdlib")
        for name in os.listdir(theirs):
            if name not in ("site-packages", "__pycache__"):
                os.symlink(os.path.join(theirs, name), os.path.join(library, name))
        python = os.path.join(prefix, "bin", "python3")
        packages = subprocess.run(
            [python, "-c", "import site; print(site.getsitepackages()[-1])"], check=True,
            env=self.environment, text=True, stdout=subprocess.PIPE).stdout.strip()
        self.assertTrue(packages.startswith(prefix), packages)
        os.makedirs(packages, exist_ok=True)
        for name in os.listdir(self.packages):
            shutil.copy(os.path.join(self.packages, name), packages, follow_symlinks=False)
        self.check_parameters("train.py", "CHECKPOINTS", PYTHON_EXEC="",
                              VIRTUAL_ENV="", CONDA_PREFIX=prefix)

    def make_package(self):
        os.mkdir(self.path("package"))
        self.write(self.path("package/__init__.py"), "")
        shutil.move(self.path("train.py"), self.path("package/train.py"))


if __name__ == "__main__":
    warm.BIN = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    unittest.main()
