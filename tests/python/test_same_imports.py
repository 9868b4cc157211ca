"""An import beforehand finds what the program's own import finds, or it is not used.

Method: installed modules record what an import can read, when they are imported. Each program runs
in a plain Python, in a cold worker that reports its imports, and in a standby that was prepared
with that report. All three say the same. How far the standby came is compared, too: a
program that changes something a standby cannot take on is cold from there on, and only then.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import unittest

from test_standby import PLACE, ROOT, Standby, WithEnvironment, started

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorder.py"),
          encoding="utf-8") as _file:
    RECORDER = _file.read()
HIDDEN = ("RANK", "WORLD_SIZE", "MASTER_PORT")
RECORDS = f"import recorder, sys\nSEEN = recorder.seen({HIDDEN})\n"
INSTALLED = {
    "recorder": RECORDER,
    "alpha": RECORDS, "beta": RECORDS, "gamma": RECORDS,
    "vend": RECORDS + "WHOSE = 'installed'",
    "warns": "import warnings\nwarnings.filterwarnings('ignore', 'of warns')\n" + RECORDS,
    "sets": "import os\nos.environ['SET_BY_IMPORT'] = '1'\n" + RECORDS,
    "finds": "import sys\nclass Finder:\n    @classmethod\n    def find_spec(cls, *_):\n"
             "        return None\nsys.meta_path.append(Finder)\n"
             "sys.path.append('/added/by/finds')\n" + RECORDS,
    "patches": "import time\ndef slept(s):\n    pass\ntime.sleep = slept\n" + RECORDS,
    "draws": "import random\nDRAWN = random.random()\n" + RECORDS,
    "lazy": RECORDS + "def later():\n    import beta\n    return beta\n",
    "chdirs": "import os\nos.chdir('/')\n" + RECORDS,
    "logs": "import logging\nlogging.getLogger('logs').setLevel(10)\n" + RECORDS,
    "late": "import os\nFOUND = os.environ.get('LATE')\n",
    "caches": RECORDS + "import os\nHOME = os.environ.get('HF_HOME', 'elsewhere')\n",
    "traces": RECORDS + "import os\nLOGS = os.environ.get('TORCH_LOGS', 'none')\n",
    "engine": "import logging\nlogger = logging.getLogger(__name__)\n" + RECORDS,
    "drives": RECORDS + "def drive():\n    import engine\n    return engine.logger.disabled\n",
    "clock": RECORDS + "import time\nHOUR = time.localtime(0).tm_hour, time.tzname\n",
    "digits": RECORDS + "import sys\nMOST = sys.get_int_max_str_digits()\n",
    "chooses": RECORDS + "import multiprocessing\nCONTEXT = multiprocessing.get_context()\n",
    "prefixed": RECORDS + "import os\nPLACE = {key: value for key, value in os.environ.items()\n"
                "         if key.startswith('RANK')}\n",
    "roots": "import logging\nlogging.getLogger().setLevel(10)\n" + RECORDS,
    "half": "import gamma\nraise ImportError('SECRET')\n",
    "lends": RECORDS + "def lend():\n    return 'as installed'\n",
    "borrows": RECORDS + "from lends import lend\nLENT = lend()\n",
    "changes": RECORDS + "import lends\nlends.lend = lambda: 'as changed'\n",
    "shims": RECORDS + "import lends\nHAS = [hasattr(lends, one) for one in ('lend', 'give')]\n",
    "swaps": RECORDS + "import lends, types\nnew = types.ModuleType('lends')\n"
             "new.lend = lends.lend\nsys.modules['lends'] = new\n",
    "nameless": RECORDS + "del __name__\n",
    "names": RECORDS + "import nameless\nnameless.f = lambda: 1\n",
    "keeps": RECORDS + "FILE = open(__file__)\n",
    "collects": "import gc\ngc.enable()\n" + RECORDS,
    "encodes": RECORDS + "ENCODING = sys.stdout.encoding\n",
    "adds": RECORDS + "import lends\nlends.give = len\ndel lends.lend\n",
    "bundle/__init__": RECORDS + "def __getattr__(name):\n    if name != 'Lazy':\n"
                        "        raise AttributeError(name)\n"
                        "    from bundle.part import Lazy\n"
                        "    globals()['Lazy'] = Lazy\n    return Lazy\n",
    "bundle/part": "class Lazy:\n    pass\n",
    "stands_in": RECORDS + "import lends, types\nnew = types.ModuleType('lends')\n"
                 "new.__dict__.update(lends.__dict__, OLD=lends)\nsys.modules['lends'] = new\n"
                 "sys.modules.pop('gamma', None)\n",
    "torch/__init__": RECORDS + "from torch import _C\ndef get_default_dtype():\n    pass\n",
    "torch/_C": "precision, grad = 'highest', True\n"
                "def _get_float32_matmul_precision():\n    return precision\n"
                "def is_grad_enabled():\n    return grad\ndef is_inference_mode_enabled():\n"
                "    return False\n",
    "tunes": RECORDS + "import torch\ntorch._C.precision = 'high'\n",
    "computes": RECORDS + "import torch\nGRAD = torch._C.is_grad_enabled()\n",
    "looks": RECORDS + "import __main__, sys\nframe = sys._getframe(1)\n"
             "while 'importlib' in frame.f_code.co_filename:\n    frame = frame.f_back\n"
             "FOUND = [__main__.__file__, sys.argv[0], frame.f_code.co_filename,\n"
             "         frame.f_globals is __main__.__dict__]\n",
    "warns_user": RECORDS + "import warnings\n"
                  "warnings.warn('it is old', DeprecationWarning, stacklevel=2)\n",
    "divides": RECORDS + "from decimal import Decimal, localcontext\n"
               "with localcontext():\n    THIRD = str(Decimal(1) / 3)\n",
    "asks": RECORDS + "try:\n    import stub\n    HAS = True\nexcept ImportError:\n"
            "    HAS = False\n",
    "old": RECORDS + "import warnings\nwarnings.filterwarnings('ignore', 'of old')\ntry:\n"
           "    warnings.warn('it is old', DeprecationWarning)\n    HOW = 'warned'\n"
           "except Warning:\n    HOW = 'raised'\n",
}
ENDING = f"""
import json, sys
import recorder
print(json.dumps({{"end": recorder.seen({HIDDEN}), "seen": {{
    name: one.SEEN for name, one in sys.modules.items() if type(getattr(one, "SEEN", 0)) is dict}},
    "said": getattr(sys.modules["__main__"], "SAID", None)}}, sort_keys=True))
