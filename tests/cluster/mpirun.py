"""Jobs of a real mpirun, Open MPI's: on this machine, and on two hosts that are made up.

usage: mpirun.py BIN_DIR TEST_WORKER [unittest's words]
Ends with `LEFT OUT: ...` where Open MPI is not installed (scripts/setup.sh --peers).
"""

import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN = WORKER = ""
FOREIGN = re.compile("SLURM|PBS_|LSB_|LSF_|SGE_|JOB_|PE_|OMPI_|PMI|PRTE_|MPI_|AWS_BATCH|KUBERNETES|"
                     "PET_|DDPRUN_|TORCH|CUDA_|OMP_")
# In the place of ssh: a host is this machine under another name.
SHELL = """#!/bin/sh
host=$1
shift
exec unshare --uts sh -c "hostname $host; $*"
"""


class MpiJobs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ddprun-mpirun-")
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("home", "tmp"):
            os.mkdir(self.path(name))
        with open(self.path("shell"), "w", encoding="utf-8") as shell:
            shell.write(SHELL)
            os.fchmod(shell.fileno(), 0o700)
        kept = {key: value for key, value in os.environ.items() if not FOREIGN.match(key)}
        self.environment = {**kept, "HOME": self.path("home"), "TMPDIR": self.path("tmp"),
                            "LC_ALL": "C.UTF-8"}
        self.ddprun = os.path.join(BIN, "ddprun")

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *words):
        command = ["mpirun", "--oversubscribe", "--mca", "plm_rsh_agent", self.path("shell"),
                   "--mca", "oob_tcp_if_include", "lo", *words]
        if os.getuid() == 0:
            command.insert(1, "--allow-run-as-root")
        return subprocess.Popen(command, env=self.environment, cwd=self.folder, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, start_new_session=True)

    def run_job(self, *words):
        """Exit code and everything that was said."""
        process = self.start(*words)
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            said, _ = process.communicate()
            raise AssertionError(f"{words} does not end:\n{said}") from None
        return process.returncode, said

    def on_two_hosts(self, each, *words):
        if os.getuid() != 0:
            self.skipTest("another host name needs root")
        return self.run_job("--host", f"nodea:{each},nodeb:{each}", "-np", str(2 * each), *words)

    def assert_world(self, said, workers):
        ranks = {int(rank) for rank in re.findall(rf"worker rank=(\d+) world={workers} ", said)}
        self.assertEqual(ranks, set(range(workers)), said)

    def test_one_process_needs_no_flags(self):
        code, said = self.run_job("-np", "1", self.ddprun, WORKER, "--print")
        self.assertEqual(code, 0, said)
        self.assert_world(said, 1)
        self.assertIn("ddprun: mpirun: 1 node", said)

    def test_of_several_processes_one_starts_the_workers_and_all_end_alike(self):
        # The one that fails waits until all have written.
        written = self.path("written")
        waits = " ".join(f"--wait-for-file {written}{rank}" for rank in range(3))
        code, said = self.run_job(
            "-np", "3", "--bind-to", "none", "sh", "-c",
            f"{self.ddprun} {WORKER} --print --touch {written}{{rank}} --when-rank 2 {waits} "
            "--exit-code 7; echo code=$?")
        self.assertEqual(code, 0, said)
        self.assert_world(said, 3)
        self.assertEqual(said.count("code=7"), 3, said)

    def test_two_jobs_on_one_machine_do_not_meet(self):
        def job(own, other):
            return self.start("-np", "2", self.ddprun, WORKER, "--print", "--touch",
                              self.path(own + "{rank}"), "--wait-for-file", self.path(other + "0"),
                              "--wait-for-file", self.path(other + "1"))
        for one in [job("red", "blue"), job("blue", "red")]:
            said, _ = one.communicate(timeout=PATIENCE_S)
            self.assertEqual(one.returncode, 0, said)
            self.assert_world(said, 2)

    def test_hosts_without_an_endpoint_are_told_the_line(self):
        code, said = self.on_two_hosts(1, self.ddprun, WORKER)
        self.assertEqual(code, 2, said)
        self.assertIn("mpirun has 2 nodes, and does not tell where they can meet; add --nnodes 2 "
                      "--rdzv-endpoint HOST:29400", said)

    def test_several_processes_on_each_host_are_told_the_line_and_it_works(self):
        code, said = self.on_two_hosts(2, self.ddprun, WORKER)
        self.assertEqual(code, 2, said)
        line = re.search(r"start one on each: mpirun -np 2 (--map-by .*) ddprun (--nnodes 2 "
                         r"--rdzv-endpoint) HOST:29400 \.\.\.", said)
        self.assertTrue(line, said)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        code, said = self.run_job(
            "--host", "nodea:2,nodeb:2", "-np", "2", *line[1].split(), self.ddprun,
            *line[2].split(), f"127.0.0.1:{port}", "--rdzv-id", "j", WORKER, "--print")
        self.assertEqual(code, 0, said)
        self.assert_world(said, 2)

    def test_an_endpoint_without_a_size_is_refused(self):
        code, said = self.on_two_hosts(1, self.ddprun, "--rdzv-endpoint", "127.0.0.1:1", WORKER)
        self.assertEqual(code, 2, said)
        self.assertIn("each node would be a job of its own", said)

    def test_an_mpirun_that_is_ended_leaves_nothing(self):
        job = self.start("-np", "2", self.ddprun, WORKER, "--daemonize", "--ignore-sigterm",
                         "--print", "--hang")
        workers = []
        for line in job.stdout:
            found = re.search(r"descendant pid=(\d+)|worker rank=\d+.* pid=(\d+)", line)
            if found:
                workers.append(os.pidfd_open(int(found[1] or found[2])))
            if len(workers) == 4:
                break
        self.assertEqual(len(workers), 4)
        job.terminate()
        job.communicate(timeout=PATIENCE_S)
        for worker in workers:
            self.assertTrue(select.select([worker], [], [], PATIENCE_S)[0])
            os.close(worker)


def missing():
    """Why there can be no mpirun here; empty if there can."""
    said = shutil.which("mpirun") and subprocess.run(
        ["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in (said or ""):
        return "there is no Open MPI; scripts/setup.sh --peers installs it"
    return ""


if __name__ == "__main__":
    BIN, WORKER = (os.path.abspath(word) for word in sys.argv[1:3])
    if missing():
        print("LEFT OUT: jobs of a real mpirun:", missing())
    else:
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
