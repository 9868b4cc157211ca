"""Man pages, made from what the programs say with --help (ddprun: --help-all), and
completions of bash, zsh and fish.

usage: pages.py BIN SHARE

BIN holds ddprun, ddprun-rendezvous and ddpctl; SHARE is filled as /usr/share is. ddprun makes its
help and completions from its table of flags, so that a new flag is in all of them.
"""

import os
import re
import subprocess
import sys

SUMMARIES = {
    "ddprun": "start a distributed training and keep it alive",
    "ddprun-rendezvous": "the daemon at which the nodes of ddprun's jobs meet",
    "ddpctl": "what ddprun's jobs do, their workers' logs, and what is wrong with a machine",
}
# ddpctl's help lists its verbs, each of which has a help of its own.
VERB = re.compile(r"^  ([a-z]+) {2,}\S", re.MULTILINE)


def output_of(folder, program, *words):
    environment = {"PATH": "/usr/bin:/bin"}
    if "QEMU_LD_PREFIX" in os.environ:  # For another processor (emulated.sh).
        environment["QEMU_LD_PREFIX"] = os.environ["QEMU_LD_PREFIX"]
    return subprocess.run([os.path.join(folder, program), *words], check=True, text=True,
                          stdout=subprocess.PIPE, env=environment).stdout


def help_of(folder, program, *verb):
    return output_of(folder, program, *verb, "--help-all" if program == "ddprun" else "--help")


def roff(text):
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in lines)


def man_page(program, text, version, verbs):
    """`verbs`: the help of each by its name."""
    usage, _, body = text.partition("\n")
    if not usage.startswith("usage: "):  # The sentence comes first there.
        usage, body = next(line for line in text.splitlines() if line.startswith("usage: ")), text
    sections = []
    for verb, its_text in verbs.items():
        sections += [f".SS {roff(program)} {verb}", ".nf", roff(its_text.strip("\n")), ".fi"]
    others = ", ".join(f".BR {name} (1)" for name in SUMMARIES if name != program)
    return "\n".join([
        f'.TH {program.upper()} 1 "" "ddprun {version}" "User Commands"',
        ".SH NAME", f"{roff(program)} \\- {SUMMARIES[program]}",
        ".SH SYNOPSIS", ".nf", roff(usage.removeprefix("usage: ")), ".fi",
        ".SH DESCRIPTION", ".nf", roff(body.strip("\n")), ".fi",
        *([".SH VERBS"] if verbs else []), *sections,
        ".SH SEE ALSO", others.replace(", ", " ,\n"), ""])


def write(share, path, text):
    path = os.path.join(share, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    folder, share = sys.argv[1:]
    version = output_of(folder, "ddprun", "--version").split()[-1]
    for program in SUMMARIES:
        text = help_of(folder, program)
        verbs = {verb: help_of(folder, program, verb)
                 for verb in (VERB.findall(text) if program == "ddpctl" else [])}
        write(share, f"man/man1/{program}.1", man_page(program, text, version, verbs))
    write(share, "man/man1/ddprun-launch.1", ".so man1/ddprun.1\n")
    for shell, path in (("bash", "bash-completion/completions/ddprun"),
                        ("zsh", "zsh/site-functions/_ddprun"),
                        ("fish", "fish/vendor_completions.d/ddprun.fish")):
        write(share, path, output_of(folder, "ddprun", "--print-completion", shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
