"""Exit code, stdout and stderr of each line of command_lines.txt, a file for each section."""

import concurrent.futures
import os
import re
import shlex
import socket
import subprocess

from build import block

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "command_lines.txt")
# Each file that the command lines name, with its text and mode.
FILES = {
    "train.py": ("print('trains')\n", 0o644),
    "old.py": ("parser.add_argument('--local_rank')\n", 0o644),
    "options.py": ("parser.add_argument('--nnodes')\n", 0o644),
    "plain.py": ("print('is not executable')\n", 0o644),
    "plain": ("a file\n", 0o644),
    "tool.py": ("print('is a module')\n", 0o644),
    "package/inner.py": ("print('is a module, too')\n", 0o644),
    "train": ("#!/bin/sh\necho trains\n", 0o755),
    "tools/scontrol": ("#!/bin/sh\n", 0o755),
    "venv/bin/python3": ("#!/bin/sh\n", 0o755),
    "conda/bin/python3": ("#!/bin/sh\n", 0o755),
    "folder/file": ("", 0o644),
    "folder.py/file": ("", 0o644),
    "secret": ("0f" * 32 + "\n", 0o600),
    "pem": ("not PEM\n", 0o600),
    "slots": ("{host}\ngpu02\n", 0o644),
    "hostfile": ("{host} 8 member.q@a UNDEFINED\nqb3-id15 8 member.q@b UNDEFINED\n", 0o644),
}


def make_files(folder, host):
    for name, (text, mode) in FILES.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("{host}", host))
        os.chmod(path, mode)


def read_table():
    """(section, line, its words without the environment, its variables) of each command line."""
    with open(TABLE, encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    environments, section, table = {}, "", []
    for line in filter(None, (line.strip() for line in text.split("\n"))):
        if line.startswith("#"):
            continue
        if heading := re.fullmatch(r"\[(.*)\]", line):
            section = heading[1]
            continue
        variables, words = {}, shlex.split(line)
        name = words.pop(0)[1:-1] if re.match(r"@\w+:", line) else None
        while words and (found := re.match(r"@(\w+)$|([A-Z]\w*)=", words[0])):
            variables |= (environments[found[1]] if found[1] else
                          {found[2]: words[0][found.end():]})
            del words[0]
        if name:
            environments[name] = variables
        else:
            table.append((section, line, words, variables))
    return table


def take(build):
    host, here = socket.gethostname(), build.path("here")
    make_files(here, host)

    def filled(text):
        return text.replace("{host}", host).replace("{here}", here)

    def run(row):
        _, line, words, variables = row
        if words[0] in ("ddprun", "ddprun-launch"):
            words = [words[0], "--dry-run", *words[1:]]
        try:
            done = build.run(*map(filled, words), cwd=here,
                             variables={key: filled(it) for key, it in variables.items()})
        except subprocess.TimeoutExpired:
            raise SystemExit(f"golden: this does not end: {line}") from None
        return block(line, done)

    table = read_table()
    sections = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for row, text in zip(table, pool.map(run, table)):
            sections[row[0]] = sections.get(row[0], "") + text
    for section, text in sections.items():
        build.write(f"commands/{section.replace(' ', '-')}.txt", build.mask(text))