"""

OWN = {
    "third_party/vend": RECORDS + "WHOSE = 'own'",
    "own": "import os\nos.environ['SET_BY_OWN'] = 'yes'\nimport beta\n",
    "ending": ENDING, "own_package/__init__": "", "own_package/part": "import alpha\n",
    "own_package/__main__": "import own_package.part, gamma\nimport ending\n",
}

# Name: the program, what its standby has imported of INSTALLED, and what ended that.
PROGRAMS = {
    "nothing": ("import alpha, beta", "alpha beta", ""),
    "another copy": ("import sys\nsys.path.insert(0, 'third_party')\nimport vend\n"
                     "SAID = vend.WHOSE\nimport alpha", "recorder alpha", ""),
    "a variable": ("import os\nos.environ['PYTORCH_JIT'] = '0'\nimport alpha", "alpha", ""),
    "HF_HOME": ("import os\nos.environ['HF_HOME'] = '/models'\nimport caches\n"
                "SAID = caches.HOME", "caches", ""),
    "TORCH_LOGS": ("import os\nos.environ['TORCH_LOGS'] = '+dynamo,graph'\nimport traces\n"
                   "SAID = traces.LOGS", "traces", ""),
    "a secret": ("import os\nos.environ['HF_TOKEN'] = 'a b\\n\\u00e4'\nimport alpha", "alpha", ""),
    "variables between": ("import alpha, os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport beta\n"
                          "os.environ['OMP_NUM_THREADS'] = '2'\nimport gamma",
                          "alpha beta gamma", ""),
    "a variable less": ("import os\ndel os.environ['LAST']\nimport alpha", "alpha", ""),
    "CPUs": ("import os\nos.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\nimport alpha",
             "alpha", ""),
    "who is there": ("import sys\nSAID = [one for one in ('alpha', 'json', 'warnings', 'ddprun')\n"
                     "        if one in sys.modules]\nimport alpha", "alpha", ""),
    "a finder": ("import sys\nclass Finder:\n    @classmethod\n    def find_spec(cls, *_):\n"
                 "        return None\nsys.meta_path.insert(0, Finder)\nimport alpha", "",
                 "sys.meta_path"),
    "a path hook": ("import sys\ndef hook(path):\n    raise ImportError\n"
                    "sys.path_hooks.append(hook)\nimport alpha", "", "sys.path_hooks"),
    "filters": ("import warnings\nwarnings.filterwarnings('ignore')\nimport alpha\n"
                "warnings.filterwarnings('error', message='a|b, c:d', module='x')\n"
                "warnings.simplefilter('once', DeprecationWarning)\nimport beta",
                "alpha beta", ""),
    "an own warning": ("import warnings\nclass Own(Warning):\n    pass\n"
                       "warnings.simplefilter('ignore', Own)\nimport alpha", "",
                       "a filter of warnings of a class of the program"),
    "dlopen": ("import sys, os\nsys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)\nimport alpha",
               "alpha", ""),
    "a seed": ("import random\nrandom.seed(1)\nimport alpha\nSAID = random.random()", "alpha", ""),
    "a seed, and one who draws": ("import random\nrandom.seed(1)\nimport alpha, draws\n"
                                  "SAID = random.random(), draws.DRAWN", "alpha",
                                  "draws random numbers"),
    "one who draws": ("import random, alpha, draws, beta", "alpha draws beta", ""),
    "a number, and one who draws": ("import random\nrandom.random()\nimport alpha, draws", "alpha",
                                    "draws random numbers"),
    "a function": ("import time\ndef slept(s):\n    pass\ntime.sleep = slept\nimport alpha", "",
                   "time.sleep"),
    "a function of a library": ("import lends\nlends.lend = lambda: 'own'\nimport borrows\n"
                                "SAID = borrows.LENT", "lends", "lends.lend"),
    "what an import changes in another": ("import lends\nSAID = [lends.lend()]\nimport changes\n"
                                          "SAID.append(lends.lend())", "lends changes", ""),
    "a new function of a library": (
        "import lends\nlends.give = lends.lend\nimport shims\nSAID = shims.HAS", "lends",
        "lends.give"),
    "a function of a library less": ("import lends\ndel lends.lend\nimport shims\n"
                                     "SAID = shims.HAS", "lends", "lends.lend"),
    "what an import adds and removes": ("import lends\nSAID = [dir(lends)]\nimport adds\n"
                                        "SAID.append(dir(lends))", "lends adds", ""),
    "what a lazy library loads": ("import bundle\nbundle.Lazy\nimport alpha", "alpha", ""),
    "a shim of a lazy library": ("import bundle\nbundle.float = float\nimport alpha", "",
                                 "bundle.float"),
    "what an import puts into the place of another": (
        "import lends\nOLD = lends\nimport stands_in\nimport lends, sys\n"
        "SAID = [lends is OLD, hasattr(lends, 'OLD'), 'gamma' in sys.modules]", "lends stands_in",
        ""),
    "what an import takes out": (
        "import gamma\nOLD = gamma\nimport stands_in, sys\n"
        "SAID = ['gamma' in sys.modules]\nimport gamma\nSAID.append(gamma is OLD)\nimport alpha",
        "gamma", "it takes gamma out of sys.modules"),
    "who tunes torch": ("import torch, alpha, tunes, beta\nSAID = torch._C.precision", "alpha",
                        "it changes torch's float32_matmul_precision"),
    "a program that tunes torch": ("import torch\ntorch._C.precision = 'medium'\nimport alpha\n"
                                   "SAID = torch._C.precision", "alpha", ""),
    "two who tune torch": ("import torch\ntorch._C.precision = 'medium'\nimport tunes, alpha\n"
                           "SAID = torch._C.precision", "",
                           "it changes torch's float32_matmul_precision"),
    "no gradients": ("import torch\ntorch._C.grad = False\nimport computes\nSAID = computes.GRAD",
                     "", "torch's grad mode"),
    "who looks for the program": ("import looks\nSAID = looks.FOUND", "looks", ""),
    "who would warn the program": ("import warnings\nwarnings.simplefilter('ignore')\n"
                                   "import warns_user, alpha", "warns_user alpha", ""),
    "decimals": ("import contextvars, decimal\ndecimal.getcontext().prec = 50\nimport divides\n"
                 "SAID = divides.THIRD", "", "decimal.getcontext()"),
    "decimals as ever": ("import contextvars, decimal, divides\ndecimal.DefaultContext.prec = 5\n"
                         "SAID = [divides.THIRD, str(decimal.Decimal(1) / 3)]", "divides", ""),
    "a stub": ("import sys, types\nsys.modules['stub'] = types.ModuleType('stub')\n"
               "import asks\nSAID = asks.HAS", "", "sys.modules['stub']"),
    "filters for one import": ("import warnings\nwith warnings.catch_warnings():\n"
                               "    warnings.simplefilter('error')\n    import old\n"
                               "SAID = old.HOW\nimport alpha", "old alpha", ""),
    "open": ("import builtins\nown = builtins.open\n"
             "builtins.open = lambda *a, **k: own(*a, **k)\nimport alpha", "", "builtins.open"),
    "a folder": ("import os\nos.chdir('third_party')\nimport alpha", "", "the working folder"),
    "a umask": ("import os\nos.umask(0o077)\nimport alpha", "", "the umask"),
    "logging": ("import logging\nlogging.basicConfig(level=10)\nimport alpha", "", "logging"),
    "a locale": ("import locale\nlocale.setlocale(locale.LC_ALL, 'C')\nimport alpha", "",
                 "the locale"),
    "arguments": ("import sys\nsys.argv.append('more')\nimport alpha", "", "sys.argv"),
    "stdout": ("import sys, io\nown = sys.stdout\nsys.stdout = io.StringIO()\nimport alpha\n"
               "sys.stdout = own", "", "sys.stdout"),
    "recursion": ("import sys\nsys.setrecursionlimit(5000)\nimport alpha", "",
                  "the recursion limit"),
    "a longer path": ("import sys\nsys.path += ['third_party', '']\nimport alpha\n"
                      "sys.path.remove('third_party')\nimport beta", "alpha beta", ""),
    "own modules": ("import own, own_package.part, gamma", "beta alpha gamma", ""),
    "what ddprun imports, too": ("import _ctypes, _socket, gc, alpha", "alpha", ""),
    "what is missing": ("try:\n    import missing\nexcept ImportError:\n    pass\nimport alpha",
                        "alpha", ""),
    "what fails half-way": ("try:\n    import half\nexcept ImportError:\n    pass\nimport alpha",
                            "", "it cannot be imported"),
    "what imports change": ("import alpha, warns, sets, finds, patches, beta",
                            "alpha warns sets finds patches beta", ""),
    "in another order": ("import finds\nimport os\nos.environ['A'] = 'b'\n"
                         "import sets, warns, patches",
                         "finds sets warns patches", ""),
    "what changes folders": ("import alpha, chdirs, beta", "alpha", "the working folder"),
    "who sets a level": ("import alpha, logs, beta", "alpha logs beta", ""),
    "who has an own logger": ("import logging, alpha, logs, beta", "alpha logs beta", ""),
    "who changes the root's logger": ("import logging, alpha, roots, beta", "alpha",
                                      "logging's root"),
    "who disables the loggers that are there": (
        "import drives, logging.config\nlogging.config.dictConfig({'version': 1})\n"
        "SAID = drives.drive()", "drives engine", ""),
    "another time zone": ("import os, time\nos.environ['TZ'] = 'EST5EDT'\ntime.tzset()\n"
                          "import clock\nSAID = clock.HOUR", "", "time.tzset()"),
    "longer numbers": ("import sys\nsys.set_int_max_str_digits(0)\nimport digits\n"
                       "SAID = digits.MOST", "", "sys.set_int_max_str_digits()"),
    "who starts processes otherwise": (
        "import alpha, multiprocessing\nmultiprocessing.set_start_method('spawn')\n"
        "import chooses\nSAID = type(chooses.CONTEXT).__name__", "alpha",
        "it changes multiprocessing's start method"),
    "who goes through all variables": ("import alpha, prefixed\nSAID = prefixed.PLACE", "alpha",
                                       "it asks for all variables"),
    "another os.environ": ("import os\nos.environ = dict(os.environ, LATE='1')\nimport late\n"
                           "SAID = late.FOUND", "", "os.environ"),
    "a stub with a spec": ("import sys, types, importlib.machinery\n"
                           "stub = sys.modules['stub'] = types.ModuleType('stub')\n"
                           "stub.__spec__ = importlib.machinery.ModuleSpec('stub', None)\n"
                           "import asks\nSAID = asks.HAS", "", "sys.modules['stub']"),
    "another name of a library": ("import json, sys\nsys.modules['stub'] = json\nimport asks\n"
                                  "SAID = asks.HAS", "", "sys.modules['stub']"),
    "an own module in the place of a library": (
        "import lends, importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('lends', 'third_party/vend.py')\n"
        "sys.modules['lends'] = own = importlib.util.module_from_spec(spec)\n"
        "own.lend = lambda: 'own'\nimport borrows\nSAID = borrows.LENT", "lends",
        "sys.modules['lends']"),
    "what an import without a file puts into the place of another": (
        "import lends, swaps, alpha, sys\nSAID = 'lends' in sys.modules",
        "lends swaps alpha", ""),
    "a library that takes its name away": ("import nameless, names, alpha\nSAID = nameless.f()",
                                           "nameless names alpha", ""),
    "what a lazy library has under another name": (
        "import bundle\nbundle.Old = bundle.Lazy\nimport alpha", "", "bundle.Old"),
    "a function under another name": ("import lends\nlends.given = lends.lend\n"
                                      "del lends.lend\nimport shims\nSAID = shims.HAS", "lends",
                                      "lends."),
    "what an import keeps open": ("import keeps\nSAID = keeps.FILE.readline()", "keeps", ""),
    "no garbage collector": ("import gc\ngc.disable()\nimport collects\nSAID = gc.isenabled()",
                             "", "the garbage collector"),
    "stdout otherwise": ("import sys\nsys.stdout.reconfigure(encoding='latin-1')\n"
                         "import encodes\nSAID = encodes.ENCODING", "", "sys.stdout"),
    "a limit": ("import resource\n_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
                "resource.setrlimit(resource.RLIMIT_NOFILE, (100, most))\nimport alpha", "",
                "a limit (setrlimit)"),
    "a time-out of sockets": ("import socket\nsocket.setdefaulttimeout(7)\nimport alpha", "",
                              "socket.setdefaulttimeout()"),
    "an audit hook that refuses what ddprun does": (
        "import sys\ndef hook(event, _):\n    if event.startswith('ctypes'):\n"
        "        raise RuntimeError(event)\nsys.addaudithook(hook)\nimport alpha, beta",
        "alpha beta", ""),
    "code without a name": ("exec('import alpha', {'__name__': None})", "alpha", ""),
    "a lazy module": ("import importlib.util, os, sys\nspec = importlib.util.find_spec('late')\n"
                      "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
                      "late = sys.modules['late'] = importlib.util.module_from_spec(spec)\n"
                      "spec.loader.exec_module(late)\nimport colorsys\n"
                      "os.environ['LATE'] = '1'\nSAID = late.FOUND\nimport alpha", "alpha", ""),
    "processes": ("import multiprocessing, alpha", "alpha", ""),
    "lazily": ("import lazy, logging\nlogging.basicConfig(level=10)\n"
               "import os\nos.environ['A'] = 'b'\nlazy.later()\nimport gamma", "lazy beta",
               "logging"),
    "in a thread": ("import threading\nimport alpha\n"
                    "one = threading.Thread(target=__import__, args=('beta',))\n"
                    "one.start()\none.join()\nimport os\n"
                    "while len(os.listdir('/proc/self/task')) > 1:\n    pass\nimport gamma",
                    "alpha gamma", ""),
    "from within": ("from concurrent.futures import ThreadPoolExecutor\nimport xml.dom.minidom\n"
                    "SAID = hasattr(sys.modules['xml'], 'sax') if 'sys' in globals() else None\n"
                    "import xml.sax, alpha", "alpha", ""),
}


# A user's module for all programs. It does what would end the list if the program did it.
USERCUSTOMIZE = RECORDS + """
import builtins, os, time, warnings
builtins.RUNS = getattr(builtins, "RUNS", 0) + 1
os.environ["SET_BY_USER"] = "1"
os.umask(0o027)
sys.path.append("/added/by/user")
warnings.filterwarnings("ignore", "of the user")
class Finder:
    @classmethod
    def find_spec(cls, *_):
        return None
