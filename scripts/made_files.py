"""The common part of the scripts that make files from sources: print, --write and --check."""

import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


class Unreadable(Exception):
    """Something in a source, or in a file to be made, that a script does not understand."""


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def main(script, source, make):
    """Returns the exit status of scripts/`script`.py.

    make() returns {path: text} of the files that are made from `source`, or raises Unreadable.
    """
    mode = sys.argv[1] if len(sys.argv) == 2 else ""
    if len(sys.argv) > 2 or mode not in ("", "--write", "--check"):
        print(f"usage: scripts/{script}.py [--write | --check]", file=sys.stderr)
        return 2
    try:
        made = make()
    except Unreadable as error:
        print(f"{script}: {source}: {error}", file=sys.stderr)
        return 1
    older = []
    for path, text in made.items():
        if mode == "--write":
            with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
                file.write(text)
        elif not mode:
            print(text, end="")
        elif not os.path.exists(os.path.join(ROOT, path)) or read(path) != text:
            older.append(path)
    for path in older:
        print(f"{script}: {path} is older than {source}; run scripts/{script}.py --write",
              file=sys.stderr)
    return 1 if older else 0
