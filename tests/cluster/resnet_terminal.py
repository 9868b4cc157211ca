"""A ResNet script with bars and a logger, under torchrun and under ddprun, each on a terminal of
its own: what stands there at the end, when it crashes, is interrupted or debugged, or the window
changes.

The terminal is a real one, and pyte shows what a person would see of it. Under ddprun it must look
as it should; torchrun's is checked in the same way and printed beside it.

usage: resnet_terminal.py DDPRUN|WHEEL [TEST...]  (with a Python that has torch, tqdm and pyte)
"""

import fcntl
import importlib.util
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

PATIENCE_S = 600  # on a machine that has no time for it
ROWS, COLUMNS = 24, 80
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workers", "resnet.py")
FOR_EVER = str(1 << 20)
BAR = re.compile(r"epoch \d+: +\d+%\|")


class Terminal:
    """A launcher on a terminal that it controls, and what a person sees there."""

    def __init__(self, words, folder):
        import pyte
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=100000)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        self._resize(ROWS, COLUMNS)
        self.modes = termios.tcgetattr(self._ours)
        variables = {key: value for key, value in os.environ.items()
                     if not re.match("PET_|DDPRUN_|TORCH|COLUMNS|LINES", key)}
        variables.update(TERM="xterm", OMP_NUM_THREADS="1", TMPDIR=folder, HOME=folder,
                         PYTHON_EXEC=sys.executable)
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=variables,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0))
        os.close(theirs)
        self._is_open = True

    def _resize(self, rows, columns):
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def resize(self, rows, columns):
        self.screen.resize(rows, columns)
        self._resize(rows, columns)

    def press(self, keys):
        os.write(self._ours, keys)

    def lines(self):
        """All since the beginning, those that have scrolled away too."""
        def text(row):
            return "".join(row[column].data for column in range(self.screen.columns))
        rows = [text(row) for row in self.screen.history.top] + list(self.screen.display)
        return "\n".join(row.rstrip() for row in rows).rstrip("\n").split("\n")

    def text(self):
        return "\n".join(self.lines())

    def read(self, until):
        """Shows what comes until `until()` holds, or nothing can come any more."""
        deadline = time.monotonic() + PATIENCE_S
        while self._is_open and not until():
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._ours], [], [], left)[0]:
                raise AssertionError(f"nothing more after {PATIENCE_S} s:\n{self.text()}")
            try:
                self._stream.feed(os.read(self._ours, 65536))
            except OSError:  # no process has the other end any more
                self._is_open = False

    def read_until_line(self, pattern):
        self.read(lambda: re.search(pattern, self.text(), re.MULTILINE))
        if not re.search(pattern, self.text(), re.MULTILINE):
            raise AssertionError(f"it has ended without {pattern}:\n{self.text()}")

    def ask(self, command):
        """Types it at pdb's prompt, and reads until pdb prompts again."""
        prompts = self.text().count("(Pdb)")
        self.press(command.encode() + b"\n")
        self.read(lambda: self.text().count("(Pdb)") > prompts)

    def end(self):
        """Its exit code, once all is shown."""
        self.read(lambda: False)
        return self.process.wait(PATIENCE_S)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


def behind_rank(line):
    return re.sub(r"^\[[0-9,-]+\] ", "", line)


def flaws(lines, expected):
    """Returns the flaws that a person would see: printed lines that are lost, or that share their
    line with something else, and bars that are left behind or share theirs."""
    found = []
    texts = [behind_rank(line) for line in lines]
    for pattern in expected:
        whole = sum(bool(re.fullmatch(pattern, text)) for text in texts)
        if whole != 1:
            found.append(f"{whole} lines are: {pattern}")
    for text in texts:
        bars = len(BAR.findall(text))
        if bars > 1 or bars == 1 and (not BAR.match(text) or not text.endswith("]")):
            found.append(f"a bar and something else: {text}")
        elif bars == 1 and "100%" not in text:
            found.append(f"a bar that is left behind: {text}")
    return found


def said_by(steps, epochs):
    said = [f"epoch {epoch} is saved" for epoch in range(epochs)]
    said += [f"step {step} is done, loss [0-9.]+" for step in range(10, steps * epochs + 1, 10)]
    return said + ["wandb: Tracking run with wandb-like logger", "wandb: Run data is saved locally",
                   "wandb: Run summary:", fr"wandb: +step {steps * epochs}",
                   r"wandb: +loss [0-9.]+"]