sys.meta_path.append(Finder)
def slept(s):
    pass
time.sleep = slept
import gamma
"""

# An installed module in C that links a library, as wheels do: VALUE is that of the library. The
# text declares the parts of Python that it needs, for Python's headers may not be there.
LINKED = """
struct Definition {
    long count; void *type, *init; long index; void *copy;  /* as PyModuleDef_HEAD_INIT */
    const char *name, *doc; long size; void *methods, *slots, *traverse, *clear, *free;
} definition = {.count = 1, .name = "linked", .size = -1};
void *PyModule_Create2(struct Definition *, int);
int PyModule_AddIntConstant(void *, const char *, long);
int value(void);
void *PyInit_linked(void) {
    void *made = PyModule_Create2(&definition, 1013);
    PyModule_AddIntConstant(made, "VALUE", value());
    return made;
}
"""


class Lives(WithEnvironment):
    """A program in a plain Python, in a cold worker and in a standby."""

    place = PLACE
    installed = INSTALLED

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.of_python = ("built-in", "frozen", os.path.dirname(os.__file__))
        for name, text in cls.installed.items():
            path = os.path.join(cls.packages, name + ".py")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            cls.write(path, text)
        for name, text in OWN.items():
            path = os.path.join(cls.folder, name + ".py")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            cls.write(path, text)

    def run_cold(self, *arguments, **variables):
        done = subprocess.run([self.python, *arguments], cwd=self.folder, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL,
                              start_new_session=True,
                              env={**self.variables, **self.place, **variables})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def tell(self, *arguments):
        """Returns the output of a cold worker, and the lines that it reports."""
        pipe = os.path.join(self.folder, "told")
        os.mkfifo(pipe)
        self.addCleanup(lambda: os.path.exists(pipe) and os.unlink(pipe))
        read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        said = self.run_cold(*arguments, **{
            key: value for key, value in started(self.variables, DDPRUN_IMPORTS=pipe).items()
            if key not in self.place})
        os.unlink(pipe)
        with os.fdopen(read) as file:
            return said, file.read().splitlines()

    def prepare(self, lines, *arguments):
        """A standby that has imported what was told, or what kept it from being one."""
        standby = Standby(self, *arguments)
        self.assertEqual(standby.says(), ["here"])
        standby.socket.send("\n".join(
            ["placed " + key for key in self.place] +
            ["learned " + line for line in lines
             if not line.startswith(("stops ", "begins "))]).encode())
        imported, said = [], standby.says()
        while said[0] == "imports":
            imported, said = [*imported, said[1]], standby.says()
        return standby, imported, said

    def assert_same(self, one, other):
        """With what differs alone in the message."""
        def flat(tree, path=""):
            if not isinstance(tree, dict):
                return {path: tree}
            return {key: value for name in tree for key, value in flat(
                tree[name], f"{path}/{name}").items()}
        ours, theirs = flat(one), flat(other)
        self.assertEqual({key: value for key, value in ours.items() if theirs.get(key) != value},
                         {key: value for key, value in theirs.items() if ours.get(key) != value})

    def compare(self, reached, ended, *arguments):
        """Compares the output of all three lives and returns it."""
        plain = self.run_cold(*arguments)
        cold, lines = self.tell(*arguments)
        self.assert_same(cold, plain)
        self.assertNotIn("SECRET", str(lines))
        standby, imported, said = self.prepare(lines, *arguments)
        while said[0] == "unfit":  # As the agent: what comes before it is imported next.
            standby.end()
            lines = lines[:[line.split()[0] for line in lines].index(said[1])]
            lines.append("stops {} {}".format(*said[1:]))
            standby, imported, said = self.prepare(lines, *arguments)
        self.assertEqual(said[0], "ready")
        self.assertEqual(" ".join(one for one in imported if one in self.installed), reached)
        stops = [line for line in lines if line.startswith("stops ")]
        self.assertEqual(len(stops), 1 if ended else 0, stops)
        self.assertIn(ended, (stops + [""])[0])
        written, last = standby.release(self.place)
        self.assertEqual(last, ["gone"])
        self.assertTrue(written.startswith("{"), written)
        warm = json.loads(written)
        for said in (warm, plain):
            for name, seen in said["seen"].items():
                if name not in imported:
                    # It finds the libraries mapped of all that was imported beforehand.
                    del seen["mapped"]
                # An import beforehand finds no modules of the program, nor of its threads.
                seen["modules"] = {one: origin for one, origin in seen["modules"].items()
                                   if origin.startswith(self.of_python)}
                seen["caches"] = [path for path in seen["caches"]
                                  if path.startswith(self.of_python)]
        self.assert_same(warm, plain)
        self.assertEqual(standby.end(), (0, ""))
        return warm["said"]


class SameImports(Lives):
    def test_a_module_of_a_package_that_uses_processes(self):
        self.write(os.path.join(self.folder, "own_package", "processes.py"),
                   "import multiprocessing, alpha, ending\n")
        self.compare("alpha", "", "-m", "own_package.processes")

    def test_a_module_of_a_package_whose_file_a_library_looks_for(self):
        self.write(os.path.join(self.folder, "own_package", "found.py"),
                   "import looks\nSAID = looks.FOUND\nimport ending\n")
        self.compare("looks", "", "-m", "own_package.found")

    def test_what_the_user_has_for_all_programs(self):
        base = os.path.join(self.holder.name, "user")
        folder = os.path.join(base, "lib", os.path.basename(os.path.dirname(self.packages)),
                              "site-packages")
        os.makedirs(folder)
        self.write(os.path.join(folder, "usercustomize.py"), USERCUSTOMIZE)
        # Else a virtual environment has none.
        settings = os.path.join(self.holder.name, "environment", "pyvenv.cfg")
        with open(settings, encoding="utf-8") as file:
            kept = file.read()
        self.addCleanup(self.write, settings, kept)
        self.write(settings, kept.replace("system-site-packages = false",
                                          "system-site-packages = true"))
        self.addCleanup(setattr, self, "variables", self.variables)
        self.variables = {**self.variables, "PYTHONUSERBASE": base}
        self.write(os.path.join(self.folder, "program.py"),
                   "import alpha, sys, usercustomize\nSAID = [RUNS, 'gamma' in sys.modules]\n"
                   "import ending\n")
        self.assertEqual(self.compare("alpha", "", "-u", "program.py"), [1, True])

    def begin_anew(self, program, changed):
        """The standby of a worker of rank 0 takes the place of rank 5."""
        self.write(os.path.join(self.folder, "program.py"), program + "import ending\n")
        _, lines = self.tell("-u", "program.py", "x")
        standby, imported, said = self.prepare(lines, "-u", "program.py", "x")
        self.assertEqual((imported[-1], said[0]), ("json", "ready"))
        again = {**PLACE, "RANK": "5"}
        written, last = standby.release({**again, "PYTHONPATH": started({})["PYTHONPATH"]})
        line, _, rest = written.partition("\n")
        self.assertIn(f", {changed} is not as it was", line)
        self.assertRegex(line, "^ddprun: this worker begins anew and cold: when it imports ")
        self.assert_same(json.loads(rest), self.run_cold("-u", "program.py", "x", **again))
        self.assertEqual(standby.end(), (0, ""))

    def test_a_program_that_does_something_else_after_a_restart_begins_anew(self):
        self.begin_anew("import os\nif os.environ['RANK'] == '5':\n    os.environ['NEW'] = '1'\n"
                        "import alpha\n", "os.environ['NEW']")

    def test_who_imports_less_after_a_restart_begins_anew(self):
        self.begin_anew("import os\nif os.environ['RANK'] != '5':\n    import alpha\n"
                        "import beta, gamma\n", "sys.modules['alpha']")

    def test_who_imports_less_of_python_after_a_restart_does_not(self):
        self.write(os.path.join(self.folder, "program.py"),
                   "import os\nif os.environ['RANK'] != '5':\n    import shlex\nimport alpha\n"
                   "import ending\n")
        _, lines = self.tell("program.py")
        standby, _, said = self.prepare(lines, "program.py")
        self.assertEqual(said[0], "ready")
        again = {**PLACE, "RANK": "5"}
        written, _ = standby.release(again)
        plain = self.run_cold("program.py", **again)
        warm = json.loads(written)
        extra = warm["end"]["modules"].keys() - plain["end"]["modules"].keys()
        self.assertIn("shlex", extra)  # It has what was passed over, too: docs/warm.md.
        self.assertEqual({name: origin for name, origin in warm["end"]["modules"].items()
                          if name not in extra}, plain["end"]["modules"])
        self.assertEqual(standby.end(), (0, ""))

    def test_a_file_in_the_place_of_one_that_an_import_keeps_open_begins_anew(self):
        self.begin_anew("import os\nif os.environ['RANK'] == '5':\n    os.closerange(3, 100)\n"
                        "    OWN = open('program.py')\nimport keeps\n"
                        "SAID = keeps.FILE.readline()\n", "a file that an import has open")

    def test_a_stub_in_the_place_of_a_library_that_another_replaces_begins_anew(self):
        self.begin_anew("import os, sys, types\nif os.environ['RANK'] == '5':\n"
                        "    sys.modules['lends'] = types.ModuleType('lends')\n"
                        "    sys.modules['lends'].lend = lambda: 'own'\n"
                        "import borrows, swaps\nSAID = borrows.LENT\n", "sys.modules['lends']")

    def test_who_seeds_before_an_import_that_draws_begins_anew(self):
        self.begin_anew("import os, random\nif os.environ['RANK'] == '5':\n    random.seed(1)\n"
                        "import draws\nSAID = os.environ['RANK'] == '5' and random.random()\n",
                        "the seed of random")

    def test_what_begins_anew_finds_what_it_began_with(self):
        self.addCleanup(os.unlink, os.path.join(self.folder, "again"))
        self.begin_anew("""
