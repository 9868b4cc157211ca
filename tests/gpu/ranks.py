"""Starts for the tests on GPUs: generations of ranks, and the stores that ranks meet in."""

import atexit
import functools
import os
import re
import select
import subprocess
import sys
import tempfile
import time
import unittest

DEADLINE = 180  # seconds, for what hangs


class Stores:
    """Stores of c10d's, in a process of their own, `gpu_peer stores`: LibTorch is loaded once."""

    def __init__(self, program):
        self.process = subprocess.Popen([program, "stores"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.communicate)

    def open(self):
        """The port of a new one."""
        self.tell("open")
        line = self.process.stdout.readline()
        if not line.startswith("port "):
            raise RuntimeError(f"the process that serves stores says {line!r}")
        return int(line.split()[1])

    def close(self, port):
        self.tell(f"close {port}")

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@functools.cache
def stores_of(program):
    return Stores(program)


def say(text):
    print(f"gpu: {text}", flush=True)


def read_options(parser, options):
    """Those of `parser`, and those that all of these tests have."""
    parser.add_argument("--build", required=True, type=os.path.abspath,
                        help="where the programs were built that are ranks")
    parser.add_argument("--on", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--fake-gpu", default="", type=lambda path: path and os.path.abspath(path),
                        help="where the fake GPU's libraries are")
    parser.add_argument("tests", nargs="*", help="names, all unless given")
    parser.parse_args(namespace=options)
    if not os.path.exists(os.path.join(options.build, "tests", "gpu_peer")):
        parser.error(f"{options.build} has no tests/gpu_peer: scripts/build.sh builds it "
                     "(presets gpu, fake-gpu and release)")
    # The ranks leave their curves there.
    here = tempfile.TemporaryDirectory(prefix="ddprun-gpu-")
    atexit.register(here.cleanup)
    os.chdir(here.name)
    if options.fake_gpu:
        # A machine of its own, whatever else runs here.
        machine = tempfile.TemporaryDirectory(dir="/dev/shm")
        atexit.register(machine.cleanup)
        os.environ["DDPRUN_FAKE_GPU_STATE"] = machine.name


def run_tests(case, options):
    """The exit code."""
    tests = [f"{case.__name__}.{name}" for name in options.tests]
    result = unittest.main(argv=[sys.argv[0], "-v", *tests], exit=False).result
    return 0 if result.wasSuccessful() else 1


def count_gpus(program):
    """How many the built program sees."""
    return int(subprocess.run([program, "gpus"], check=True, capture_output=True,
                              text=True).stdout.split()[0])


class Processes:
    """A generation of processes that take their place from the environment."""

    def __init__(self, world, program, variables=None, of_rank=None):
        self.outputs = [b"" for _ in range(world)]
        self.processes = []
        for rank in range(world):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world,
                     "LOCAL_WORLD_SIZE": world}
            place.update(variables or {})
            place.update((of_rank or {}).get(rank, {}))
            environment = dict(os.environ, **{key: str(value) for key, value in place.items()})
            self.processes.append(subprocess.Popen(
                program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        for process in self.processes:
            process.wait()
            process.stdout.close()
            process.stdin.close()

    def kill(self):
        """All that live."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()

    def read(self, rank, seconds):
        """More of what the rank says, within so many seconds; false at its end."""
        pipe = self.processes[rank].stdout
        if not select.select([pipe], [], [], seconds)[0]:
            return True
        more = os.read(pipe.fileno(), 1 << 16)
        self.outputs[rank] += more
        return more != b""

    def tell(self, rank):
        """A byte on the rank's stdin."""
        self.processes[rank].stdin.write(b"\n")
        self.processes[rank].stdin.flush()

    def is_silent(self, rank, seconds):
        """That it lives and says nothing for so many seconds."""
        before = len(self.outputs[rank])
        return self.read(rank, seconds) and len(self.outputs[rank]) == before

    def text(self, rank):
        """All that a rank has said which has ended."""
        while self.read(rank, DEADLINE):
            pass
        return self.outputs[rank].decode(errors="replace")

    def wait(self):
        """The exit codes of all. A rank whose pipe is full waits for its reader: all are read."""
        rank_of = {process.stdout: rank for rank, process in enumerate(self.processes)}
        while rank_of:
            readable = select.select(list(rank_of), [], [], DEADLINE)[0]
            if not readable:
                break  # All are silent for so long.
            for pipe in readable:
                if not self.read(rank_of[pipe], 0):
                    del rank_of[pipe]
        return [process.wait(DEADLINE) for process in self.processes]

    def is_over_within(self, rank, seconds):
        try:
            self.processes[rank].wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def await_line(self, rank, pattern):
        end = time.monotonic() + DEADLINE
        goes_on = True
        while True:
            said = self.outputs[rank].decode(errors="replace")
            found = re.search(pattern, said, re.MULTILINE)
            if found:
                return found
            if not goes_on or time.monotonic() > end:
                raise AssertionError(f"rank {rank} has not said {pattern!r}:\n{said}")
            goes_on = self.read(rank, end - time.monotonic())


class Ranks(Processes):
    """Processes that meet in a store of c10d's."""

    def __init__(self, world, program, stores, variables=None, of_rank=None):
        """`stores` is a program that serves stores."""
        self.stores = stores_of(stores)
        self.port = self.stores.open()
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port,
                 "TORCHELASTIC_USE_AGENT_STORE": "True", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        super().__init__(world, program, {**place, **(variables or {})}, of_rank)

    def __exit__(self, *of_error):
        super().__exit__(*of_error)
        self.stores.close(self.port)
