"""Man pages and completions of bash, zsh and fish, made from what the programs say with --help.

usage: pages.py BIN SHARE

BIN holds ddprun, ddprun-rendezvous and ddpctl; SHARE is filled as /usr/share is. ddprun's own text
comes from its table of flags (launcher/plan/flag_table.cpp), so a new flag is in all of them.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

SUMMARIES = {
    "ddprun": "start a distributed training and keep it alive",
    "ddprun-rendezvous": "the daemon at which the nodes of ddprun's jobs meet",
    "ddpctl": "what ddprun's jobs do, their workers' logs, and what is wrong with a machine",
}
# ddprun's help is in two columns, flags in the first.
FLAG = re.compile(r"  (?:-(\w), )?--([a-z-]+)(?: (\S+))?(?:\s{2,}|\s*$)(.*)")
TEXT_COLUMN = 31
# ddpctl's help lists its verbs, each of which has a help of its own.
VERB = re.compile(r"^  ([a-z]+) {2,}\S", re.MULTILINE)


@dataclass
class Flag:
    letter: str
    name: str
    placeholder: str
    text: str

    def values(self):
        """The words its value is one of; none: anything."""
        words = self.placeholder.split("|")
        return words if all(re.fullmatch("[a-z]+", word) for word in words) else []

    def is_file(self):
        return self.placeholder in ("FILE", "DIR")


def output_of(folder, program, *words):
    environment = {"PATH": "/usr/bin:/bin"}
    if "QEMU_LD_PREFIX" in os.environ:  # For another processor (emulated.sh).
        environment["QEMU_LD_PREFIX"] = os.environ["QEMU_LD_PREFIX"]
    return subprocess.run([os.path.join(folder, program), *words], check=True, text=True,
                          stdout=subprocess.PIPE, env=environment).stdout


def help_of(folder, program, *verb):
    return output_of(folder, program, *verb, "--help")


def flags_of(text):
    flags = []
    for line in text.splitlines():
        match = FLAG.fullmatch(line)
        if match:
            flags.append(Flag(match[1] or "", match[2], match[3] or "", match[4].strip()))
        elif flags and line.startswith(" " * TEXT_COLUMN):
            flags[-1].text = (flags[-1].text + " " + line.strip()).strip()
    return flags


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


def bash(flags):
    words = " ".join(["--" + flag.name for flag in flags] +
                     ["-" + flag.letter for flag in flags if flag.letter])
    with_value = [flag for flag in flags if flag.placeholder]
    takes_value = "|".join(["--" + flag.name for flag in with_value] +
                           ["-" + flag.letter for flag in with_value if flag.letter])
    cases = []
    for flag in flags:
        names = "|".join(["--" + flag.name] + (["-" + flag.letter] if flag.letter else []))
        if flag.values():
            cases.append(f'        {names}) COMPREPLY=($(compgen -W "{" ".join(flag.values())}" -- '
                         '"$word")); return ;;')
        elif flag.is_file():
            cases.append(f"        {names}) compopt -o default; return ;;")
        elif flag.placeholder:
            cases.append(f"        {names}) return ;;")
    return f"""# bash completion for ddprun. Behind the program all is the program's.
_ddprun() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            {takes_value})
                [ "${{COMP_WORDS[i + 1]}}" != = ] || ((i++))
                ((i++))
                ;;
            -*) ;;
            *) compopt -o default; return ;;
        esac
    done
    if [ "$before" = = ] && [ "$COMP_CWORD" -ge 2 ]; then
        before=${{COMP_WORDS[COMP_CWORD - 2]}}
    elif [ "$word" = = ]; then
        word=
    fi
    case $before in
{chr(10).join(cases)}
    esac
    case $word in
        -*) COMPREPLY=($(compgen -W "{words}" -- "$word")) ;;
        *) compopt -o default ;;
    esac
}}
complete -F _ddprun ddprun ddprun-torchrun ddprun-launch
"""


def zsh(flags):
    def quoted(text):
        return re.sub(r"([\[\]:])", r"\\\1", text.replace("'", "'\\''"))

    lines = []
    for flag in flags:
        value = ""
        if flag.values():
            value = f":{flag.name}:({' '.join(flag.values())})"
        elif flag.placeholder:
            value = f":{quoted(flag.placeholder)}:{'_files' if flag.is_file() else ' '}"
        names = [f"--{flag.name}{'=' if flag.placeholder else ''}"]
        if flag.letter:
            names.append(f"-{flag.letter}{'+' if flag.placeholder else ''}")
        lines += [f"    '{name}[{quoted(flag.text)}]{value}' \\" for name in names]
    return ("#compdef ddprun ddprun-torchrun ddprun-launch\n"
            "# Behind the program all is the program's.\n"
            "_arguments -S \\\n" + "\n".join(lines) +
            "\n    '1:program:_files' \\\n    '*:: :_default'\n")


def fish(flags):
    def quoted(text):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = ["# fish completion for ddprun."]
    for program in ("ddprun", "ddprun-torchrun", "ddprun-launch"):
        for flag in flags:
            words = ["complete", "-c", program, "-l", flag.name]
            words += ["-s", flag.letter] if flag.letter else []
            if flag.values():
                words += ["-x", "-a", quoted(" ".join(flag.values()))]
            elif flag.placeholder:
                words += ["-r"] if flag.is_file() else ["-x"]
            lines.append(" ".join(words + ["-d", quoted(flag.text)]))
    return "\n".join(lines) + "\n"


def write(share, path, text):
    path = os.path.join(share, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    folder, share = sys.argv[1:]
    version = output_of(folder, "ddprun", "--version").split()[-1]
    flags = flags_of(help_of(folder, "ddprun"))
    for program in SUMMARIES:
        text = help_of(folder, program)
        verbs = {verb: help_of(folder, program, verb)
                 for verb in (VERB.findall(text) if program == "ddpctl" else [])}
        write(share, f"man/man1/{program}.1", man_page(program, text, version, verbs))
    write(share, "man/man1/ddprun-launch.1", ".so man1/ddprun.1\n")
    write(share, "bash-completion/completions/ddprun", bash(flags))
    write(share, "zsh/site-functions/_ddprun", zsh(flags))
    write(share, "fish/vendor_completions.d/ddprun.fish", fish(flags))
    return 0


if __name__ == "__main__":
    sys.exit(main())