import os, signal
if os.environ["RANK"] == "5" and not os.path.exists("again"):
    os.close(os.open("again", os.O_CREAT | os.O_WRONLY))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signal.setitimer(signal.ITIMER_REAL, 60)
    os.umask(0o077)
    os.environ["NEW"] = "1"
import alpha
SAID = signal.getitimer(signal.ITIMER_REAL)
""", "os.environ['NEW']")

    def test_what_is_connected_to_others_goes_on(self):
        program = ("import os, socket\n"
                   "if os.environ['RANK'] == '5':\n    KEPT = socket.socketpair()\n"
                   "    os.environ['NEW'] = '1'\nimport alpha\nprint(os.getpid())\n")
        self.write(os.path.join(self.folder, "program.py"), program)
        pipe = os.path.join(self.folder, "told")
        os.mkfifo(pipe)
        self.addCleanup(os.unlink, pipe)
        read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.run_cold("program.py", **started(self.variables, DDPRUN_IMPORTS=pipe))
        with os.fdopen(read) as file:
            standby, imported, said = self.prepare(file.read().splitlines(), "program.py")
        self.assertEqual((imported[-1], said[0]), ("alpha", "ready"))
        written, last = standby.release({**PLACE, "RANK": "5"})
        self.assertEqual(written.split("\n")[0],
                         "ddprun: this worker goes on, as it is connected to others: when it "
                         "imports alpha, os.environ['NEW'] is not as it was when that was imported "
                         "beforehand; --warm off has no standbys")
        self.assertEqual(written.split("\n")[1:], [str(standby.process.pid), ""])
        self.assertEqual(standby.end(), (0, ""))

    def test_a_wrapper_may_put_its_own_folders_before_ours(self):
        program = ("import json, os, sys\n"
                   "print(json.dumps([os.environ.get('PYTHONPATH'), sys.path]))")
        ours = started({})["PYTHONPATH"]
        for path, plain in ((f"/a:{ours}:/b", "/a:/b"), (f"/a:{ours}", "/a"), (f"{ours}/", ""),
                            (f"{ours}:/b:/c", "/b:/c"), (f"{ours}::/b", ":/b")):
            with self.subTest(path):
                self.assertEqual(self.run_cold("-c", program, PYTHONPATH=path),
                                 self.run_cold("-c", program, PYTHONPATH=plain))

    def test_a_standby_that_is_not_the_worker_itself_runs_nothing(self):
        done = subprocess.run([self.python, "-c", "print(1)"], cwd=self.folder, text=True,
                              capture_output=True, env=started(self.variables, DDPRUN_STANDBY="0"))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", ""))


@unittest.skipUnless(shutil.which("cc"), "no C compiler here")
class Libraries(Lives):
    """A library that only an imported module in C links is another file by now."""

    def setUp(self):
        for folder in ("linked.first", "linked.libs"):
            os.mkdir(os.path.join(self.packages, folder))
            self.addCleanup(shutil.rmtree, os.path.join(self.packages, folder))
        self.library = self.compile("int value(void) { return 1; }", "linked.libs/libvalue.so",
                                    "-Wl,-soname,libvalue.so")
        self.compile(LINKED, "linked.so", "-Wl,-rpath,$ORIGIN/linked.first:$ORIGIN/linked.libs",
                     "-x", "none", self.library)
        # As an installer does that is at work when the standby is prepared.
        self.write(os.path.join(self.packages, "installs.py"),
                   f"import os\nif os.path.exists({self.library + '.new'!r}):\n"
                   f"    os.replace({self.library + '.new'!r}, {self.library!r})\n")
        self.write(os.path.join(self.folder, "program.py"),
                   "import linked, installs\nprint(linked.VALUE)\n")

    def compile(self, text, name, *flags):
        path = os.path.join(self.packages, name)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, "-x", "c", "-", *flags], input=text,
                       text=True, check=True)
        return path

    def install(self, name="linked.libs/libvalue.so"):
        """Another one, in the way of installers: who has the old one mapped keeps it."""
        new = self.compile("int value(void) { return 2; }", "linked.libs/libvalue.so.new",
                           "-Wl,-soname,libvalue.so")
        if name:
            os.replace(new, os.path.join(self.packages, name))

    def assert_next_has_it(self, lines):
        standby, imported, said = self.prepare(lines, "program.py")
        self.assertEqual((imported, said[0]), (["linked", "installs"], "ready"))
        self.assertEqual(standby.release(PLACE), ("2\n", ["gone"]))
        self.assertEqual(standby.end(), (0, ""))

    def test_it_was_replaced_before_the_standby_is_prepared(self):
        said, lines = self.tell("program.py")
        self.assertEqual(said, 1)
        self.install()
        self.assert_next_has_it(lines)

    def test_it_is_replaced_while_the_standby_is_prepared(self):
        _, told = self.tell("program.py")
        kept = [" ".join([name, "-", *state]) for name, _, *state in map(str.split, told)]
        for lines in (told, kept):
            with self.subTest(lines):
                self.install("")
                standby, _, said = self.prepare(lines, "program.py")
                self.assertEqual(said, ["unfit", self.library, "has changed"])
                self.assertEqual(standby.end(), (0, ""))
                self.assert_next_has_it(lines)

    def test_it_is_replaced_while_the_standby_waits(self):
        _, lines = self.tell("program.py")
        standby, _, said = self.prepare(lines, "program.py")
        self.assertEqual(said[0], "ready")
        self.install()
        self.assertEqual(standby.release(PLACE), ("", ["unfit", self.library, "has changed"]))
        self.assertEqual(standby.end(), (0, ""))
        self.assert_next_has_it(lines)

    def test_a_link_leads_to_another_while_the_standby_waits(self):
        os.replace(self.library, self.library + ".1")
        os.symlink("libvalue.so.1", self.library)
        _, lines = self.tell("program.py")
        standby, _, said = self.prepare(lines, "program.py")
        self.assertEqual(said[0], "ready")
        self.install("linked.libs/libvalue.so.2")
        os.unlink(self.library)
        os.symlink("libvalue.so.2", self.library)
        self.assertEqual(standby.release(PLACE), ("", ["unfit", self.library, "has changed"]))
        self.assertEqual(standby.end(), (0, ""))

    def test_it_is_found_elsewhere(self):
        _, lines = self.tell("program.py")
        self.install("linked.first/libvalue.so")
        standby, _, said = self.prepare(lines, "program.py")
        self.assertEqual(said, ["unfit", "linked",
                                "it finds other files than the worker that imported it"])
        self.assertEqual(standby.end(), (0, ""))


@unittest.skipUnless(importlib.util.find_spec("torch"), "no torch here")
class WithTorch(Lives):
    """ddprun.worker() changes torch. It is called before `import torch`, or after it."""

    place = {**PLACE, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
             "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0",
             "TORCHELASTIC_RUN_ID": "run", "DDPRUN_GENERATION": "1", "DDPRUN_SLOT": "1",
             "DDPRUN_START_REASON": "", "DDPRUN_PAGE": ""}
    installed = {"recorder": RECORDER, "alpha": ""}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.symlink(os.path.abspath(os.path.join(ROOT, "worker_runtime", "python", "ddprun")),
                   os.path.join(cls.packages, "ddprun"))
        cls.installed = {**cls.installed, "torch": "", "ddprun": ""}  # Both are links.
        source = os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin))
        for name in os.listdir(source):
            if not os.path.lexists(os.path.join(cls.packages, name)) and not name.endswith(".pth"):
                os.symlink(os.path.join(source, name), os.path.join(cls.packages, name))

    def replaced(self, *lines, reached):
        """Returns the files of DistributedDataParallel.__init__ and Work.wait, or None for C."""
        self.write(os.path.join(self.folder, "program.py"), "\n".join([
            *lines, "import os, alpha", "SAID = [",
            "    os.path.basename(one.__code__.co_filename) if hasattr(one, '__code__') else None",
            "    for one in (torch.nn.parallel.DistributedDataParallel.__init__,",
            "                torch.distributed.Work.wait)]", "import ending", ""]))
        return self.compare(reached, "", "-u", "program.py")

    def test_worker_before_torch_changes_nothing_of_it(self):
        self.assertEqual(self.replaced(
            "import ddprun", "ddprun.worker()", "import torch", "ddprun.worker().progress(1)",
            reached="ddprun torch alpha recorder"), ["distributed.py", None])

    def test_worker_after_torch_listens_to_its_waits(self):
        self.assertEqual(self.replaced(
            "import torch, ddprun", "ddprun.worker()", "ddprun.worker().progress(1)",
            reached="torch ddprun alpha recorder"), ["_waits.py", "_waits.py"])


def add_program(name, program, reached, ended):
    def test(self):
        self.write(os.path.join(self.folder, "program.py"), program + "\nimport ending\n")
        self.compare(reached, ended, "-u", "program.py", "--lr", "0.1")
    setattr(SameImports, "test_" + name.replace(" ", "_").replace(",", ""), test)


for _name, _row in PROGRAMS.items():
    add_program(_name, *_row)


if __name__ == "__main__":
    unittest.main()
