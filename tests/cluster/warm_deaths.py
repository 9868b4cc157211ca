"""The death of a Python worker whose Python has the ddprun package is known at once.

Method: two nodes with a worker each. The keepers of one are stopped, so that no process there can
see its worker exit. The worker is killed, and the other node's is told to end.
Cold workers, and workers that waited as standbys. Needs no torch.

usage: warm_deaths.py BIN_DIR [unittest's words]
"""

import os
import re
import signal
import socket
import subprocess
import sys
import unittest

import warm

WORKER = """
import os, signal, sys, threading
is_warm = "tells_test" in sys.modules
def end(number, frame):
    print("told to end", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print(f"rank {os.environ['RANK']} pid {os.getpid()} {'warm' if is_warm else 'cold'}",
      "left: " + " ".join(name for name in sys.modules if "ctypes" in name or "ddprun" in name),
      "signals", [line.split()[1] for line in open("/proc/self/status") if "SigCgt" in line][0],
      flush=True)
while True:
    signal.pause()
"""


def has_futex_waitv():
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(version[1]), int(version[2])) >= (5, 16)


def stat_of(pid):
    """Its name and its state."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        text = file.read()
    return text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2]


def keepers_of(node):
    with open(f"/proc/{node.pid}/task/{node.pid}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()
                if stat_of(pid)[0] == "ddprun-keeper"]


@unittest.skipUnless(has_futex_waitv(), "SKIPPED: this kernel cannot wait for several futexes")
class Deaths(warm.Jobs):
    def start_node(self, number, port, *flags):
        process = subprocess.Popen(
            [os.path.join(warm.BIN, "ddprun"), "--nnodes", "2", "--node-rank", str(number),
             "--rdzv-id", "deaths", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr",
             "127.0.0.1", "--failure-grace", "0.1", *flags, "train.py"], cwd=self.folder,
            text=True, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, node, pattern):
        said = ""
        for line in node.stdout:
            said += line
            match = re.search(pattern, line)
            if match:
                return match
        self.fail(f"no line with '{pattern}'; it said:\n{said}")

    def die_unseen_by_the_keeper(self, nodes, worker):
        keepers = keepers_of(nodes[1])
        for keeper in keepers:
            while stat_of(keeper)[1] != "S":  # It has told its agent of the worker then.
                os.sched_yield()
            os.kill(keeper, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        self.wait_for(nodes[0], "told to end")
        for keeper in keepers:
            os.kill(keeper, signal.SIGCONT)

    def start_both(self, *flags):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        self.write(self.path("train.py"), WORKER)
        return [self.start_node(number, port, *flags) for number in range(2)]

    def test_of_a_cold_worker(self):
        nodes = self.start_both()
        self.wait_for(nodes[0], "^rank 0 ")
        found = self.wait_for(nodes[1], r"^rank 1 pid (\d+) cold left: (.*) signals (\w+)$")
        self.assertEqual(found[2], "")
        # SIGINT is Python's, SIGTERM the program's.
        self.assertEqual(int(found[3], 16), 1 << signal.SIGTERM - 1 | 1 << signal.SIGINT - 1)
        self.die_unseen_by_the_keeper(nodes, int(found[1]))
        for node in nodes:
            self.assertEqual(node.wait(), 128 + signal.SIGKILL)

    def test_of_a_worker_that_was_a_standby(self):
        nodes = self.start_both("--max-restarts", "1", "--warm", "json,tells_test")
        self.wait_for(nodes[0], "^rank 0 .* cold")
        found = self.wait_for(nodes[1], r"^rank 1 pid (\d+) cold")
        with os.fdopen(os.dup(self.told)) as told:
            for _ in nodes:
                told.readline()
        os.kill(int(found[1]), signal.SIGKILL)
        self.wait_for(nodes[0], "^rank 0 ")
        # A standby that is still at its last module starts cold.
        found = self.wait_for(nodes[1], r"^rank 1 pid (\d+) (?:warm|cold) left: (.*) signals")
        self.assertEqual(found[2], "")
        self.die_unseen_by_the_keeper(nodes, int(found[1]))
        for node in nodes:
            self.assertEqual(node.wait(), 128 + signal.SIGKILL)


if __name__ == "__main__":
    warm.BIN = sys.argv.pop(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    unittest.main()
