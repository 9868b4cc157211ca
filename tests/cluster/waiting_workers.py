"""Jobs on this machine whose workers say that they begin, and wait for a file named `end`.

Other tests' jobs run on this machine, too, and may be found: names are this process's.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest

PATIENCE_S = 120  # on a machine that has no time for it


class WaitingWorkersTest(unittest.TestCase):
    bin_dir = ""
    worker = ""  # a shell's program

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-waiting-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write_worker(self.worker)
        self.environment = {
            key: value for key, value in os.environ.items()
            if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_", key)}
        self.environment.update(HOME=self.folder, PET_LOG_DIR=self.path("logs"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def name(self, word):
        return f"{word}{os.getpid()}"

    def write_worker(self, text):
        with open(self.path("worker"), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path("worker"), 0o755)

    def start(self, program, *arguments, preexec_fn=None, stderr=subprocess.STDOUT, **variables):
        started = subprocess.Popen(
            [os.path.join(self.bin_dir, program), *arguments], cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, env={**self.environment, **variables},
            stdout=subprocess.PIPE, stderr=stderr, preexec_fn=preexec_fn)
        self.addCleanup(started.stdout.close)
        self.addCleanup(started.wait)
        self.addCleanup(started.kill)
        return started

    def wait_for(self, started, pattern, times=1):
        said = ""
        for line in started.stdout:
            said += line
            if found := re.search(pattern, line):
                times -= 1
                if times == 0:
                    threading.Thread(target=started.stdout.read, daemon=True).start()
                    return found
        self.fail(f"it has ended without {pattern}: {said}")

    def start_daemon(self):
        daemon = self.start("ddprun-rendezvous", "--port", "0")
        return self.wait_for(daemon, r"listening on (127\.0\.0\.1:\d+)").group(1)

    def ask(self, *words, **variables):
        """Runs ddpctl and returns its exit code and output."""
        return subprocess.run([os.path.join(self.bin_dir, "ddpctl"), *words], cwd=self.folder,
                              text=True, env={**self.environment, **variables},
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S,
                              check=False)

    def end(self, *nodes, code=0):
        with open(self.path("end"), "w", encoding="utf-8"):
            pass
        for node in nodes:
            self.assertEqual(node.wait(PATIENCE_S), code)


def main():
    """usage: FILE BIN_DIR [unittest's words]"""
    WaitingWorkersTest.bin_dir = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
