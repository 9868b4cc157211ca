"""A standby is a worker: what a program finds in a process that waited is what it finds cold.

Method: an environment of its own whose site-packages has modules that do what a standby may not,
and nothing of ddprun. This test is the agent. Every program runs in a Python without preparation
and in one that has waited, and what the two say is compared. Needs no torch.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
START = os.path.abspath(os.path.join(ROOT, "worker_runtime", "python", "start"))
MESSAGE_BYTES_MAX = 64 << 10
PLACE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29400"}

LOOK = """
import json, os, sys
def look():
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read().decode().split("\\0")
    main = sys.modules["__main__"]
    spec = main.__spec__
    return {
        "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "command": command,
        "path": sys.path, "meta_path": [str(one)[:40] for one in sys.meta_path],
        "environment": dict(os.environ), "order": list(os.environ), "data": str(type(
            os.environ._data)), "bytes": len(os.environb), "name": __name__,
        "main": main.__dict__.get("__file__"), "spec": spec and spec.name,
        "descriptors": sorted(os.listdir("/proc/self/fd")), "inheritable":
            [os.get_inheritable(one) for one in range(3)],
        "buffering": [sys.stdout.line_buffering, sys.stdout.encoding],
        "modules": sorted(name for name in sys.modules if "ddprun" in name or "socket" in name),
        "killed as": open("/proc/self/oom_score_adj").read(),
        "flags": str(sys.flags), "threads": len(os.listdir("/proc/self/task")),
        "name of the process": open("/proc/self/comm").read(),
    }
"""

SCRIPT = LOOK + """
import gc, multiprocessing

def child(queue):
    queue.put(look())

class Thing:
    pass

if __name__ == "__main__":
    import pickle
    seen = {"own": look(), "pickled": type(pickle.loads(pickle.dumps(Thing()))).__module__}
    with os.popen("echo $RANK $MASTER_PORT $DDPRUN_STANDBY") as echo:
        seen["c"] = echo.read()
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        seen[method] = queue.get()
        process.join()
        # Whatever is left of it is closed, and not when the garbage is collected some time.
        process.close()
        queue.close()
        gc.collect()
        # What the parent's own is called, numbers of descriptors and processes differ each time.
        for key in ("command", "descriptors", "orig_argv", "argv"):
            if method == "spawn":
                del seen[method][key]
    print(json.dumps(seen, sort_keys=True))
