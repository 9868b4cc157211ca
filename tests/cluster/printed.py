"""ddprun prints for people and their tools: files, reports, the end of a run.

usage: printed.py BIN_DIR [unittest's words]
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN = ""
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                       "../../worker_runtime/python")
WORKERS = 8
LINES = 200

# Writes long lines, each in two pieces of any size.
PIECES = f"""
import os, random
rank = os.environ["RANK"]
random.seed(int(rank))
for number in range({LINES}):
    line = f"{{rank}}:{{number}}:{{rank * random.randint(1, 9000)}}\\n".encode()
    cut = random.randint(1, len(line) - 1)
    os.write(1, line[:cut])
    os.write(1, line[cut:])
"""

# Rank 1 raises; the other one works until it is ended.
RAISES = """
import os, signal
def train(depth):
    if depth == 0:
        raise ValueError("bad batch 17")
    train(depth - 1)
    return depth
def evaluate(depth):
    return train(depth) + 1
if os.environ["RANK"] == "1":
    evaluate(2)
signal.pause()
"""

# Saves and leaves when it is asked to.
SAVES = """
import os, sys
import ddprun
worker = ddprun.worker()
if sys.argv[1] == "tells":
    worker.checkpoints_in("checkpoints")
for step in range(1, sys.maxsize):
    worker.progress(step)
    if worker.stop_requested():
        with worker.checkpointing():
            with open("step", "w") as file:
                file.write(str(step))
        worker.leave()
    if step == 3:
        print("works", flush=True)
    os.sched_yield()
"""


class Printed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-printed-")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)
        self.environment = {
            key: value for key, value in os.environ.items()
            if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_|LOGLEVEL", key)}
        self.environment.update(HOME=self.folder, TMPDIR=self.folder, PYTHON_EXEC=sys.executable,
                                PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1")

    def write(self, script):
        with open(os.path.join(self.folder, "train.py"), "w", encoding="utf-8") as file:
            file.write(script)

    def printed(self, script, *flags, code=0):
        """Both streams of a ddprun, which are one file."""
        self.write(script)
        path = os.path.join(self.folder, "printed")
        with open(path, "wb") as file:
            done = subprocess.run(
                [os.path.join(BIN, "ddprun"), "--warm", "off", *flags, "train.py"],
                env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file,
                stderr=file, timeout=PATIENCE_S, check=False)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(done.returncode, code, text)
        return text

    def test_lines_of_several_workers_do_not_mix_in_a_file(self):
        for flags, prefix in [((), ""), (("--prefix", "never"), ""),
                              (("--prefix", "always"), r"\[\S+ (?P<by>\d)\] "),
                              (("--tee", "3"), r"\[default(?P<by>\d)\]:"),
                              (("--redirects", "2"), "")]:
            with self.subTest(flags):
                whole = re.compile(prefix + r"(?P<rank>\d):(?P<number>\d+):(?P=rank)+")
                seen = []
                for line in self.printed(PIECES, "--nproc-per-node", str(WORKERS),
                                         *flags).splitlines():
                    found = whole.fullmatch(line)
                    self.assertTrue(found, line)
                    self.assertEqual(found.groupdict().get("by", found["rank"]), found["rank"])
                    seen.append((int(found["rank"]), int(found["number"])))
                # Each once, and those of one worker in order.
                self.assertEqual(sorted(seen, key=lambda it: it[0]),
                                 [(rank, number) for rank in range(WORKERS)
                                  for number in range(LINES)])

    def test_a_traceback_is_printed_once_and_its_exception_is_the_headline(self):
        for flags in [(), ("--redirects", "3")]:
            with self.subTest(flags):
                text = self.printed(RAISES, "--nproc-per-node", "2", *flags, code=1)
                self.assertEqual(text.count("Traceback (most recent call last):"), 1, text)
                self.assertEqual(len(re.findall(r"in evaluate$", text, re.M)), 1, text)
                end = r"rank 1 on (\S+) exited with code 1: ValueError: bad batch 17"
                headline = re.search(rf"^train\.py failed: {end}$", text, re.M)
                self.assertTrue(headline, text)
                table = text[headline.end() + 1:].splitlines()
                host = headline[1].ljust(4)
                self.assertEqual(table[0].split(), ["host", "rank", "end", "time", "cause"])
                self.assertRegex(table[1], rf"^  {host}     1  exit code 1  [0-9:]{{8}} +\+\S+ s  "
                                           r"ValueError: bad batch 17$")
                # The last line names the cause, too.
                self.assertRegex(text, r"ValueError: bad batch 17\n\Z")

    def end_of(self, what):
        """Returns the output of a ddprun whose worker was at work when Ctrl-C came."""
        self.write(SAVES)
        with subprocess.Popen(
                [os.path.join(BIN, "ddprun"), "--warm", "off", "train.py", what],
                env=self.environment, cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
            try:
                while (line := job.stdout.readline()) != "works\n":
                    self.assertTrue(line)
                job.send_signal(signal.SIGINT)
                text, _ = job.communicate(timeout=PATIENCE_S)
            finally:
                job.kill()
        self.assertEqual(job.returncode, 130, text)
        return text

    def test_who_presses_ctrl_c_reads_what_was_saved_and_where(self):
        text = self.end_of("tells")
        self.assertIn("ddprun: SIGINT: saving, for at most 30 s; press Ctrl-C again after 1 s to "
                      "abort\n", text)
        with open(os.path.join(self.folder, "step"), encoding="utf-8") as file:
            step = file.read()
        self.assertTrue(text.endswith(
            f"ddprun: saved step {step} in {self.folder}/checkpoints; the same command goes on "
            "from it\n"), text)

    def test_nothing_is_said_of_a_checkpoint_that_nobody_has_told_of(self):
        text = self.end_of("")
        self.assertIn("SIGINT: saving", text)
        self.assertNotIn("saved step", text)
        self.assertNotIn("the same command", text)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main()
