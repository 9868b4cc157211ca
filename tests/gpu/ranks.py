"""What the tests on GPUs start: generations of ranks, and the store that the ranks meet in."""

import os
import re
import select
import subprocess
import time

DEADLINE = 180  # seconds, for what hangs


class Store:
    """A store of c10d's, in a process of its own: `gpu_peer store`."""

    def __init__(self, program):
        self.process = subprocess.Popen([program, "store"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("port "):
            raise RuntimeError(f"{program} store says {line!r}")
        self.port = int(line.split()[1])

    def close(self):
        self.process.communicate()


class Ranks:
    """A generation of processes that take their place from the environment."""

    def __init__(self, world, program, store, variables=None, of_rank=None):
        """`store` is a program that serves one."""
        self.store = Store(store)
        self.outputs = [b"" for _ in range(world)]
        self.processes = []
        for rank in range(world):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world,
                     "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": self.store.port,
                     "TORCHELASTIC_USE_AGENT_STORE": "True", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
            place.update(variables or {})
            place.update((of_rank or {}).get(rank, {}))
            environment = dict(os.environ, **{key: str(value) for key, value in place.items()})
            self.processes.append(subprocess.Popen(
                program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
            process.stdin.close()
        self.store.close()

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
        """The exit codes of all."""
        end = time.monotonic() + DEADLINE
        for rank, _ in enumerate(self.processes):
            while time.monotonic() < end and self.read(rank, end - time.monotonic()):
                pass
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]

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
