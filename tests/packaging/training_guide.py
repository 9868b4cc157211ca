"""The program of docs/training.md: what the guide shows is built and run, and does what it says.

The files, commands and outputs are taken from the guide. A block under a line `NAME`: is a file;
the block that begins with `cmake -S .` builds them; one that begins with ddprun is a command, and
the next block is what it prints, but for measured shares.
Usage: training_guide.py BUILD SOURCE; BUILD is a build of ddprun that installs its runtime.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE = map(os.path.abspath, sys.argv[1:3])
GUIDE = os.path.join(SOURCE, "docs", "training.md")


def blocks_of(text):
    """(name of the file or "", what the block holds), in order."""
    return [(name or "", block) for name, block in
            re.findall(r"(?:^`([\w.]+)`:\n\n)?^```\w*\n(.*?)^```$", text,
                       re.MULTILINE | re.DOTALL)]


def without_shares(text):
    return re.sub(r"\d+\.\d %", "N %", text)


class Guide(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder_owner = tempfile.TemporaryDirectory(prefix="ddprun-guide-")
        top = cls.folder_owner.name
        cls.folder = os.path.join(top, "circle")
        home = os.path.join(top, "home")
        os.makedirs(cls.folder)
        paths = [os.path.join(BUILD, "bin"), os.path.join(SOURCE, ".venv", "bin")]
        cls.environment = dict(os.environ, HOME=home, PATH=":".join(paths + [os.environ["PATH"]]))
        ccache = shutil.which("ccache")
        if ccache:
            # ccache reuses an earlier run's objects: the folder's name changes each time.
            cls.environment |= {
                "CMAKE_CXX_COMPILER_LAUNCHER": ccache, "CCACHE_BASEDIR": top,
                "CCACHE_NOHASHDIR": "1", "CCACHE_DIR": subprocess.check_output(
                    [ccache, "--get-config", "cache_dir"], text=True).strip()}
        cls.run_line(f"cmake --install '{BUILD}' --component worker_runtime --prefix ~/.local")
        with open(GUIDE, encoding="utf-8") as file:
            cls.blocks = blocks_of(file.read())
        for name, block in cls.blocks:
            if name:
                with open(os.path.join(cls.folder, name), "w", encoding="utf-8") as file:
                    file.write(block)
        cls.run_line(next(block for _, block in cls.blocks if block.startswith("cmake -S . ")))

    @classmethod
    def tearDownClass(cls):
        cls.folder_owner.cleanup()

    @classmethod
    def run_line(cls, line):
        """Runs `line` and returns its stdout."""
        done = subprocess.run(["bash", "-ec", line], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False, cwd=cls.folder,
                              env=cls.environment, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def setUp(self):
        shutil.rmtree(os.path.join(self.folder, "checkpoints"), ignore_errors=True)

    def test_the_commands_print_what_the_guide_shows(self):
        commands = [(block, self.blocks[i + 1][1]) for i, (_, block) in enumerate(self.blocks)
                    if block.startswith("ddprun ")]
        self.assertGreaterEqual(len(commands), 2)
        for command, says in commands:
            self.assertEqual(without_shares(self.run_line(command)), without_shares(says), command)

    def test_asked_to_stop_it_saves_and_the_next_start_resumes(self):
        command = ["ddprun", "--nproc-per-node", "2", "build/circle"]
        job = subprocess.Popen([*command, "1000000"], stdout=subprocess.PIPE, text=True,
                               cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL)
        with job.stdout:
            lines = [job.stdout.readline()]
            job.send_signal(signal.SIGTERM)
            lines += job.stdout.readlines()
        self.assertEqual(job.wait(), 128 + signal.SIGTERM)
        epochs = len(lines)
        self.assertEqual(lines[-1].split(",")[0], f"epoch {epochs}: step {32 * epochs}")
        resumed, epoch = self.run_line(" ".join(command) + f" {epochs + 1}").splitlines()
        self.assertTrue(epoch.startswith(f"epoch {epochs + 1}: step {32 * (epochs + 1)},"), epoch)
        # The checkpoint saved on request is newer than the checkpoint of the last epoch.
        self.assertGreater(int(re.fullmatch(r"resumed from step (\d+)", resumed)[1]), 32 * epochs)

    def test_it_links_libtorch_and_nothing_else(self):
        needed = self.run_line("readelf -d build/circle")
        self.assertIn("libtorch_cpu.so", needed)
        for library in ("fmt", "xxhash", "sqlite", "ssl", "crypto", "spdlog", "boost"):
            self.assertNotIn(library, needed)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
