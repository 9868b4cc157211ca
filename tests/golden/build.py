"""A build whose behaviour is written down, the folder it works in, and what is masked."""

import os
import re
import socket
import subprocess

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
PATIENCE_S = 120  # on a machine that has no time for it


class Build:
    """A build in `folder`. `work` is empty, is deleted afterwards, and holds the home and the
    temporary files of all programs."""

    def __init__(self, folder, out, work, seeds):
        self.folder, self.out, self.work, self.seeds = folder, out, work, seeds
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": self.path("home"),
                            "TMPDIR": self.path("tmp"), "LC_ALL": "C.UTF-8", "LOGNAME": "alice"}
        for name in ("home", "tmp"):
            os.mkdir(self.path(name))
        version = self.run("ddprun", "--version").stdout.split()[-1]
        host = socket.gethostname()
        self.masks = [(re.compile(pattern), mask) for pattern, mask in (
            (re.escape(work), "<work>"), (re.escape(folder), "<build>"),
            (rf"(?<![\w.-]){re.escape(host)}(?![\w.-])", "<host>"),
            (rf"(?<![\w.]){re.escape(version)}(?![\w.])", "<version>"),
            (rf"ddprun-{os.getuid()}\b", "ddprun-<uid>"),
            (r"\d+ MiB that are free", "<free> MiB that are free"),
            (r"(address of this machine) \(.*?\)", r"\1 (<addresses>)"),
            (r"(those that are up): .*?;", r"\1: <interfaces>;"),
            (r"\d+ bytes; look", "<size> bytes; look"))]

    def path(self, *names):
        return os.path.join(self.work, *names)

    def has(self, name):
        return os.path.isfile(os.path.join(self.folder, "bin", name))

    def program(self, name):
        if not self.has(name):
            raise SystemExit(f"golden: {self.folder} has no bin/{name}: build it, or leave out the "
                             "part that needs it with --only")
        return os.path.join(self.folder, "bin", name)

    def start(self, name, *words, cwd=None, variables=None, **options):
        return subprocess.Popen([self.program(name), *words], cwd=cwd or self.work,
                                env=self.environment | (variables or {}),
                                stdin=subprocess.DEVNULL, start_new_session=True, **options)

    def run(self, name, *words, cwd=None, variables=None):
        return subprocess.run([self.program(name), *words], cwd=cwd or self.work,
                              env=self.environment | (variables or {}), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="backslashreplace",
                              timeout=PATIENCE_S, check=False)

    def mask(self, text):
        for pattern, mask in self.masks:
            text = pattern.sub(mask, text)
        return text

    def write(self, name, text):
        path = os.path.join(self.out, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def block(title, done):
    """A finished program, as compare shows it: each line says which stream it is of."""
    lines = [f"## {title}", f"exit {done.returncode}"]
    for stream, text in (("out", done.stdout), ("err", done.stderr)):
        lines += [f"{stream} | {line}".rstrip() for line in text.split("\n")[:-1]]
        if text and not text.endswith("\n"):
            lines.append(f"{stream} | {text.rsplit(chr(10), 1)[-1]} <no newline>")
    return "\n".join(lines) + "\n\n"
