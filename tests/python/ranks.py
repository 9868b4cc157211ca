"""Two ranks of a training, each a node of its own, without a launcher: the test is their agent."""

import os
import subprocess
import sys
import tempfile
import unittest

from test_worker import PACKAGE, AgentPage, environment_of

DEADLINE_S = 300  # for a rank to end, on a machine that has no time for it


class RanksTest(unittest.TestCase):
    """Starts ranks and ends those that still run."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "checkpoints")
        self._stores = os.path.join(folder.name, "store")
        self._starts = 0
        self.pages = [AgentPage(version=8, slots=1) for _ in range(2)]
        self.ranks = []

    def start(self, script, *arguments, is_under_ddprun=True):
        """Each rank gets `arguments` with {store} replaced by a file through which they meet."""
        self._starts += 1
        self.ranks = []
        store = f"{self._stores}{self._starts}"
        for rank, page in enumerate(self.pages):
            place = environment_of(
                page, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                GROUP_RANK=str(rank), DDPRUN_SLOT="0",
                # Some libraries want them; no rank connects, the ranks meet through a file.
                MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
            if not is_under_ddprun:
                place = {key: place[key] for key in place if not key.startswith("DDPRUN_")}
            process = subprocess.Popen(
                [sys.executable, "-B", script,
                 *(argument.replace("{store}", store) for argument in arguments)],
                env={**os.environ, **place, "PYTHONPATH": PACKAGE}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.ranks.append(process)
            self.addCleanup(self._end, process)

    def ask(self, rank, by):
        self.pages[rank].put("q", 32, 1)
        self.pages[rank].put("I", 40, int(by))

    def wait_until_they_train(self):
        for process in self.ranks:
            for line in process.stdout:
                if line.endswith(" trains\n"):
                    break

    def results(self):
        """(exit code, stdout, stderr) of each."""
        texts = [process.communicate(timeout=DEADLINE_S) for process in self.ranks]
        return [(process.returncode, *text) for process, text in zip(self.ranks, texts)]

    @staticmethod
    def _end(process):
        process.kill()
        process.communicate()
