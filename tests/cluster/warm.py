"""Jobs of real ddprun with --warm: the next generation starts from standbys.

Method: an environment of its own whose site-packages has the package and a module
that reports to this test which process has imported it. A cold worker fails when both slots
have their standby; one that started warm ends the job. Needs no torch.

usage: warm.py BIN_DIR [unittest's words]
"""

import contextlib
import json
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from process_tree import descendants

PATIENCE_S = 120  # on a machine that has no time for it
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PACKAGE = os.path.join(ROOT, "worker_runtime", "python")
RECVMSG = {"x86_64": "47", "aarch64": "212"}[platform.machine()]
BIN = ""

# The last that a standby imports. Its program has not begun. A rehearsal, which has another
# function for starting threads, reports nothing: it never becomes a worker.
MODULE = """
import _thread, os, sys
is_rehearsal = hasattr(_thread.start_new_thread, "__func__")
if not is_rehearsal and not hasattr(sys.modules["__main__"], "is_warm"):
    with open(os.environ["TOLD"], "w") as told:
        told.write(f"{os.getpid()}\\n")
"""

BEFOREHAND = """
import sys
IS_BEFOREHAND = not hasattr(sys.modules["__main__"], "is_warm")
"""

WORKER = """
import json, os, signal, sys
with open("/proc/self/environ", "rb") as file:
    is_warm = any(one.startswith(b"DDPRUN_STANDBY=") for one in file.read().split(b"\\0"))
import ddprun
worker = ddprun.worker()
worker.progress(7)
for name in os.environ.get("IMPORTS", "tells_test").split():
    __import__(name)
has_more = getattr(sys.modules.get("more_test"), "IS_BEFOREHAND", None)
rank = worker.rank
with open("/proc/self/cmdline", "rb") as file:
    command = file.read().decode().split("\\0")[:-1]
print(f"rank {rank} of {worker.world_size} generation {worker.generation} "
      f"{'warm' if is_warm else 'cold'}", flush=True)
with open(os.path.join(os.environ["OUT"], f"{worker.generation}.{rank}.json"), "w") as file:
    json.dump({"is_warm": is_warm, "has_more": has_more, "argv": sys.argv,
               "command": command, "path": sys.path,
               "variables": sorted(os.environ), "page": bool(os.environ["DDPRUN_PAGE"]),
               "rank": os.environ["RANK"], "parent": os.getppid(),
               "streams": [os.fstat(one).st_mode for one in range(3)],
               "descriptors": sorted(os.listdir("/proc/self/fd")),
               "session": os.getsid(0) == os.getpid(),
               "status": [line for line in open("/proc/self/status")
                          if line.startswith(("SigPnd", "SigBlk", "SigIgn", "SigCgt",
                                              "Cpus_allowed_list", "Groups"))],
               "cgroup": open("/proc/self/cgroup").read().count("ddprun-")}, file)
if is_warm or os.environ.get("ENDS_AT") == str(worker.generation):
    sys.exit(0)
def comes_to_wait(pid):  # For its place, and has said so. One that is renewed is gone instead.
    try:
        while not open(f"/proc/{pid}/syscall").read().startswith(os.environ["RECVMSG"] + " "):
            os.sched_yield()
        return True
    except (FileNotFoundError, ProcessLookupError):
        return False
if rank == 0:
    standbys = []
    with open(os.environ["TOLD"]) as told:   # Both slots have theirs.
        while len(standbys) < worker.world_size:
            line = told.readline()
            if line and comes_to_wait(int(line)):
                standbys.append(int(line))
    if os.environ.get("DOES") == "EDIT":
        import tells_test
        with open(tells_test.__file__, "a") as file:
            file.write("# another one\\n")
    elif os.environ.get("DOES"):
        for pid in standbys:
            os.kill(pid, getattr(signal, os.environ["DOES"]))
    sys.exit(3)
import threading
threading.Event().wait()
"""

# For a Python without site-packages. The first generation waits for the test, which reads before
# what both ranks and ddprun say. ddprun does not pass on the output of a process that is no worker:
# each leaves a line in a file, too.
ALONE = """
import os, sys
with open("/proc/self/environ", "rb") as file:
    is_warm = b"DDPRUN_STANDBY=" in file.read()
attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
with open(os.environ["OUT"] + "/ran", "a") as file:
    file.write(f"{attempt} {os.environ.get('RANK')} {'warm' if is_warm else 'cold'} "
               f"{sys.flags.isolated} {sys.flags.ignore_environment} {sys.flags.no_site}\\n")
print("has begun", flush=True)
if attempt == "0":
    open(os.environ["GO"]).close()
    sys.exit(3)
"""


