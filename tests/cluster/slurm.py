"""Jobs of a real Slurm: three nodes on loopback, with a munged, a slurmctld and slurmds of the
test's own. Nothing of the system is started, asked or changed.

usage: slurm.py BIN_DIR TEST_WORKER [unittest's words]
Ends with `LEFT OUT: ...` where Slurm is not installed (scripts/setup.sh --peers) or may not be run.
"""

import contextlib
import os
import pwd
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import user
from process_tree import descendants
from user import PATIENCE_S, lines

BIN = WORKER = ""

NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
# A node's name is its address, so that it can be resolved anywhere: all of 127/8 is this machine.
CONF = """
ClusterName=ddprun
FirstJobId={first_job}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,bf_yield_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
GresTypes=gpu
NodeName=127.0.0.1 NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[1]} CPUs=2 Gres=gpu:1
NodeName=127.0.0.2 NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[2]} CPUs=2 Gres=gpu:2
NodeName=127.0.0.3 NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[3]} CPUs=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


def free_ports(count):
    """A port, and `count - 1` beside each other: no process has them now."""
    while True:
        with contextlib.ExitStack() as stack:
            def bound(port):
                one = stack.enter_context(socket.socket())
                one.bind(("", port))
                return one.getsockname()[1]
            try:
                ports = [bound(0), bound(0)]
                return ports + [bound(ports[1] + i) for i in range(1, count - 1)]
            except (OSError, OverflowError):
                continue


class Slurm(user.User):
    """The daemons, and their user."""

    def __init__(self, folder):
        super().__init__(folder, {"SLURM_CONF": os.path.join(folder, "slurm.conf")})
        os.mkdir(self.path("state"))
        name = pwd.getpwuid(os.getuid()).pw_name
        with open(self.path("slurm.conf"), "w", encoding="utf-8") as conf:
            conf.write(CONF.format(folder=folder, user=name, ports=free_ports(1 + len(NODES)),
                                   first_job=random.randrange(1, 50000),
                                   host=socket.gethostname().partition(".")[0]))
        # Any file does for a GPU, as far as Slurm is concerned.
        for number in range(2):
            os.mknod(self.path(f"gpu{number}"))
        with open(self.path("gres.conf"), "w", encoding="utf-8") as conf:
            conf.write(f"NodeName=127.0.0.1 Name=gpu File={self.path('gpu')}0\n"
                       f"NodeName=127.0.0.2 Name=gpu File={self.path('gpu')}[0-1]\n")
        self.daemons = []
        self._start_munged()
        self._start("slurmctld", ["-D"], "Running as primary controller")
        self.slurmds = {}
        for node in NODES:
            self.start_node(node)

    def _start_munged(self):
        with open(self.path("munge.key"), "wb") as key:
            os.fchmod(key.fileno(), 0o400)
            key.write(os.urandom(1024))
        # It stays in the background, and its first process ends when it can be asked.
        subprocess.run(
            ["munged", "--force", "--socket=" + self.path("munge.socket"),
             "--key-file=" + self.path("munge.key"), "--log-file=" + self.path("munged.log"),
             "--pid-file=" + self.path("munged.pid"), "--seed-file=" + self.path("munged.seed")],
            check=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)

    def _start(self, program, flags, ready):
        daemon = subprocess.Popen([program, *flags], env=self.environment, cwd=self.folder,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE)
        self.daemons.append(daemon)
        said = b""
        while ready.encode() not in said:
            readable, _, _ = select.select([daemon.stderr], [], [], PATIENCE_S)
            more = os.read(daemon.stderr.fileno(), 65536) if readable else b""
            if not more:
                raise RuntimeError(f"{program} is not ready:\n{said.decode()}")
            said += more
        # The test reads no further: the pipe has room for the few lines of a test.
        return daemon

    def start_node(self, node):
        self.slurmds[node] = self._start("slurmd", ["-D", "-N", node], "slurmd started on")

    def lose_node(self, node, step):
        """Kills its slurmd and all below `step`, the number of a slurmstepd there."""
        self.daemons.remove(self.slurmds[node])
        with self.slurmds[node] as slurmd:
            slurmd.kill()
        for process in [step, *descendants(step)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _end_rendezvous(self):
        """The daemon of a job whose nodes were all killed waits for them; it has our secret."""
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError), \
                    open(f"/proc/{int(name)}/cmdline", encoding="utf-8") as words:
                line = words.read()
                if "ddprun-rendezvous" in line and self.path("home") in line:
                    os.kill(int(name), signal.SIGKILL)

    def stop(self):
        self._end_rendezvous()
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(PATIENCE_S)
            daemon.stderr.close()
        with open(self.path("munged.pid"), encoding="utf-8") as pid:
            munged = os.pidfd_open(int(pid.read()))
        signal.pidfd_send_signal(munged, signal.SIGTERM)
        select.select([munged], [], [], PATIENCE_S)
        os.close(munged)

    def script(self, text, *flags):
        """Runs `text` as a batch script, with `flags` in the place of two nodes: what it said."""
        with open(self.path("job.sh"), "w", encoding="utf-8") as script:
            script.write("#!/bin/bash\n" + text)
        self.run("sbatch", "--wait", "--output=job.out", *(flags or ("-N2", "--ntasks-per-node=2")),
                 "job.sh")
        with open(self.path("job.out"), encoding="utf-8") as said:
            return said.read()


# A training of 40 steps that begins where it was asked to leave. The first start waits for that at
# step 20. As `solo`, it is never stopped.
TRAINING = """
import os, signal, sys
state, solo = sys.argv[1], sys.argv[2:] == ["solo"]
rank = os.environ.get("RANK", "0")
step, value = 0, 0.5
if os.path.exists(state + rank):
    step, value = open(state + rank).read().split()
    step, value = int(step), float.fromhex(value)
