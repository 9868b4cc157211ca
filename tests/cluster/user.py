"""A user of a scheduler: whose commands tests run, and what they look for in what these say."""

import os
import re
import socket
import subprocess
import sys
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
# Variables that the caller's own scheduler, launcher or other tests have set.
FOREIGN = re.compile("SLURM|SBATCH|SRUN|SALLOC|PBS_|LSB_|LSF_|SGE_|JOB_|PE_|NHOSTS|OMPI_|PMI|PALS_|"
                     "PRTE_|MPI_|I_MPI_|HYDRA_|AWS_BATCH|SM_|TRAINING_JOB_NAME|KUBERNETES|PET_|"
                     "DDPRUN_|TORCH|CUDA_|OMP_")


class User:
    """Works in `folder`, which holds the home. `first` is put before each command."""

    def __init__(self, folder, variables=None, first=()):
        self.folder, self.first = folder, list(first)
        for name in ("home", "tmp"):
            os.mkdir(self.path(name))
        kept = {key: value for key, value in os.environ.items() if not FOREIGN.match(key)}
        self.environment = {**kept, "HOME": self.path("home"), "TMPDIR": self.path("tmp"),
                            "LC_ALL": "C.UTF-8", **(variables or {})}

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *words):
        return subprocess.Popen([*self.first, *words], env=self.environment, cwd=self.folder,
                                text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, start_new_session=True)

    def run(self, *words):
        """Exit code and everything that was said."""
        process = self.start(*words)
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            said, _ = process.communicate()
            raise AssertionError(f"{words} does not end:\n{said}") from None
        return process.returncode, said


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def lines(process, pattern):
    """Matches of `pattern` in the lines of `process`, as they come."""
    for line in process.stdout:
        found = re.search(pattern, line)
        if found:
            yield found


def assert_world(test, said, workers):
    """All ranks of so many have spoken. ddprun repeats a failed worker's last lines."""
    ranks = {int(rank) for rank in re.findall(rf"worker rank=(\d+) world={workers} ", said)}
    test.assertEqual(ranks, set(range(workers)), said)


def main(what, missing):
    """Runs the tests of the script, or says why there can be none."""
    if missing:
        print(f"LEFT OUT: {what}: {missing}")
    else:
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
