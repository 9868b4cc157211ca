"""Jobs of a real mpirun, Open MPI's: on this machine, and on two hosts that are made up.

usage: mpirun.py BIN_DIR TEST_WORKER [unittest's words]
Ends with `LEFT OUT: ...` where Open MPI is not installed (scripts/setup.sh --peers).
"""

import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import unittest

import user

BIN = WORKER = ""
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
        shell_path = os.path.join(self.folder, "shell")
        with open(shell_path, "w", encoding="utf-8") as shell:
            shell.write(SHELL)
            os.fchmod(shell.fileno(), 0o700)
        self.user = user.User(self.folder, first=[
            "mpirun", *(["--allow-run-as-root"] if os.getuid() == 0 else []), "--oversubscribe",
            "--mca", "plm_rsh_agent", shell_path, "--mca", "oob_tcp_if_include", "lo"])
        self.ddprun = os.path.join(BIN, "ddprun")

    def on_two_hosts(self, each, *words):
        if os.getuid() != 0:
            self.skipTest("another host name needs root")
        return self.user.run("--host", f"nodea:{each},nodeb:{each}", "-np", str(2 * each), *words)

    def test_one_process_needs_no_flags(self):
        code, said = self.user.run("-np", "1", self.ddprun, WORKER, "--print")
        self.assertEqual(code, 0, said)
        user.assert_world(self, said, 1)
        self.assertIn("ddprun: mpirun: 1 node", said)

    def test_of_several_processes_one_starts_the_workers_and_all_end_alike(self):
        # The one that fails waits until all have written.
        written = self.user.path("written")
        waits = " ".join(f"--wait-for-file {written}{rank}" for rank in range(3))
        code, said = self.user.run(
            "-np", "3", "--bind-to", "none", "sh", "-c",
            f"{self.ddprun} {WORKER} --print --touch {written}{{rank}} --when-rank 2 {waits} "
            "--exit-code 7; echo code=$?")
        self.assertEqual(code, 0, said)
        user.assert_world(self, said, 3)
        self.assertEqual(said.count("code=7"), 3, said)

    def test_two_jobs_on_one_machine_do_not_meet(self):
        def job(own, other):
            return self.user.start(
                "-np", "2", self.ddprun, WORKER, "--print", "--touch",
                self.user.path(own + "{rank}"), "--wait-for-file", self.user.path(other + "0"),
                "--wait-for-file", self.user.path(other + "1"))
        for one in [job("red", "blue"), job("blue", "red")]:
            said, _ = one.communicate(timeout=user.PATIENCE_S)
            self.assertEqual(one.returncode, 0, said)
            user.assert_world(self, said, 2)

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
        code, said = self.user.run(
            "--host", "nodea:2,nodeb:2", "-np", "2", *line[1].split(), self.ddprun,
            *line[2].split(), f"127.0.0.1:{user.free_port()}", "--rdzv-id", "j", WORKER, "--print")
        self.assertEqual(code, 0, said)
        user.assert_world(self, said, 2)

    def test_an_endpoint_without_a_size_is_refused(self):
        code, said = self.on_two_hosts(1, self.ddprun, "--rdzv-endpoint", "127.0.0.1:1", WORKER)
        self.assertEqual(code, 2, said)
        self.assertIn("each node would be a job of its own", said)

    def test_an_mpirun_that_is_ended_leaves_nothing(self):
        job = self.user.start("-np", "2", self.ddprun, WORKER, "--daemonize", "--ignore-sigterm",
                         "--print", "--hang")
        workers = []
        for line in user.lines(job, r"descendant pid=(\d+)|worker rank=\d+.* pid=(\d+)"):
            workers.append(os.pidfd_open(int(line[1] or line[2])))
            if len(workers) == 4:
                break
        self.assertEqual(len(workers), 4)
        job.terminate()
        job.communicate(timeout=user.PATIENCE_S)
        for worker in workers:
            self.assertTrue(select.select([worker], [], [], user.PATIENCE_S)[0])
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
    user.main("jobs of a real mpirun", missing())