def save(*_):
    with open(state + rank + ".new", "w") as new:
        new.write(f"{step} {value.hex()}")
    os.rename(state + rank + ".new", state + rank)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print(f"rank={rank} begins at step {step}", flush=True)
while step < 40:
    step, value = step + 1, value * 3.7 * (1 - value)
    if step == 20 and not solo:
        print(f"rank={rank} is at step {step}", flush=True)
        while True:
            signal.pause()
print(f"rank={rank} ends with {value.hex()}", flush=True)
"""


class Heard:
    """Lines of a pipe that never ends, as they come."""

    def __init__(self, fd):
        self.fd, self.rest, self.all = fd, b"", ""

    def next_line(self):
        """Returns the next line, or None if no line came within PATIENCE_S."""
        while b"\n" not in self.rest:
            readable, _, _ = select.select([self.fd], [], [], PATIENCE_S)
            if not readable:
                return None
            self.rest += os.read(self.fd, 65536)
        line, self.rest = self.rest.split(b"\n", 1)
        self.all += line.decode() + "\n"
        return line.decode()


class SlurmJobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ddprun-slurm-")
        os.chmod(cls.folder, 0o711)
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.slurm = Slurm(cls.folder)
        cls.addClassCleanup(cls.slurm.stop)
        cls.ddprun = os.path.join(BIN, "ddprun")

    def assert_world(self, said, workers, job=r"\d+\.\d+"):
        user.assert_world(self, said, workers)
        self.assertRegex(said, rf"slurm job {job}: 2 nodes, endpoint 127\.0\.0\.[12]:[23]\d{{4}}")

    def test_srun_needs_no_flags(self):
        code, said = self.slurm.run("srun", "-N2", "--ntasks-per-node=1", self.ddprun, WORKER,
                                    "--print")
        self.assertEqual(code, 0, said)
        self.assert_world(said, 2)

    def test_a_batch_script_is_told_the_line_that_works(self):
        said = self.slurm.script(f"{self.ddprun} {WORKER} --print\necho code=$?\n")
        self.assertIn("code=2", said)
        line = re.search(r"start ddprun on each: (srun .*) ddprun \.\.\.", said)[1]
        self.assertIn("-N2", line)
        said = self.slurm.script(f"{line} {self.ddprun} {WORKER} --print\necho code=$?\n")
        self.assertIn("code=0", said)
        self.assert_world(said, 2, r"\d+\.0")

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
    def test_mpirun_in_a_batch_script_needs_no_flags(self):
        said = self.slurm.script(
            "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
            f"mpirun -np 2 --map-by ppr:1:node {self.ddprun} {WORKER} --print\necho code=$?\n")
        self.assertIn("code=0", said)
        self.assert_world(said, 2, r"\d+")

    def test_a_shell_of_salloc_is_told_it_too(self):
        code, said = self.slurm.run("salloc", "-N2", self.ddprun, WORKER, "--print")
        self.assertEqual(code, 2, said)
        self.assertIn("this machine is none; start ddprun on each: srun -N2 -n2", said)
        code, said = self.slurm.run("salloc", "-N2", "srun", self.ddprun, WORKER, "--print")
        self.assertEqual(code, 0, said)
        self.assert_world(said, 2)

    def test_of_a_task_for_each_worker_one_starts_them_and_all_end_alike(self):
        # The one that fails waits until all have written.
        written = self.slurm.path("written")
        waits = " ".join(f"--wait-for-file {written}{rank}" for rank in range(4))
        code, said = self.slurm.run(
            "srun", "-N2", "--ntasks-per-node=2", "sh", "-c",
            f"{self.ddprun} {WORKER} --print --touch {written}{{rank}} --when-rank 3 {waits} "
            "--exit-code 7; echo code=$?")
        self.assertEqual(code, 0, said)
        self.assert_world(said, 4)
        self.assertEqual(said.count("code=7"), 4, said)

    def test_a_killed_ddprun_is_killed_for_its_other_tasks(self):
        # Its shell is the scheduler's task.
        job = self.slurm.start(
            "srun", "-N2", "--ntasks-per-node=2", "--kill-on-bad-exit=0", "--wait=0", "sh", "-c",
            f"echo task=$SLURM_PROCID shell=$$; {self.ddprun} {WORKER} --print --hang; "
            "echo task=$SLURM_PROCID code=$?")
        shells, workers, codes = {}, 0, {}
        for line in lines(job, r"task=(\d) (shell|code)=(\d+)|worker rank="):
            if line[2] == "shell":
                shells[line[1]] = int(line[3])
            elif line[2] == "code":
                codes[line[1]] = int(line[3])
            else:
                workers += 1
            if workers == 4 and len(shells) == 4:
                workers = 0
                for task in ("0", "2"):  # the first of each node
                    with open(f"/proc/{shells[task]}/task/{shells[task]}/children",
                              encoding="utf-8") as children:
                        os.kill(int(children.read().split()[0]), signal.SIGKILL)
        job.communicate(timeout=PATIENCE_S)
        self.assertEqual(codes, dict.fromkeys("0123", 137))

    def test_torchruns_line_with_a_task_for_each_worker_is_refused(self):
        code, said = self.slurm.run(
            "srun", "-N2", "--ntasks-per-node=2", "--wait=0", self.ddprun, "--nnodes", "2",
            "--rdzv-id", "j", "--rdzv-endpoint", "127.0.0.1:29400", WORKER)
        self.assertEqual(code, 2, said)
        self.assertRegex(said, r"--nnodes 2, but slurm job \d+\.0 starts 4 ddprun, 2 on this node; "
                               "start one on each node: srun -N2 -n2 --ntasks-per-node=1")

    def test_an_endpoint_without_a_size_is_refused(self):
        code, said = self.slurm.run("srun", "-N2", self.ddprun, "--rdzv-endpoint", "127.0.0.1:1",
                                    WORKER)
        self.assertEqual(code, 2, said)
        self.assertIn("each node would be a job of its own", said)

    def test_homes_that_are_not_shared_are_refused_with_what_to_do(self):
        home = self.slurm.path("home")
        code, said = self.slurm.run(
            "srun", "-N2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "sh", "-c",
            f"HOME={home}/$SLURMD_NODENAME exec {self.ddprun} {WORKER} --print")
        self.assertNotEqual(code, 0, said)
        self.assertRegex(said, r"the secret of this node is not that of the rendezvous at \S+; "
                               r"copy \S+ from the node that started it, or pass --secret-file")

    def test_two_jobs_meet_on_the_same_nodes(self):
        def job(own, other):
            return self.slurm.start(
                "srun", "-N2", "--ntasks-per-node=1", "--overcommit", self.ddprun, WORKER,
                "--print", "--touch", self.slurm.path(own + "{rank}"),
                "--wait-for-file", self.slurm.path(other + "0"),
                "--wait-for-file", self.slurm.path(other + "1"))
        both = [job("red", "blue"), job("blue", "red")]
        endpoints = set()
        for one in both:
            said, _ = one.communicate(timeout=PATIENCE_S)
            self.assertEqual(one.returncode, 0, said)
            self.assert_world(said, 2)
            endpoints.add(re.search(r"endpoint (\S+)", said)[1])
        self.assertEqual(len(endpoints), 2)

    def test_jobs_of_an_array_run_at_once_and_do_not_meet(self):
        ready = self.slurm.path("array")
        waits = " ".join(f"--wait-for-file {ready}{job}{rank}" for job in "01" for rank in "01")
        with open(self.slurm.path("array.sh"), "w", encoding="utf-8") as script:
            script.write("#!/bin/bash\nsrun --overcommit -N2 -n2 --ntasks-per-node=1 "
                         f"{self.ddprun} {WORKER} --print --touch "
                         f"{ready}$SLURM_ARRAY_TASK_ID{{rank}} {waits}\necho code=$?\n")
        code, said = self.slurm.run("sbatch", "--wait", "-N2", "--array=0-1",
                                    "--output=array-%a.out", "array.sh")
        endpoints = set()
        for job in "01":
            with open(self.slurm.path(f"array-{job}.out"), encoding="utf-8") as output:
                said = output.read()
            self.assertIn("code=0", said)
            self.assert_world(said, 2)
            endpoints.add(re.search(r"slurm job (\S+): .*endpoint (\S+)", said).groups())
        self.assertEqual(code, 0)
        self.assertEqual(len(endpoints), 2)

    def test_nodes_with_other_numbers_of_gpus_have_as_many_workers(self):
        code, said = self.slurm.run(
            "srun", "-N2", "--ntasks-per-node=1", "--gpus=3", self.ddprun, WORKER, "--print")
        self.assertEqual(code, 0, said)
        self.assert_world(said, 3)

    def test_groups_of_a_heterogeneous_job_are_one_job(self):
        said = self.slurm.script(f"{self.ddprun} {WORKER} --print\necho code=$?\n",
                                 "-N1", "-n1", "--gpus-per-node=2", ":", "-N1", "-n1")
        self.assertIn("code=2", said)
        line = re.search(r"start ddprun on each: (srun .*) ddprun \.\.\.", said)[1]
        said = self.slurm.script(f"{line} {self.ddprun} {WORKER} --print\necho code=$?\n",
                                 "-N1", "-n1", "--gpus-per-node=2", ":", "-N1", "-n1")
        self.assertIn("code=0", said)
        self.assertIn("2 GPUs here", said)
        self.assert_world(said, 3, r"\d+\.0")

    def test_nodes_that_reach_each_other_are_found_without_their_names(self):
        code, said = self.slurm.run("srun", "-N3", "--ntasks-per-node=1",
                                    os.path.join(BIN, "ddpctl"), "doctor", "--peers")
        self.assertEqual(code, 0, said)
        for node in NODES:
            self.assertRegex(said, rf"good +peers +{node} and 2 other nodes reach each other, at "
                                   r"port \d{5} and at ports")

    # -------------------------------------------------------------------------------- losing a node

    def start_to_lose(self, nodes, *flags):
        """A job of which Slurm leaves to ddprun what is lost. Its first workers hang."""
        return self.slurm.start(
            "srun", f"-N{nodes}", "--ntasks-per-node=1", "--job-name=losing", "--no-kill",
            "--kill-on-bad-exit=0", "--wait=0", "sh", "-c",
            "echo node=$SLURMD_NODENAME step=$PPID; "
            f"{self.ddprun} {' '.join(flags)} {WORKER} --print --before-generation 2 --hang; "
            "echo node=$SLURMD_NODENAME code=$?")

    def lose_one(self, job, nodes, members):
        """Loses a node with a worker of a group of so many, not the first: the nodes that are
        left, with the exit code of ddprun, and the sizes of groups that formed."""
        steps, workers, codes, sizes = {}, {}, {}, []
        lost = None
        for line in lines(job, r"node=(\S+) (step|code)=(\d+)|"
                               r"worker rank=(\d+) world=(\d+) .*pid=(\d+)"):
            if line[2] == "step":
                steps[line[1]] = int(line[3])
            elif line[2] == "code":
                codes[line[1]] = int(line[3])
            else:
                sizes.append(int(line[5]))
                workers[int(line[6])] = int(line[4])
            if lost is None and len(steps) == nodes and len(workers) == members:
                lost = next(node for node, step in steps.items() if node != min(steps)
                            and set(descendants(step)) & set(workers))
                self.slurm.lose_node(lost, steps[lost])
            if len(codes) == nodes - 1:
                break
        self.assertNotIn(lost, codes)
        self.slurm.start_node(lost)
        self.slurm.run("scancel", "--name=losing")
        job.communicate(timeout=PATIENCE_S)
        self.wait_until_gone("losing")
        return codes, sizes

    def test_a_job_goes_on_without_a_lost_node(self):
        port = user.free_port()
        job = self.start_to_lose(2, "--nnodes", "1:2", "--rdzv-id", "losing", "--rdzv-endpoint",
                                 f"127.0.0.1:{port}")
        codes, sizes = self.lose_one(job, nodes=2, members=2)
        self.assertEqual(list(codes.values()), [0])
        self.assertEqual(sizes, [2, 2, 1])

    def test_a_spare_takes_the_place_of_a_lost_node(self):
        job = self.start_to_lose(3, "--spare-nodes", "1")
        codes, sizes = self.lose_one(job, nodes=3, members=2)
        self.assertEqual(list(codes.values()), [0, 0])
        self.assertEqual(sizes, [2, 2, 2, 2])

    # ------------------------------------------------------------------------------ leaving in time

    def start_training(self, name, *flags, srun="srun -N2 -n2 --ntasks-per-node=1"):
        """A batch job, and what it says, as it comes. Its number is the first line."""
        path = self.slurm.path(name)
        with open(path + ".py", "w", encoding="utf-8") as program:
            program.write(TRAINING)
        with open(path + ".sh", "w", encoding="utf-8") as script:
            script.write(f"#!/bin/bash\necho job=$SLURM_JOB_ID > {path}.fifo\n"
                         f"exec {srun} {self.ddprun} {' '.join(flags)} {path}.py {path}-step "
                         f"> {path}.fifo 2>&1\n")
        os.mkfifo(path + ".fifo")
        # Open for writing too: a job that ends and comes again is no end of it.
        said = Heard(os.open(path + ".fifo", os.O_RDWR))
        self.addCleanup(os.close, said.fd)
        self.slurm.run("sbatch", "-N2", "--requeue", "--output=/dev/null", path + ".sh")
        job = self.wait_for(said, r"job=(\d+)")[1]
        self.addCleanup(self.end_job, job)  # it may be in the queue again
        return said, job

    def end_job(self, job):
        self.slurm.run("scancel", job)
        self.wait_until_gone(job, "%i")

    def wait_for(self, said, pattern, count=1):
        while True:
            line = said.next_line()
            self.assertIsNotNone(line, f"{pattern} was not said:\n{said.all}")
            found = re.search(pattern, line)
            count -= found is not None
            if count == 0:
                return found

    def solo(self):
        """Returns the result of the training if nothing stops it."""
        said = subprocess.run([sys.executable, "-c", TRAINING, self.slurm.path("none"), "solo"],
                              check=True, capture_output=True, text=True).stdout
        return re.search(r"ends with (\S+)", said)[1]

    def test_a_job_that_was_told_to_leave_goes_back_into_the_queue_and_resumes(self):
        said, job = self.start_training("requeued", "--requeue", "1")
        self.wait_for(said, r"rank=\d is at step 20", count=2)
        self.slurm.run("scancel", "--signal=TERM", job)
        self.wait_for(said, rf"slurm job {job} goes back into the queue")
        # Slurm starts it again once no credential of its first run is valid any more (cred_expire).
        self.wait_for(said, rf"slurm job {job}\.0: 2 nodes, .*started again 1 time")
        for _ in range(2):
            self.assertEqual(self.wait_for(said, r"ends with (\S+)")[1], self.solo())
        self.assertEqual(said.all.count("begins at step 0"), 2, said.all)
        self.assertEqual(said.all.count("begins at step 20"), 2, said.all)

    def test_a_job_is_put_back_only_so_often(self):
        said, job = self.start_training("often", "--requeue", "1",
                                        srun="env SLURM_RESTART_COUNT=1 srun -N2")
        self.wait_for(said, r"rank=\d is at step 20", count=2)
        self.slurm.run("scancel", "--signal=TERM", job)
        self.wait_for(said, rf"slurm job {job}\.0 is not put back into the queue: it was 1 times "
                            r"already \(--requeue 1\)")

    def test_a_job_that_is_cancelled_is_not_put_back(self):
        said, job = self.start_training("cancelled", "--requeue", "3")
        self.wait_for(said, r"rank=\d is at step 20", count=2)
        self.slurm.run("scancel", job)
        self.wait_for(said, r"SIGTERM: stopping, workers have 27 s to save and end")
        self.wait_for(said, rf"slurm job {job} is not put back into the queue: Slurm ends it "
                            r"itself \((COMPLETING|CANCELLED)\)")

    def test_a_job_that_is_no_batch_job_is_told_so_at_the_start(self):
        # It is found out beside the job, which may be over before.
        job = self.slurm.start("srun", "-N2", "--ntasks-per-node=1", self.ddprun, "--requeue", "1",
                               WORKER, "--wait-for-file", self.slurm.path("told"))
        for _ in lines(job, r"--requeue has no effect on slurm job \d+: it is no batch job"):
            with open(self.slurm.path("told"), "w", encoding="utf-8"):
                pass
        job.stdout.close()
        self.assertEqual(job.wait(PATIENCE_S), 0)

    def test_workers_leave_before_the_time_limit(self):
        # As Slurm 23.02 and newer set it, or a line in the script.
        said, _ = self.start_training(
            "limited", srun="env SLURM_JOB_END_TIME=$(($(date +%s) + 20)) srun -N2")
        self.wait_for(said, r"rank=\d is at step 20", count=2)
        self.wait_for(said, r"slurm job \d+\.0 reaches its time limit in \d+ s: stopping")
        self.wait_until_gone("limited.sh")

    def wait_until_gone(self, job, field="%j"):
        while job in self.slurm.run("squeue", "-h", "-o", field)[1].split():
            pass

    def test_a_preempted_job_is_drained(self):
        said, job = self.start_training("preempted", "--requeue", "1")
        self.wait_for(said, r"rank=\d is at step 20", count=2)
        code, urgent = self.slurm.run("srun", "-N2", "--exclusive", "--partition=urgent", "true")
        self.assertEqual(code, 0, urgent)
        self.wait_for(said, r"SIGTERM: stopping, workers have 27 s to save and end")
        self.wait_for(said, rf"slurm job {job} goes back into the queue")
        for rank in range(2):
            with open(self.slurm.path(f"preempted-step{rank}"), encoding="utf-8") as saved:
                self.assertTrue(saved.read().startswith("20 "))

    def test_scancel_leaves_nothing(self):
        job = self.slurm.start("srun", "-N2", "--ntasks-per-node=1", "--job-name=left", self.ddprun,
                               WORKER, "--daemonize", "--ignore-sigterm", "--print", "--hang")
        left = []
        for line in lines(job, r"descendant pid=(\d+)|worker rank=\d+.* pid=(\d+)"):
            left.append(os.pidfd_open(int(line[1] or line[2])))
            if len(left) == 4:
                self.assertEqual(self.slurm.run("scancel", "--name=left")[0], 0)
        job.communicate(timeout=PATIENCE_S)
        for process in left:
            readable, _, _ = select.select([process], [], [], PATIENCE_S)
            self.assertTrue(readable)
            os.close(process)


def missing():
    """Why there can be no Slurm here; empty if there can."""
    for program in ("munged", "slurmctld", "slurmd", "srun", "sbatch"):
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin") is None:
            return f"there is no {program}; scripts/setup.sh --peers installs it"
    if os.getuid() != 0:
        return "slurmd starts tasks as root only"
    return ""


if __name__ == "__main__":
    BIN, WORKER = (os.path.abspath(word) for word in sys.argv[1:3])
    os.environ["PATH"] += ":/usr/sbin"
    user.main("jobs of a real Slurm", missing())