"""

MODULES = {
    "quiet_module": "import os\nVALUE = 1\nIS_BEFOREHAND = type(os.environ._data) is not dict",
    "asks_module": "import os\nRANK = os.environ.get('RANK', '0')",
    "asks_whether": "import os\nHAS = 'WORLD_SIZE' in os.environ",
    "thread_module": "import threading\nthreading.Thread(target=threading.Event().wait, "
                     "daemon=True).start()",
    "socket_module": "import socket\nSOCKET = socket.socket()",
    "file_module": "import tempfile\nFILE = tempfile.NamedTemporaryFile()",
    "broken_module": "raise ImportError('no such device')",
    "shadowing_module": "import own_module",
    "own_module": "PLACE = 'site-packages'",
    "looks_module": "import os\nassert 'NO_RANK' not in os.environ",
    "copies_module": "import os\nIS_MAIN = dict(os.environ).get('RANK', '0') == '0'",
    "goes_through": "import os\nFOUND = [key for key, _ in os.environ.items() if key == 'RANK']",
    "copies_bytes": "import os\nRANK = int(os.environb.copy().get(b'RANK', 0))",
    "sets_context": "import multiprocessing\nLOCK = multiprocessing.get_context()",
    "makes_folder": "import os\nos.makedirs('was_made/in_it', exist_ok=True)",
    "folder_there": "import os\nos.makedirs(os.path.dirname(__file__), exist_ok=True)",
    "warns_module": "import warnings\n"
                    "warnings.warn('it is old', DeprecationWarning, stacklevel=2)",
    "lazy_module": "import json\ndef run():\n    import quiet_module",
    "imports_own": "import sys\nsys.path.insert(0, 'elsewhere')\nimport elsewhere_module",
    "joins_module": "import threading\nTHREAD = threading.Thread(target=int)\n"
                    "THREAD.start()\nTHREAD.join()",
    "sends_module": "import socket\nwith socket.socket(socket.AF_UNIX) as one:\n"
                    "    try:\n        one.connect('nobody')\n    except OSError:\n        pass",
    "writes_module": "with open('was_written', 'a') as file:\n    file.write('once')",
    "stack_module": "import traceback\nTEXT = traceback.format_stack()",
    "reads_module": "with open('settings.json') as file:\n    SETTINGS = file.read()",
    "runs_module": "import subprocess\nsubprocess.run(['true'])",
    "removes_module": "import os\nos.unlink('was_written')",
    "forks_module": "import os\nREAD, WRITE = os.pipe()\nif os.fork() == 0:\n"
                    "    os.close(WRITE)\n    os.read(READ, 1)\n    os._exit(0)",
    "copies_stdout_module": "import os\nCOPY = os.dup(1)",
    "tests_module": "import socket, tempfile\nwith socket.socket() as one:\n"
                    "    one.bind(('127.0.0.1', 0))\nFOLDER = tempfile.gettempdir()\n"
                    "with open('/dev/null', 'w') as file:\n    file.write('nothing')",
    "sets_module": "import os, quiet_module\nos.environ['SET_BY_MODULE'] = 'yes'\n"
                   "IS_BEFOREHAND = quiet_module.IS_BEFOREHAND",
}


def started(variables, **others):
    """As ddprun starts a Python."""
    own = variables.get("PYTHONPATH")
    path = START if own is None else START + (":" + own if own else "/")
    return {**variables, "PYTHONPATH": path, **others}


class Standby:
    """A process that was started as one, and the agent's end of its socket."""

    def __init__(self, environment, *arguments):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(60)
        self.out_read, out = os.pipe()
        os.set_inheritable(theirs.fileno(), True)
        self.process = subprocess.Popen(
            [environment.python, *arguments], cwd=environment.folder, stdout=out, stderr=out,
            stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            env=started(environment.variables, DDPRUN_STANDBY=str(theirs.fileno())))
        theirs.close()
        os.close(out)

    def says_ready(self):
        said = self.says()
        assert said[0] == "ready" and int(said[1]) > 0, said

    def says(self):
        return self.socket.recv(MESSAGE_BYTES_MAX).decode().split("\0")

    def order(self, *modules, how="import", first=()):
        self.socket.send("\n".join(
            [*first, "placed RANK", "placed WORLD_SIZE", "placed MASTER_PORT"] +
            [f"{how} {name}" for name in modules]).encode())

    def release(self, place):
        """Returns the program's output and the standby's last words."""
        read, write = os.pipe()
        text = b"\0".join([b"place"] + [f"{key}={value}".encode() for key, value in place.items()])
        socket.send_fds(self.socket, [text], [write, write])
        os.close(write)
        with os.fdopen(read) as file:
            written = file.read()
        return written, self.says()

    def end(self):
        self.socket.close()
        code = self.process.wait(60)
        with os.fdopen(self.out_read) as file:
            return code, file.read()


class WithEnvironment(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)
        cls.folder = os.path.join(cls.holder.name, "work")
        os.makedirs(os.path.join(cls.folder, "package"))
        prefix = os.path.join(cls.holder.name, "environment")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
        cls.python = os.path.join(prefix, "bin", "python")
        cls.packages = os.path.join(prefix, "lib", "python{}.{}".format(*sys.version_info),
                                    "site-packages")
        for name, text in MODULES.items():
            cls.write(os.path.join(cls.packages, name + ".py"), text)
        cls.write(os.path.join(cls.folder, "script.py"), SCRIPT)
        cls.write(os.path.join(cls.folder, "package", "__init__.py"), "")
        cls.write(os.path.join(cls.folder, "package", "script.py"), SCRIPT)
        cls.variables = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1",
                         "LC_ALL": "C.UTF-8", "RANK": "of another job", "LAST": "last"}

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