class ResNet(unittest.TestCase):
    def setUp(self):
        owner = tempfile.TemporaryDirectory()
        self.addCleanup(owner.cleanup)
        self.folder = owner.name

    def end_all(self):
        """Workers too: torchrun leaves them behind when it is killed."""
        for pid in running_in(self.folder):
            os.kill(pid, signal.SIGKILL)

    def launch(self, launcher, *arguments, own_flags=()):
        words = {"torchrun": [sys.executable, "-m", "torch.distributed.run"],
                 "ddprun": [DDPRUN, *own_flags]}[launcher]
        terminal = Terminal([*words, "--standalone", "--nproc-per-node", "2", SCRIPT, *arguments],
                            self.folder)
        self.addCleanup(terminal.close)
        self.addCleanup(self.end_all)
        return terminal

    def show(self, launcher, terminal, found):
        print(f"--- {launcher}, {self.id().rpartition('.')[2]}: {len(found)} flaws", *found,
              "--- its terminal", *terminal.lines(), sep="\n", flush=True)

    def both(self, act, *arguments, own_flags=()):
        """`act(terminal, launcher)` gives the flaws. ddprun, with its own flags, has none."""
        for launcher in ("torchrun", "ddprun"):
            terminal = self.launch(launcher, *arguments, own_flags=own_flags)
            found = act(terminal, launcher)
            self.show(launcher, terminal, found)
            self.assertEqual(termios.tcgetattr(terminal._ours), terminal.modes)
            self.assertFalse(terminal.screen.cursor.hidden)
            if launcher == "ddprun":
                self.assertEqual(found, [])

    def test_a_training_that_ends(self):
        def act(terminal, _):
            self.assertEqual(terminal.end(), 0, terminal.text())
            return flaws(terminal.lines(), said_by(40, 2))
        self.both(act)

    def test_a_crash(self):
        """The whole error is shown, and what is above it is as it was."""
        def act(terminal, launcher):
            code = terminal.end()
            self.assertEqual(code, 1, terminal.text())
            lines = terminal.lines()
            found = [] if launcher == "torchrun" else flaws_of_report(lines)
            error = "RuntimeError: the loss is not finite after step 15"
            if not any(line.endswith(error) for line in lines):
                found.append(f"no line ends with: {error}")
            before = next((at for at, line in enumerate(lines) if "Traceback" in line), 0)
            return found + flaws([line for line in lines[:before] if not BAR.search(line)],
                                 ["step 10 is done, loss [0-9.]+"])
        self.both(act, "--fail-at", "15")

    def test_a_breakpoint(self):
        """pdb answers what it is asked, and the training goes on to its end."""
        def act(terminal, _):
            terminal.read_until_line(r"\(Pdb\)$")
            for command in ("up", "p 'at', step", "p dist.get_rank()"):
                terminal.ask(command)
            terminal.press(b"c\n")
            self.assertEqual(terminal.end(), 0, terminal.text())
            lines = terminal.lines()
            # tqdm knows nothing of what pdb writes: a bar stands where it was.
            found = flaws([line for line in lines if not BAR.match(behind_rank(line))],
                          said_by(40, 2))
            answers = {at: lines[at + 1] for at, line in enumerate(lines) if "(Pdb) p " in line}
            return found + [f"not answered: {lines[at]}: {answer}" for (at, answer), wanted
                            in zip(answers.items(), ("('at', 15)", "0"), strict=True)
                            if behind_rank(answer) != wanted]
        self.both(act, "--breakpoint-at", "15", own_flags=["--debug-rank", "0"])

    def test_ctrl_c(self):
        def act(terminal, launcher):
            terminal.read_until_line(r"step 20 is done, loss [0-9.]+$")
            terminal.press(b"\x03")
            code = terminal.end()
            self.assertNotEqual(code, 0)
            self.assertEqual(running_in(self.folder), [])
            lines = terminal.lines()
            found = [line for line in lines if len(BAR.findall(line)) > 1]
            # A shell's prompt would begin a line.
            found += [] if terminal.screen.cursor.x == 0 else [f"left behind: {lines[-1]}"]
            tracebacks = sum("Traceback (most recent call last)" in line for line in lines)
            print(f"--- {launcher}, ctrl-c: exit code {code}, {tracebacks} tracebacks")
            return found
        self.both(act, "--steps", FOR_EVER)

    def test_a_window_that_changes(self):
        """A bar that is as wide as the old window stands on one line of the new one."""
        def act(terminal, _):
            terminal.read_until_line(r"step 20 is done, loss [0-9.]+$")
            terminal.resize(20, 60)
            begun = last_step(terminal)
            terminal.read(lambda: last_step(terminal) >= begun + 100)
            window = [line.rstrip() for line in terminal.screen.display]
            terminal.press(b"\x03")
            terminal.end()
            # Bars of before may stand above: only the terminal knows what it has made of them. But
            # between lines that tqdm.write() has said since stands none, nor a part of one.
            said = [at for at, line in enumerate(window) if re.search("step .* is done", line)]
            return [line for line in window[said[0]:said[-1]] if "epoch" in line or "it/s" in line]
        self.both(act, "--steps", FOR_EVER)


def program_of(path, environment):
    """The path itself, or the program of that wheel, installed there."""
    if not path.endswith(".whl"):
        return path
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([os.path.join(environment, "bin", "pip"), "install", "--quiet", "--no-index",
                    "--disable-pip-version-check", path], check=True)
    return os.path.join(environment, "bin", "ddprun")


def last_step(terminal):
    return max((int(it) for it in re.findall(r"step (\d+) is done", terminal.text())), default=0)


def running_in(folder):
    """Processes whose working folder it is."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(folder):
                found.append(int(pid))
        except OSError:
            pass  # gone, or another user's
    return found


def flaws_of_report(lines):
    """Returns the facts missing from ddprun's report, which stands last."""
    text = "\n".join(lines)
    return [f"not in the report: {wanted}" for wanted in
            ("rank 1", "exited with code 1", "logs", "RuntimeError: the loss is not finite")
            if wanted not in text[max(0, text.rfind("first failure")):]]


if __name__ == "__main__":
    missing = [name for name in ("torch", "tqdm", "pyte")
               if importlib.util.find_spec(name) is None]
    if missing:
        print(f"LEFT OUT: no {', '.join(missing)} here, run scripts/setup.sh --full")
    else:
        with tempfile.TemporaryDirectory() as environment:
            DDPRUN = program_of(os.path.abspath(sys.argv.pop(1)), environment)
            done = unittest.main(exit=False)
        sys.exit(not done.result.wasSuccessful())
