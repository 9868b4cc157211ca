"""A training that saves into the memory of its nodes only, of which workers and machines die.

Method: kept_training.cpp and .py say when a step is kept: all ranks have written it, and it counts.
A worker, or all processes of a node with its memory, are killed by SIGKILL at a moment that a seed
chooses among the lines of rank 0. The next generation goes on from the last kept step or a later
one, no checkpoint is on the disk, and the last parameters are those of an undisturbed training.
$DDPRUN_MEMORY_JOBS is the number of jobs for each kind of kill, 1 unless given. Two kinds have five
kills, because ddprun pauses before restarts that are too many in a minute.

usage: memory_checkpoints.py BIN_DIR PROGRAM [unittest's words]
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

from process_tree import descendants

JOBS = int(os.environ.get("DDPRUN_MEMORY_JOBS", 1))
KILLS = 5
STEPS_OF_A_KILL = 5  # at most, and the one that the kill disturbs
LINES = ("trained", "asked", "kept")
NEVER = 10**9  # no step is a multiple of it
BIN = PROGRAM = ""


def kill_all(pids):
    """All are stopped first: so none sees another one's end."""
    for name in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, name)
            except ProcessLookupError:
                pass


def command_of(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


class MemoryCheckpoints(unittest.TestCase):
    sharded = False  # the ranks share out the optimizer's state

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ddprun-kept-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.said = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, program, *arguments, output=subprocess.PIPE):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("PET_", "DDPRUN_", "TORCH", "OMP_", "SLURM"))}
        process = subprocess.Popen(
            [os.path.join(BIN, program), *arguments], cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**environment, "TMPDIR": self.folder, "HOME": self.folder,
                 **({"KEPT_SHARDED": "1"} if self.sharded else {})})
        if process.stdout:
            self.addCleanup(process.stdout.close)
        for clean in (process.wait, process.kill):  # the last one first
            self.addCleanup(clean)
        return process

    def start_job(self, *flags, steps, disk_every=NEVER, checkpoints="checkpoints", fifo="",
                  output=subprocess.PIPE):
        return self.start("ddprun", *flags, PROGRAM, self.path(checkpoints), str(steps),
                          str(disk_every), *([fifo] if fifo else []), output=output)

    def start_rendezvous(self):
        daemon = self.start("ddprun-rendezvous", "--port", "0", "--insecure")
        return self.find(daemon, r"listening on (127\.0\.0\.1:\d+)")[1]

    def kill_machine(self, node):
        kill_all([node.pid, *descendants(node.pid)])
        self.said.append(node.communicate()[0] or "")

    def make_fifo(self):
        """Each byte in it lets a training do a step."""
        os.mkfifo(self.path("leave"))
        self.leave = os.open(self.path("leave"), os.O_RDWR)
        self.addCleanup(os.close, self.leave)
        return self.path("leave")

    def find(self, process, pattern):
        """The first line of its output in which `pattern` is found."""
        for line in process.stdout:
            self.said.append(line)
            if found := re.search(pattern, line):
                return found
        return self.fail(f"{pattern} is in none of\n{''.join(self.said)}")

    def end(self, process):
        """The parameters of a training that has succeeded."""
        parameters = self.find(process, "^parameters (.*)$")[1]
        self.said.append(process.communicate()[0])
        self.assertEqual(process.returncode, 0, "".join(self.said))
        return parameters

    def undisturbed(self, *flags, steps):
        return self.end(self.start_job(*flags, steps=steps, checkpoints="others"))

    def seeds(self):
        """One for each job, which begins anew."""
        for seed in range(JOBS):
            with self.subTest(seed):
                self.setUp()
                self.dice = random.Random(seed)
                yield seed

    def await_line(self, process, words):
        """Awaits one of the training's lines and returns its step. No step may be missed."""
        found = self.find(process, rf"^({words}|missed) (\d+)")
        self.assertNotEqual(found[1], "missed", "".join(self.said))
        return found[1], int(found[2])

    def disturb(self, process):
        """Some steps, then one until a line that is chosen at random. Returns the last kept step.

        A byte that a killed worker did not read is a step of the next ones.
        """
        kept = 0
        for _ in range(self.dice.randint(1, STEPS_OF_A_KILL - 1)):
            os.write(self.leave, b"x")
            kept = self.await_line(process, "kept")[1]
        os.write(self.leave, b"x")
        word = self.dice.choice(("", *LINES))
        if word:
            word, step = self.await_line(process, word)
            kept = step if word == "kept" else kept
        return kept

    def check_resumed(self, process, kept):
        resumed = int(self.find(process, r"^(?:resumed (\d+)|begins)")[1] or -1)
        self.assertGreaterEqual(resumed, kept, "".join(self.said))
        return resumed

    def check_disk(self, *steps):
        folder = self.path("checkpoints")
        self.assertEqual(sorted(os.listdir(folder) if os.path.isdir(folder) else []),
                         [f"step-{step:012}" for step in steps])

    def test_a_killed_worker_costs_no_kept_step(self):
        for _ in self.seeds():
            self.kill_workers()

    def kill_workers(self):
        steps = KILLS * (STEPS_OF_A_KILL + 1) + 2
        ranks = ("--nproc-per-node", "2", "--warm", "off")
        expected = self.undisturbed(*ranks, steps=steps)
        job = self.start_job(*ranks, "--max-restarts", str(KILLS), "--max-restarts-at-step", "0",
                             "--memory-checkpoints", "256M", steps=steps,
                             fifo=self.make_fifo())
        kept = 0
        for _ in range(KILLS):
            pids = [int(self.find(job, r"^rank \d of 2 is (\d+)")[1]) for _ in range(2)]
            self.check_resumed(job, kept) if kept else self.find(job, "^begins")
            kept = self.disturb(job)
            os.kill(self.dice.choice(pids), signal.SIGKILL)
        self.check_resumed(job, kept)
        os.write(self.leave, b"x" * steps)
        self.assertEqual(self.end(job), expected)
        self.check_disk()

    def test_the_disk_gets_every_fourth_step(self):
        job = self.start_job("--nproc-per-node", "2", "--memory-checkpoints", "256M", steps=9,
                             disk_every=4)
        self.end(job)
        self.check_disk(4, 8)

    def test_without_memory_only_every_fourth_step_is_saved(self):
        job = self.start_job("--nproc-per-node", "2", steps=9, disk_every=4)
        self.end(job)
        self.check_disk(4, 8)

    def test_too_little_memory_is_a_line_and_the_training_goes_on(self):
        job = self.start_job("--nproc-per-node", "2", "--memory-checkpoints", "1M", steps=3,
                             disk_every=2)
        self.end(job)
        said = "".join(self.said)
        self.assertRegex(said, r"step 1 is not kept in memory: rank \d: .*memory-checkpoints")
        self.check_disk(2)

    def test_a_killed_machine_costs_no_kept_step(self):
        for _ in self.seeds():
            self.kill_machines()

    def test_a_killed_machine_costs_no_kept_step_of_a_sharded_optimizer(self):
        self.sharded = True
        for _ in self.seeds():
            self.kill_machines()

    def kill_machines(self):
        steps = KILLS * (STEPS_OF_A_KILL + 1) + 2
        shape = ("--nnodes", "2", "--nproc-per-node", "1", "--warm", "off", "--insecure")
        endpoint = self.start_rendezvous()

        def start_node(name, *flags, checkpoints="checkpoints", fifo=""):
            return self.start_job(*shape, "--rdzv-id", checkpoints, "--rdzv-endpoint", endpoint,
                                  "--node-id", name, *flags, steps=steps, checkpoints=checkpoints,
                                  fifo=fifo)

        others = [start_node(f"other{node}", "--node-rank", str(node), checkpoints="others")
                  for node in range(2)]
        expected = self.end(others[0])
        others[1].communicate()
        flags = ("--memory-checkpoints", "256M", "--memory-replicas", "1", "--max-restarts",
                 str(KILLS), "--max-restarts-at-step", "0")
        fifo = self.make_fifo()
        nodes = [start_node(f"node{node}", "--node-rank", str(node), *flags, fifo=fifo)
                 for node in range(2)]
        kept = 0
        for kill in range(KILLS):
            self.check_resumed(nodes[0], kept) if kept else self.find(nodes[0], "^begins")
            kept = self.disturb(nodes[0])
            # Node 0 says the lines: it is the other one that dies.
            self.kill_machine(nodes[1])
            nodes[1] = start_node(f"spare{kill}", *flags, fifo=fifo)
        self.check_resumed(nodes[0], kept)
        os.write(self.leave, b"x" * steps)
        self.assertEqual(self.end(nodes[0]), expected)
        nodes[1].communicate()
        self.check_disk()

    def test_a_killed_memory_program_costs_copies_and_no_training(self):
        for _ in self.seeds():
            self.kill_memory_programs()

    def kill_memory_programs(self):
        """On either node, at any moment of a save. The disk gets each fourth step as before."""
        steps = 12
        endpoint = self.start_rendezvous()
        fifo = self.make_fifo()
        lines, output = os.pipe()
        self.addCleanup(os.close, output)
        both = types.SimpleNamespace(stdout=self.enterContext(os.fdopen(lines)))
        nodes = [self.start_job(
            "--nnodes", "2", "--nproc-per-node", "1", "--warm", "off", "--insecure",
            "--rdzv-id", "memory", "--rdzv-endpoint", endpoint, "--node-rank", str(node),
            "--memory-checkpoints", "256M", "--memory-replicas", "1", "--max-restarts", "1",
            steps=steps, disk_every=4, fifo=fifo, output=output) for node in range(2)]
        pids = [int(self.find(both, r"^rank \d of 2 is (\d+)")[1]) for _ in range(2)]
        self.find(both, "^begins")
        os.write(self.leave, b"x")
        self.await_line(both, "kept")
        os.write(self.leave, b"x")
        word = self.dice.choice(("", *LINES))
        if word:
            self.await_line(both, word)
        time.sleep(self.dice.uniform(0, 0.05))
        node = self.dice.choice(nodes)
        kill_all([pid for pid in descendants(node.pid) if command_of(pid) == "ddprun-memory"])
        self.find(both, "ddprun-memory was killed by SIGKILL; the checkpoints in memory are gone")
        # Steps that no memory keeps are not missed by the training, nor by the disk.
        os.write(self.leave, b"x" * 6)
        self.find(both, "^trained 8")
        # The next generation has a new program, and keeps its steps again.
        os.kill(self.dice.choice(pids), signal.SIGKILL)
        resumed = int(self.find(both, r"^resumed (\d+)")[1])
        self.assertGreaterEqual(resumed, 4, "".join(self.said))
        os.write(self.leave, b"x" * steps)
        last = None
        while last != steps:
            last = self.await_line(both, "kept")[1]
        for each in nodes:
            self.assertEqual(each.wait(), 0, "".join(self.said))
        self.check_disk(4, 8, 12)

    def test_after_a_resume_any_machine_may_die_before_the_next_save(self):
        endpoint = self.start_rendezvous()
        fifo = self.make_fifo()
        lines, output = os.pipe()
        self.addCleanup(os.close, output)
        # Either node may have rank 0, which says the lines.
        both = types.SimpleNamespace(stdout=self.enterContext(os.fdopen(lines)))

        def start_node(name, *flags):
            return self.start_job(
                "--nnodes", "2", "--nproc-per-node", "1", "--warm", "off", "--insecure",
                "--rdzv-id", "twice", "--rdzv-endpoint", endpoint, "--node-id", name,
                "--memory-checkpoints", "256M", "--memory-replicas", "1", "--max-restarts", "2",
                *flags, steps=4, fifo=fifo, output=output)

        nodes = [start_node(f"node{node}", "--node-rank", str(node)) for node in range(2)]
        self.find(both, "^begins")
        os.write(self.leave, b"xx")
        for _ in range(2):
            kept = self.await_line(both, "kept")[1]
        # The one that has been there for longer dies, then the one that has resumed with it.
        for place in (1, 0):
            self.kill_machine(nodes[place])
            nodes[place] = start_node(f"spare{place}")
            self.assertEqual(self.check_resumed(both, kept), kept)
        os.write(self.leave, b"xxxx")
        self.find(both, "^parameters")
        for node in nodes:
            self.assertEqual(node.wait(), 0, "".join(self.said))
        self.check_disk()


if __name__ == "__main__":
    BIN, PROGRAM = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