class Same(WithEnvironment):
    def compare(self, *arguments):
        self.maxDiff = None
        # As the keeper: what ddprun inherited, then what a worker is given.
        inherited = {key: value for key, value in self.variables.items() if key not in PLACE}
        cold = subprocess.run([self.python, *arguments], cwd=self.folder, capture_output=True,
                              stdin=subprocess.DEVNULL, text=True, start_new_session=True,
                              env={**inherited, **PLACE})
        self.assertEqual(cold.returncode, 0, cold.stderr)
        standby = Standby(self, *arguments)
        self.assertEqual(standby.says(), ["here"])
        standby.order("json", "quiet_module", "looks_module")
        for name in ("json", "quiet_module", "looks_module"):
            self.assertEqual(standby.says(), ["imports", name])
        standby.says_ready()
        written, last = standby.release(PLACE)
        self.assertEqual(last, ["gone"])
        self.assertEqual(json.loads(written), json.loads(cold.stdout))
        self.assertEqual(standby.end(), (0, ""))

    def test_a_standby_has_a_title_until_it_is_a_worker(self):
        def shown():
            with open(f"/proc/{standby.process.pid}/cmdline", "rb") as line, open(
                    f"/proc/{standby.process.pid}/comm", encoding="ascii") as name:
                return line.read().rstrip(b"\0").decode(), name.read()

        self.write(os.path.join(self.packages, "titled_module.py"),
                   "SEEN = open('/proc/self/cmdline').read(), open('/proc/self/comm').read()")
        self.write(os.path.join(self.folder, "t.py"),
                   "import titled_module\nprint(*titled_module.SEEN, end='')\n")
        self.variables = {**self.variables, "LOCAL_RANK": "3"}
        self.python = os.path.relpath(self.python, self.folder)
        for arguments, title in ((["-u", "t.py", "--lr=0.1"], "ddprun: standby of local rank 3"),
                                 # The command line is too short for that.
                                 (["t.py"], "ddprun: standby 3")):
            with self.subTest(title):
                standby = Standby(self, *arguments)
                self.assertEqual(standby.says(), ["here"])
                before = shown()
                self.assertIn("t.py", before[0])
                standby.order("titled_module")
                self.assertEqual(standby.says(), ["imports", "titled_module"])
                standby.says_ready()
                self.assertEqual(shown(), (title, "ddprun: standby\n"))
                written, _ = standby.release(PLACE)
                # Its import has found no title, and neither has it.
                self.assertEqual(written, "{}\0 {}".format(*before))
                self.assertEqual(standby.end()[0], 0)

    def test_a_script(self):
        self.compare("-u", "script.py", "--lr", "0.1")

    def test_a_module(self):
        self.compare("-u", "-m", "package.script", "-x")

    def test_text_of_the_command(self):
        self.compare("-c", LOOK + "print(json.dumps(look()))", "first")

    def test_an_exception_is_told_as_ever(self):
        self.write(os.path.join(self.folder, "raises.py"), "def f():\n    {}['key']\nf()\n")
        cold = subprocess.run([self.python, "raises.py"], cwd=self.folder, capture_output=True,
                              text=True, env=self.variables)
        standby = Standby(self, "raises.py")
        self.assertEqual(standby.says(), ["here"])
        standby.order()
        standby.says_ready()
        self.assertEqual(standby.release(PLACE), (cold.stderr, ["gone"]))
        self.assertEqual(standby.end(), (1, ""))


