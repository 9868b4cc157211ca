"""The systemd service of the rendezvous: systemd understands every line, nothing is open that it
can do without, and its command runs as it stands, in a folder in the place of /var/lib.

Usage: service.py BIN SOURCE; BIN holds ddprun's programs.
"""

import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

BIN, SOURCE = map(os.path.abspath, sys.argv[1:])
NAME = "ddprun-rendezvous.service"
UNIT = os.path.join(SOURCE, "packaging", "systemd", NAME)
DEFAULTS = os.path.join(SOURCE, "packaging", "systemd", "ddprun-rendezvous.default")
# In tenths, as `systemd-analyze security` counts; the service has 16.
EXPOSURE_MAX = 19
NO_SYSTEMD = "LEFT OUT: systemd-analyze is not installed"


def lines_of(key):
    with open(UNIT, encoding="utf-8") as file:
        return re.findall(rf"^{key}=(.*)$", file.read(), re.MULTILINE)


def analyze(root, *command):
    done = subprocess.run(["systemd-analyze", command[0], "--root=" + root, *command[1:], NAME],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


class Service(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def install(self):
        """With the targets of this machine's systemd, which it names."""
        units = os.path.join(self.root, "usr", "lib", "systemd", "system")
        programs = os.path.join(self.root, "usr", "bin")
        os.makedirs(units)
        os.makedirs(programs)
        for target in glob.glob("/lib/systemd/system/*.target"):
            shutil.copy(target, units)
        shutil.copy(UNIT, units)
        shutil.copy(os.path.join(BIN, "ddprun-rendezvous"), programs)

    @unittest.skipUnless(shutil.which("systemd-analyze"), NO_SYSTEMD)
    def test_systemd_understands_every_line(self):
        self.install()
        self.assertEqual(analyze(self.root, "verify", "--man=no"), (0, ""))

    @unittest.skipUnless(shutil.which("systemd-analyze"), NO_SYSTEMD)
    def test_nothing_is_open_that_it_can_do_without(self):
        self.install()
        code, text = analyze(self.root, "security", "--offline=true",
                             f"--threshold={EXPOSURE_MAX}")
        self.assertEqual(code, 0, text)

    def test_its_command_runs_with_a_secret_and_runs_of_its_own(self):
        state = os.path.join(self.root, "var lib")
        os.mkdir(state)
        environment = {"PATH": "/usr/bin:/bin"}
        for line in lines_of("Environment"):
            name, _, value = shlex.split(line)[0].partition("=")
            environment[name] = value.replace("%S", state)
        # A site writes this variable into /etc/default/ddprun-rendezvous; the port that it has
        # there may be another process's on this machine.
        with open(DEFAULTS, encoding="utf-8") as file:
            self.assertIn('DDPRUN_RENDEZVOUS_OPTIONS="--port 29400"\n', file.read())
        environment["DDPRUN_RENDEZVOUS_OPTIONS"] = "--port 0"
        command = []
        for word in lines_of("ExecStart")[0].split():
            if word.startswith("$"):
                command += environment[word[1:]].split()
            else:
                command.append(word.replace("%S", state))
        self.assertEqual(os.path.basename(command[0]), "ddprun-rendezvous")
        command[0] = os.path.join(BIN, "ddprun-rendezvous")
        with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as daemon:
            self.addCleanup(daemon.kill)
            listening = re.fullmatch(r"listening on (127\.0\.0\.1:\d+)\n", daemon.stdout.readline())
            job = subprocess.run(
                [os.path.join(BIN, "ddprun"), "--rdzv-endpoint", listening[1], "--rdzv-id", "a-job",
                 "--log-dir", os.path.join(self.root, "logs"), os.path.join(BIN, "ddprun"),
                 "--version"],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(job.returncode, 0, job.stdout)
            daemon.send_signal(signal.SIGTERM)
            text = daemon.stdout.read()
        self.assertIn("a-job", text)
        # systemd counts these codes as a clean exit and restarts nothing.
        self.assertIn(daemon.returncode, (0, -signal.SIGTERM), text)
        secret = os.path.join(state, "ddprun", ".config", "ddprun", "secret")
        self.assertEqual(os.stat(secret).st_mode & 0o777, 0o600)
        self.assertIn("journal.db", os.listdir(os.path.join(state, "ddprun", "runs")))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
