"""Every text that shows users how to call a program."""

import os
import re
import subprocess
import sys

from build import ROOT, block

# The command lines of other programs are internal to ddprun.
PROGRAMS = ("ddprun", "ddpctl", "ddprun-rendezvous", "ddprun-keeper", "ddprun-sim", "train_digits",
            "two_halves", "model_parallel")
PAGES = os.path.join(ROOT, "packaging", "pages.py")


def take(build):
    for program in filter(build.has, PROGRAMS):
        write_help(build, program, build.run(program, "--help"))
    write_verbs(build)
    write_pages(build)


def write_help(build, words, done):
    build.write(f"texts/help/{words.replace(' ', '-')}.txt",
                build.mask(block(f"{words} --help", done)))


def write_verbs(build):
    """Most have the text of ddpctl itself."""
    whole = build.run("ddpctl", "--help").stdout
    for verb in set(re.findall(r"^(?:usage:|      ) ddpctl (\w+)", whole, re.MULTILINE)):
        done = build.run("ddpctl", verb, "--help")
        if done.stdout == whole:
            done.stdout = "as ddpctl --help\n"
        write_help(build, f"ddpctl {verb}", done)


def write_pages(build):
    share = build.path("share")
    subprocess.run([sys.executable, "-B", PAGES, os.path.join(build.folder, "bin"), share],
                   check=True)
    for folder, _, files in os.walk(share):
        for name in files:
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                build.write(os.path.join("texts", os.path.relpath(path, share)),
                            build.mask(file.read()))