class Threads(WithEnvironment):
    """OpenBLAS, whose threads a standby may not have, has in the worker those of a cold one."""

    PROGRAM = ("import os, numpy\n"
               "a = numpy.ones((300, 300))\n"
               "print(len(os.listdir('/proc/self/task')), (a @ a)[0][0])\n"
               "os.system('echo as child: $OPENBLAS_NUM_THREADS')\n"
               "print(sorted(key for key in os.environ if 'THREADS' in key))\n")

    def setUp(self):
        # In a folder of its own, so that the environment stays as it is for the other tests.
        found = subprocess.run([sys.executable, "-c", "import numpy; print(numpy.__path__[0])"],
                               capture_output=True, text=True)
        if found.returncode != 0:
            self.skipTest("no numpy here")
        source = os.path.dirname(found.stdout.strip())
        for name in ("numpy", "numpy.libs"):
            if os.path.isdir(os.path.join(source, name)):
                link = os.path.join(self.packages, name)
                os.symlink(os.path.join(source, name), link)
                self.addCleanup(os.unlink, link)
        self.write(os.path.join(self.folder, "multiplies.py"), self.PROGRAM)

    def cold_and_warm(self, **variables):
        environment = {**self.variables, **variables}
        cold = subprocess.run([self.python, "-u", "multiplies.py"], cwd=self.folder, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL,
                              start_new_session=True,
                              env={**environment, **PLACE})
        self.assertEqual(cold.returncode, 0, cold.stderr)
        type(self).variables, kept = environment, self.variables
        try:
            standby = Standby(self, "-u", "multiplies.py")
        finally:
            type(self).variables = kept
        self.assertEqual(standby.says(), ["here"])
        standby.order("numpy")
        self.assertEqual(standby.says(), ["imports", "numpy"])
        standby.says_ready()
        threads = len(os.listdir(f"/proc/{standby.process.pid}/task"))
        written, last = standby.release(PLACE)
        self.assertEqual(last, ["gone"])
        self.assertEqual(standby.end(), (0, ""))
        self.assertEqual(threads, 1)
        return cold.stdout, written

    def test_as_many_as_cold(self):
        for variables in ({}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"},
                          {"OMP_NUM_THREADS": "2,3"}, {"OMP_NUM_THREADS": "none"},
                          {"OMP_NUM_THREADS": "9999"},
                          {"OMP_NUM_THREADS": "1", "GOTO_NUM_THREADS": "2"},
                          {"GOTO_NUM_THREADS": "2", "OPENBLAS_DEFAULT_NUM_THREADS": "1"},
                          {"OPENBLAS_NUM_THREADS": "2", "OPENBLAS_DEFAULT_NUM_THREADS": "1"},
                          {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"},
                          {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "2"}):
            with self.subTest(**variables):
                cold, warm = self.cold_and_warm(**variables)
                self.assertEqual(warm, cold)


    def test_an_import_that_sets_how_many_is_unfit(self):
        for name, text in (
                ("sets_before", "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport numpy"),
                ("sets_after", "import numpy, os\nos.environ['OMP_NUM_THREADS'] = '1'")):
            self.write(os.path.join(self.packages, name + ".py"), text)
            standby = Standby(self, "multiplies.py")
            self.assertEqual(standby.says(), ["here"])
            standby.order(name)
            self.assertEqual(standby.says(), ["imports", name])
            self.assertEqual(standby.says(), [
                "unfit", name, "it sets OMP_NUM_THREADS, by which OpenBLAS starts its threads"])
            self.assertEqual(standby.end(), (0, ""))


class Guesses(WithEnvironment):
    """A standby imports another worker's modules; some may be gone or unfit to import early."""

    def setUp(self):
        os.makedirs(os.path.join(self.folder, "elsewhere"), exist_ok=True)
        self.write(os.path.join(self.folder, "elsewhere", "elsewhere_module.py"), "")
        self.write(os.path.join(self.folder, "beside.py"), "")
        of_cluster = os.path.join(self.folder, "module", "site-packages")
        os.makedirs(of_cluster, exist_ok=True)
        self.write(os.path.join(of_cluster, "cluster_module.py"), "")
        self.write(os.path.join(self.packages, "editable.pth"),
                   os.path.join(self.folder, "elsewhere") + "\n" + of_cluster + "\n")
        self.write(os.path.join(self.folder, "shows.py"),
                   "import importlib, sys\n"
                   "print([one for one in sys.argv[1:] if one in sys.modules])\n"
                   "for one in sys.argv[1:]:\n"
                   "    try:\n        importlib.import_module(one)\n"
                   "    except ImportError:\n        pass\n"
                   "print([one for one in sys.argv[1:]\n"
                   "       if getattr(sys.modules.get(one), 'IS_BEFOREHAND', False)])\n")

    def imports(self, *names):
        standby = Standby(self, "shows.py", *names)
        self.assertEqual(standby.says(), ["here"])
        # As a worker reports it, which finds its own folder in sys.path.
        first = "{} - path={}:*|program=*:*".format(names[0], os.fsencode(self.folder).hex())
        standby.order(first, *names[1:], how="guess")
        imported, said = [], standby.says()
        while said[0] == "imports":
            imported, said = [*imported, said[1]], standby.says()
        if said[0] != "ready":
            self.assertEqual(standby.end()[0], 0)
            return imported, said
        written, last = standby.release(PLACE)
        self.assertEqual(last, ["gone"])
        standby.end()
        return imported, written

    def test_what_is_no_part_of_the_program_in_its_order(self):
        names = ("quiet_module", "beside", "elsewhere_module", "missing_module", "json.decoder",
                 "json.missing", "cluster_module", "sets_module")
        self.assertEqual(self.imports(*names), (
            ["quiet_module", "json.decoder", "json.missing", "cluster_module", "sets_module"],
            "[]\n['quiet_module', 'sets_module']\n"))

    def test_what_cannot_be_imported_is_left_out_of_the_next(self):
        self.assertEqual(self.imports("quiet_module", "broken_module", "sets_module"), (
            ["quiet_module", "broken_module"], ["drops", "broken_module"]))

    def test_what_must_wait_stops_it(self):
        for name, why in (("thread_module", "it starts 1 thread"),
                          ("warns_module", "it warns: it is old"),
                          ("imports_own", "it imports elsewhere_module, which is not in "
                                          "site-packages")):
            self.assertEqual(self.imports("quiet_module", name, "sets_module"), (
                ["quiet_module", name], ["unfit", name, why]))


class Tells(WithEnvironment):
    """A cold worker reports what it imports."""

    def told(self, program, *arguments):
        lines, written = self.lines(program, *arguments)
        return [word for line in lines if not line.startswith("begins ")
                for word in line.split()], written

    def lines(self, program, *arguments):
        self.write(os.path.join(self.folder, "imports.py"), program)
        pipe = os.path.join(self.folder, "told")
        os.mkfifo(pipe)
        self.addCleanup(os.unlink, pipe)
        read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        done = subprocess.run([self.python, "imports.py", *arguments], cwd=self.folder, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL,
                              start_new_session=True,
                              env=started(self.variables, DDPRUN_IMPORTS=pipe))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with os.fdopen(read) as file:
            return file.read().splitlines(), done.stdout

    def test_the_beginning_and_the_end_of_an_import_are_told(self):
        self.write(os.path.join(self.packages, "fails_module.py"), "import lazy_module\n1 / 0\n")
        lines, _ = self.lines("import quiet_module\n"
                              "try:\n    import fails_module\n"
                              "except ZeroDivisionError:\n    pass\n")
        words = [line.split() for line in lines if "_module" in line or line == "begins -"]
        self.assertEqual([one[:2] for one in words if one[0] != "quiet_module"], [
            ["begins", "quiet_module"], ["begins", "fails_module"], ["begins", "-"],
            ["stops", "fails_module"]])
        self.assertEqual(words[1][0], "quiet_module")

    def test_what_the_program_itself_imports_and_its_own_modules_do(self):
        self.write(os.path.join(self.folder, "of_program.py"),
                   "import asks_module\nimport lazy_module\n")
        names, _ = self.told(
            "import of_program, importlib.util\n"
            "importlib.util.find_spec('sets_module')\n"
            "try:\n    import missing_module\nexcept ImportError:\n    pass\n"
            "import lazy_module\nlazy_module.run()\n")
        for name in ("json", "json.decoder", "sets_module", "of_program", "missing_module"):
            self.assertNotIn(name, names)
        self.assertEqual([name for name in names if name.endswith(("program", "module"))],
                         ["asks_module", "lazy_module", "quiet_module"])

    def test_a_forked_child_tells_nothing(self):
        names, _ = self.told("import os\nif os.fork() == 0:\n    import quiet_module\n"
                             "    os._exit(0)\nos.wait()\nimport sets_module\n")
        self.assertIn("sets_module", names)
        self.assertNotIn("quiet_module", names)

    def test_the_program_finds_nothing_else(self):
        program = LOOK + ("seen = look()\nseen['meta_path'] = [one for one in seen['meta_path'] "
                          "if 'ddprun' not in one]\nprint(json.dumps(seen))")
        _, written = self.told(program)
        cold = subprocess.run([self.python, "imports.py"], cwd=self.folder, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL,
                              start_new_session=True, env=self.variables)
        self.maxDiff = None
        self.assertEqual(json.loads(written), json.loads(cold.stdout))

    def test_tracebacks_and_finders_are_those_of_a_worker_that_tells_nothing(self):
        self.write(os.path.join(self.folder, "raises_module.py"), "1 / 0\n")
        program = ("import importlib, sys, traceback\n"
                   "class Finder:\n"
                   "    @classmethod\n"
                   "    def find_spec(cls, name, *_):\n"
                   "        print('asked for', name)\n"
                   "sys.meta_path.insert(0, Finder)\n"
                   "for name in ('raises_module', 'missing_module', 'sets_module'):\n"
                   "    try:\n        importlib.import_module(name)\n"
                   "    except Exception:\n        print(traceback.format_exc())\n"
                   "print('sets_module' in sys.modules)\n")
        names, written = self.told(program)
        cold = subprocess.run([self.python, "imports.py"], cwd=self.folder, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL,
                              start_new_session=True, env=self.variables)
        self.assertEqual(written, cold.stdout)
        self.assertIn("File \"<frozen importlib._bootstrap>\"", written)
        self.assertTrue(written.endswith("True\n"), written)
        self.assertIn("stops", names)

    def test_nobody_who_hears_it_is_no_matter(self):
        self.write(os.path.join(self.folder, "leaves.py"), "import json\nprint('done')\n")
        for path in ("", "/nowhere/at/all", "/dev/null"):
            done = subprocess.run([self.python, "leaves.py"], cwd=self.folder, text=True,
                                  capture_output=True, stdin=subprocess.DEVNULL,
                              start_new_session=True,
                                  env=started(self.variables, DDPRUN_IMPORTS=path))
            self.assertEqual((done.stdout, done.stderr), ("done\n", ""))


class Waits(WithEnvironment):
    def setUp(self):
        self.write(os.path.join(self.folder, "leaves.py"),
                   "import os\nopen('has_run', 'w').close()\nbefore = os.environ.get("
                   "'SET_BY_MODULE')\nimport sets_module\n"
                   "print(before, os.environ.get('SET_BY_MODULE'))\n")

    def has_run(self):
        return os.path.exists(os.path.join(self.folder, "has_run"))

    def test_the_program_never_runs_without_a_place(self):
        for last in ("here", "ready"):
            standby = Standby(self, "leaves.py")
            self.assertEqual(standby.says(), ["here"])
            if last == "ready":
                standby.order("quiet_module")
                self.assertEqual(standby.says(), ["imports", "quiet_module"])
                standby.says_ready()
            self.assertEqual(standby.end(), (0, ""))
            self.assertFalse(self.has_run())

    def test_a_place_without_its_descriptors_is_none(self):
        for count in (0, 1):
            standby = Standby(self, "leaves.py")
            self.assertEqual(standby.says(), ["here"])
            standby.order("quiet_module")
            self.assertEqual(standby.says(), ["imports", "quiet_module"])
            standby.says_ready()
            with open(os.devnull, "w") as nowhere:
                socket.send_fds(standby.socket, [b"place\0RANK=1"], [nowhere.fileno()] * count)
            self.assertEqual(standby.says(), [""])  # the end of the connection, and not "gone"
            self.assertEqual(standby.end(), (1, ""))
            self.assertFalse(self.has_run())

    def test_the_kernel_takes_its_memory_first(self):
        standby = Standby(self, "leaves.py")
        self.assertEqual(standby.says(), ["here"])
        with open(f"/proc/{standby.process.pid}/oom_score_adj", encoding="utf-8") as file:
            self.assertEqual(file.read(), "1000\n")
        standby.end()

    def test_a_descriptor_that_is_no_socket_starts_nothing(self):
        done = subprocess.run([self.python, "leaves.py"], cwd=self.folder, capture_output=True,
                              stdin=subprocess.DEVNULL,
                              env=started(self.variables, DDPRUN_STANDBY="0"))
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertFalse(self.has_run())

    def test_what_a_module_sets_is_set_once_it_is_imported(self):
        standby = Standby(self, "leaves.py")
        self.assertEqual(standby.says(), ["here"])
        standby.order("sets_module")
        self.assertEqual(standby.says(), ["imports", "sets_module"])
        standby.says_ready()
        self.assertEqual(standby.release(PLACE), ("None yes\n", ["gone"]))
        standby.end()
        os.unlink(os.path.join(self.folder, "has_run"))

    def test_a_traceback_has_no_line_of_ddprun(self):
        self.write(os.path.join(self.folder, "raises.py"),
                   "import importlib, quiet_module\n"
                   "importlib.import_module('raises_module')\n")
        self.write(os.path.join(self.folder, "raises_module.py"), "1 / 0\n")
        cold = subprocess.run([self.python, "raises.py"], cwd=self.folder, capture_output=True,
                              text=True, env=self.variables)
        standby = Standby(self, "raises.py")
        self.assertEqual(standby.says(), ["here"])
        standby.order("quiet_module", "sets_module")  # The last one stays hidden.
        for name in ("quiet_module", "sets_module"):
            self.assertEqual(standby.says(), ["imports", name])
        standby.says_ready()
        self.assertEqual(standby.release(PLACE), (cold.stderr, ["gone"]))
        self.assertEqual(standby.end(), (1, ""))

    def test_a_file_that_has_changed(self):
        path = os.path.join(self.packages, "edited_module.py")
        self.write(path, "VALUE = 1")
        standby = Standby(self, "leaves.py")
        self.assertEqual(standby.says(), ["here"])
        standby.order("edited_module")
        self.assertEqual(standby.says(), ["imports", "edited_module"])
        standby.says_ready()
        self.write(path, "VALUE = 22")
        self.assertEqual(standby.release(PLACE), ("", ["unfit", path, "has changed"]))
        self.assertEqual(standby.end(), (0, ""))
        self.assertFalse(self.has_run())

    def test_a_file_that_has_changed_is_noticed_when_the_others_leave(self):
        path = os.path.join(self.packages, "edited_module.py")
        self.write(path, "VALUE = 1")
        standby = Standby(self, "leaves.py")
        self.assertEqual(standby.says(), ["here"])
        standby.order("edited_module")
        self.assertEqual(standby.says(), ["imports", "edited_module"])
        standby.says_ready()
        self.write(path, "VALUE = 22")
        standby.socket.send(b"check")
        self.assertEqual(standby.says(), ["unfit", path, "has changed"])
        self.assertEqual(standby.end(), (0, ""))
        self.assertFalse(self.has_run())

    def test_a_module_that_was_not_there(self):
        later = os.path.join(self.folder, "later")
        self.addCleanup(setattr, self, "variables", self.variables)
        self.variables = {**self.variables, "PYTHONPATH": later}
        self.addCleanup(os.rmdir, later)
        optional = os.path.join(self.packages, "optional_module.py")
        own = os.path.join(self.folder, "optional_module.py")
        self.addCleanup(os.unlink, optional)
        self.addCleanup(os.unlink, own)
        folder = os.fsencode(self.folder).hex()
        for make, changed in ((lambda: self.write(optional, ""), self.packages),
                              (lambda: self.write(own, ""), self.folder + "/"),
                              (lambda: os.mkdir(later), later)):
            standby = Standby(self, "leaves.py")
            self.assertEqual(standby.says(), ["here"])
            standby.order(f"quiet_module - path={folder}:*", how="guess")
            self.assertEqual(standby.says(), ["imports", "quiet_module"])
            standby.says_ready()
            self.write(os.path.join(self.folder, "written.txt"), "by the program")
            os.makedirs(os.path.join(self.folder, "checkpoints"), exist_ok=True)
            make()
            self.assertEqual(standby.release(PLACE), ("", ["unfit", changed, "has changed"]))
            self.assertEqual(standby.end(), (0, ""))
        self.assertFalse(self.has_run())

    def test_modules_that_must_wait_for_the_place(self):
        self.write(os.path.join(self.folder, "own_module.py"), "PLACE = 'beside the program'")
        self.addCleanup(os.unlink, os.path.join(self.folder, "own_module.py"))
        for name, why in (
                ("asks_module", "it asks for RANK"),
                ("asks_whether", "it asks for WORLD_SIZE"),
                ("copies_module", "it asks for all variables"),
                ("goes_through", "it asks for all variables"),
                ("copies_bytes", "it asks for all variables"),
                ("sets_context", "it changes multiprocessing's start method"),
                ("thread_module", "it starts 1 thread"),
                ("socket_module", "it opens a socket"),
                ("file_module", "it opens /.* for writing"),
                ("broken_module", "ImportError: no such device"),
                ("forks_module", "it starts a process"),
                ("copies_stdout_module", "it opens stdout a second time"),
                ("missing_module", "ModuleNotFoundError: No module named 'missing_module'"),
                ("own_module", "it is beside the program"),
                ("shadowing_module", "it imports own_module, which is beside the program")):
            with self.subTest(name):
                standby = Standby(self, "leaves.py")
                self.assertEqual(standby.says(), ["here"])
                standby.order("quiet_module", name)
                self.assertEqual(standby.says(), ["imports", "quiet_module"])
                said = standby.says()
                if said == ["imports", name]:
                    said = standby.says()
                self.assertEqual(said[:2], ["unfit", name])
                self.assertRegex(said[2], why)
                self.assertEqual(standby.end(), (0, ""))
        self.assertFalse(self.has_run())


class Rehearsals(WithEnvironment):
    """A process that imports what standbys are to import, and never becomes a worker."""

    def rehearse(self, *names, how="import", first=()):
        self.write(os.path.join(self.folder, "never.py"), "open('has_run', 'w').close()\n")
        standby = Standby(self, "never.py")
        self.assertEqual(standby.says(), ["here"])
        standby.order(*names, how=how, first=["rehearse", *first])
        said = standby.says()
        while said[0] == "imports":
            said = standby.says()
        self.assertEqual(standby.end(), (0, ""))
        self.assertFalse(os.path.exists(os.path.join(self.folder, "has_run")))
        return said

    def test_what_may_be_imported_is_fit(self):
        variables = {key: value for key, value in self.variables.items()
                     if key != "PYTHONDONTWRITEBYTECODE"}
        self.addCleanup(setattr, self, "variables", self.variables)
        self.variables = variables
        for _ in range(2):  # The bytecode exists the second time.
            said = self.rehearse("json", "quiet_module", "looks_module", "tests_module",
                                 "folder_there")
            self.assertEqual(said[0], "fit")
            self.assertGreater(int(said[1]), 0)
        self.assertTrue(os.path.exists(os.path.join(self.packages, "__pycache__")))

    def test_what_a_module_would_undo_is_not_done(self):
        for name, why in (
                ("joins_module", "it starts a thread"),
                ("sends_module", "it connects to nobody"),
                ("writes_module", "it opens was_written for writing"),
                ("removes_module", "it removes was_written"),
                ("makes_folder", "it makes the folder was_made"),
                ("runs_module", "it starts a process: true"),
                ("forks_module", "it starts a process"),
                ("thread_module", "it starts a thread"),
                ("asks_module", "it asks for RANK"),
                ("socket_module", "it opens a socket"),
                ("file_module", "it opens /.* for writing")):
            with self.subTest(name):
                said = self.rehearse("quiet_module", name, "sets_module")
                self.assertEqual(said[:2], ["unfit", name])
                self.assertRegex(said[2], why)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "was_written")))

    def test_a_module_that_reads_a_file_beside_the_program_is_unfit(self):
        path = os.path.join(self.folder, "settings.json")
        self.write(path, "{}")
        self.addCleanup(os.unlink, path)
        self.assertEqual(self.rehearse("quiet_module", "reads_module"), [
            "unfit", "reads_module", "it reads settings.json, which may change"])
        # For the text of a stack, as torch keeps some, it is the program that is read.
        self.assertEqual(self.rehearse("stack_module - program=*:*", how="guess")[0], "fit")

    def test_what_was_learned_is_kept_for_later_runs(self):
        folder = os.path.join(self.folder, "cache", "ddprun", "imports")
        path = os.path.join(folder, "0123")
        first = [f"keep {path}", "guess quiet_module"]
        for names in (["json"], ["json.decoder", "sets_module", "beside_it"]):
            self.assertEqual(self.rehearse(*names, how="learned", first=first)[0], "fit")
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read().split("\n"), ["ddprun imports 3", *names, ""])
        self.assertEqual([os.stat(one).st_mode & 0o777 for one in (path, folder)], [0o600, 0o700])
        others = [f"{number:04x}" for number in range(70)]
        for age, name in enumerate([*others, "theirs", "0123.0a"]):
            self.write(os.path.join(folder, name), "")
            os.utime(os.path.join(folder, name), (age, age))
        self.assertEqual(self.rehearse("json", how="learned", first=first)[0], "fit")
        self.assertEqual(sorted(os.listdir(folder)),
                         sorted(["0123", "0123.0a", "theirs", *others[7:]]))
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "ddprun imports 3\njson\n")

    def test_nothing_is_kept_in_a_folder_that_others_may_write_to(self):
        folder = os.path.join(self.folder, "shared", "imports")
        os.makedirs(folder)
        os.symlink(folder, os.path.join(self.folder, "link"))
        keeps = {"mode": folder, "link": os.path.join(self.folder, "link")}
        for how, path in keeps.items():
            with self.subTest(how):
                os.chmod(folder, 0o770 if how == "mode" else 0o700)
                self.assertEqual(self.rehearse("json", how="learned",
                                               first=[f"keep {path}/0123"])[0], "fit")
                self.assertEqual(os.listdir(folder), [])

    def test_what_comes_before_a_module_that_is_not_fit_is_kept(self):
        for name in ("asks_module", "writes_module", "joins_module"):
            path = os.path.join(self.folder, "cache", name)
            said = self.rehearse("json", name, "sets_module", how="learned",
                                 first=[f"keep {path}"])
            self.assertEqual(said[:2], ["unfit", name])
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), "ddprun imports 3\njson\n")

    def test_what_was_learned_before_or_cannot_be_written_is_not_kept(self):
        path = os.path.join(self.folder, "never", "kept")
        self.assertEqual(self.rehearse("json", how="guess", first=[f"keep {path}"])[0], "fit")
        self.assertFalse(os.path.exists(path))
        self.assertEqual(self.rehearse("json", how="learned", first=["keep /dev/null/x"])[0], "fit")


if __name__ == "__main__":
    unittest.main()