class Jobs(unittest.TestCase):
    """Gives every test of this kind the environment, the program, and the start of a job."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ddprun-warm-")
        self.addCleanup(shutil.rmtree, self.folder)
        prefix = self.path("environment")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
        self.python = os.path.join(prefix, "bin", "python")
        self.packages = os.path.join(prefix, "lib", "python{}.{}".format(*sys.version_info),
                                     "site-packages")
        os.symlink(os.path.join(PACKAGE, "ddprun"), os.path.join(self.packages, "ddprun"))
        self.write(os.path.join(self.packages, "tells_test.py"), MODULE)
        self.write(self.path("train.py"), WORKER)
        os.mkdir(self.path("out"))
        os.mkfifo(self.path("told"))
        # Both ends are open all the time: no process that opens it waits for another.
        self.told = os.open(self.path("told"), os.O_RDWR | os.O_CLOEXEC)
        self.addCleanup(os.close, self.told)
        self.environment = {
            **{key: value for key, value in os.environ.items()
               if not key.startswith(("PET_", "DDPRUN_", "TORCH", "OMP_", "SLURM", "PYTHON"))},
            "RECVMSG": RECVMSG,
            "PYTHON_EXEC": self.python, "OUT": self.path("out"), "TOLD": self.path("told"),
            "TMPDIR": self.folder, "HOME": self.folder, "LC_ALL": "C.UTF-8"}

    def path(self, name):
        return os.path.join(self.folder, name)

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def start(self, *flags, program=("train.py", "--lr", "0.1"), before=(), **variables):
        return subprocess.Popen(
            [*before, os.path.join(BIN, "ddprun"), "--nproc-per-node", "2", "--max-restarts", "9",
             "--warm", "json,tells_test", *flags, *program], cwd=self.folder, text=True,
            env={**self.environment, **variables}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run_job(self, *flags, **options):
        process = self.start(*flags, **options)
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            self.fail("it did not end; it said:\n" + said)
        return process.returncode, said

    def seen(self, generation, rank):
        with open(self.path(f"out/{generation}.{rank}.json"), encoding="utf-8") as file:
            return json.load(file)


class WarmJobs(Jobs):
    def test_the_next_generation_is_warm_and_sees_what_a_cold_one_sees(self):
        code, said = self.run_job()
        self.assertEqual(code, 0, said)
        last = max(int(name.partition(".")[0]) for name in os.listdir(self.path("out")))
        for rank in range(2):
            cold, warm = self.seen(1, rank), self.seen(last, rank)
            self.assertTrue(warm["is_warm"], said)
            self.assertIn(f"rank {rank} of 2 generation {last} warm", said)
            self.assertNotEqual(warm.pop("parent"), cold.pop("parent"))
            for seen in (cold, warm):
                del seen["is_warm"]
            self.assertEqual(warm, cold)

    def test_standbys_that_die_or_hang_are_no_reason_to_wait(self):
        for does in ("SIGKILL", "SIGSTOP"):
            with self.subTest(does):
                code, said = self.run_job(DOES=does, ENDS_AT="2")
                self.assertEqual(code, 0, said)
                self.assertIn("generation 2 cold", said)
                self.assertIn("--warm: ", said)

    def test_an_imported_file_that_was_edited_has_its_standbys_thrown_away(self):
        code, said = self.run_job(DOES="EDIT", ENDS_AT="2")
        self.assertEqual(code, 0, said)
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 generation 2 cold", said)
        self.assertIn("tells_test.py has changed", said)

    def test_what_the_first_worker_imports_is_learned(self):
        self.write(os.path.join(self.packages, "more_test.py"), BEFOREHAND)
        self.write(os.path.join(self.packages, "thread_test.py"),
                   "import threading\nthreading.Thread(target=threading.Event().wait, "
                   "daemon=True).start()\n")
        self.write(self.path("own_test.py"), "")
        for how in ("auto", "on"):
            with self.subTest(how):
                code, said = self.run_job("--warm", how,
                                          IMPORTS="own_test tells_test thread_test more_test")
                self.assertEqual(code, 0, said)
                last = max(int(name.partition(".")[0]) for name in os.listdir(self.path("out")))
                for rank in range(2):
                    warm = self.seen(last, rank)
                    self.assertTrue(warm["is_warm"], said)
                    self.assertFalse(warm["has_more"], said)
                    self.assertNotIn("DDPRUN_IMPORTS", warm["variables"])
                self.assertNotIn("DDPRUN_IMPORTS", self.seen(1, 0)["variables"])
                self.assertEqual(said.count("--warm: thread_test and what follows it is not "
                                            "imported beforehand: it starts a thread"), 1, said)

    def test_a_node_that_has_had_no_worker_knows_what_an_earlier_run_has_learned(self):
        code, said = self.run_job("--warm", "auto", IMPORTS="tells_test")
        self.assertEqual(code, 0, said)
        folder = self.path(".cache/ddprun/imports")
        with open(os.path.join(folder, *os.listdir(folder)), encoding="utf-8") as file:
            self.assertIn("\ntells_test\n", file.read())
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        flags = ["--warm", "auto", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "known",
                 "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
        first = self.start(*flags, "--node-rank", "0")
        self.addCleanup(first.kill)
        with os.fdopen(os.dup(self.told)) as told:
            standby = told.readline().strip()
        with open(f"/proc/{standby}/syscall", encoding="ascii") as call:
            while not call.read().startswith(RECVMSG + " "):
                call.seek(0)  # Until it waits for its place, and has said so.
        code, of_second = self.run_job(*flags, "--node-rank", "1", ENDS_AT="1")
        of_first, _ = first.communicate(timeout=PATIENCE_S)
        self.assertEqual((code, first.returncode), (0, 0), of_first + of_second)
        self.assertIn("rank 0 of 2 generation 1 warm", of_first)
        self.assertIn("rank 1 of 2 generation 1 cold", of_second)

    def test_auto_is_off_where_nothing_starts_again(self):
        flags = ("--warm", "auto", "--max-restarts", "0")
        code, said = self.run_job(*flags, "--dry-run")
        self.assertEqual(code, 0, said)
        self.assertNotIn("standbys", said)
        # No worker reports to the agent what it imports.
        self.write(self.path("fails.py"), "import sys, _frozen_importlib\n"
                   "tells = hasattr(_frozen_importlib._find_and_load, '__self__')\n"
                   "sys.exit(4 if tells else 3)\n")
        code, said = self.run_job(*flags, program=("fails.py",))
        self.assertEqual(code, 3, said)
        self.assertNotIn("--warm", said)
        code, _ = self.run_job("--warm", "auto", "--max-restarts", "1", program=("fails.py",))
        self.assertEqual(code, 4)

    def test_a_ddprun_that_was_copied_without_its_folder_for_python_says_what_is_missing(self):
        os.mkdir(self.path("bin"))
        for program in ("ddprun", "ddprun-keeper"):
            shutil.copy2(os.path.join(BIN, program), self.path("bin"))
        self.write(self.path("train.py"), "print('has run')\n")
        done = subprocess.run([self.path("bin/ddprun"), "train.py"], cwd=self.folder, text=True,
                              env=self.environment, stdin=subprocess.DEVNULL, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertIn("has run", done.stdout)
        self.assertIn("the folder share/ddprun/python is missing", done.stdout)

    def test_standbys_end_with_ddprun(self):
        self.write(self.path("train.py"), "import threading\nthreading.Event().wait()\n")
        process = self.start()
        with os.fdopen(os.dup(self.told)) as told:
            standbys = [int(told.readline()) for _ in range(2)]
        watched = [os.pidfd_open(pid) for pid in standbys]
        process.kill()
        for pidfd in watched:
            self.assertTrue(select.select([pidfd], [], [], PATIENCE_S)[0])
            os.close(pidfd)
        process.communicate()

    def test_a_python_that_reads_no_variables_is_named(self):
        """It is typed, or a script stands for it, and ddprun finds it out by a trial."""
        self.write(self.path("train.py"), ALONE)
        script = self.path("python-script")
        reason = "does not run what ddprun puts before PYTHONPATH"
        for option, flags in (("-E", "0 1 0"), ("-I", "1 1 0"), ("-S", "0 0 1")):
            self.write(script, f"#!/bin/sh\nexec {self.python} {option} \"$@\"\n")
            os.chmod(script, 0o755)
            for python, line in (
                    ([self.python, option], f"a Python with -I, -E or -S {reason}"),
                    ([script], f"{script} {reason}, as with -I, -E or -S")):
                with self.subTest(python):
                    said, ran = self.run_alone(*python, "train.py")
                    self.assertEqual(said, [f"--warm: workers start cold: {line}\n"])
                    self.assertEqual(ran, [f"{attempt} {rank} cold {flags}\n"
                                           for attempt in range(2) for rank in range(2)])

    def run_alone(self, *program):
        """Returns, for a job of ALONE, its words on --warm and its processes' lines in OUT/ran."""
        go = self.path("go")
        os.mkfifo(go)
        said, of_warm, waits = [], [], True
        with contextlib.ExitStack() as later:
            later.callback(os.unlink, go)
            process = later.enter_context(self.start(program=program, GO=go))
            patience = threading.Timer(PATIENCE_S, process.kill)
            patience.start()
            later.callback(patience.cancel)
            for line in process.stdout:
                said.append(line)
                of_warm += [line[line.index("--warm"):]] if "--warm" in line else []
                if waits and of_warm and sum("has begun" in one for one in said) == 2:
                    later.callback(os.close, os.open(go, os.O_RDWR | os.O_CLOEXEC))
                    waits = False
        with open(self.path("out/ran"), encoding="ascii") as file:
            ran = sorted(file)
        os.unlink(self.path("out/ran"))
        self.assertEqual(process.returncode, 0, said)
        return of_warm, ran

    def test_what_is_no_module_is_refused(self):
        for text in ("torch,on", "torch,", "-x"):
            code, said = self.run_job("--warm=" + text)
            self.assertEqual(code, 2, said)
            self.assertIn("--warm torch", said)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    unittest.main()
