"""Shows what differs between two snapshots, each difference under the command that it is of.

usage: compare.py OUT_DIR OUT_DIR
"""

import difflib
import os
import sys


def files_in(folder):
    return {os.path.relpath(os.path.join(here, name), folder)
            for here, _, names in os.walk(folder) for name in names}


def blocks_of(path):
    """The lines of each command, which follow a line with `## `; the number tells equal ones
    apart."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    blocks, own = {}, []
    blocks["", 0] = own
    for line in lines:
        if line.startswith("## "):
            number = sum(title == line for title, _ in blocks)
            own = blocks[line, number] = []
        else:
            own.append(line)
    return blocks


def differences(first, second):
    """Lines to show, of two files."""
    before, after = blocks_of(first), blocks_of(second)
    for block in dict.fromkeys([*before, *after]):
        changes = list(difflib.unified_diff(before.get(block, []), after.get(block, []), n=1,
                                            lineterm=""))[2:]
        if changes:
            if block[0]:
                yield block[0]
            yield from ("  " + line for line in changes if not line.startswith("@@"))


def main():
    first, second = sys.argv[1:]
    for folder in (first, second):
        if not os.path.isdir(folder):
            print(f"golden: {folder} is no folder", file=sys.stderr)
            return 2
    names = [files_in(folder) for folder in (first, second)]
    differing = 0
    for name in sorted(names[0] | names[1]):
        if name not in names[0] or name not in names[1]:
            shown = [f"only in {first if name in names[0] else second}"]
        else:
            shown = list(differences(os.path.join(first, name), os.path.join(second, name)))
        if shown:
            differing += 1
            print(name, *shown, "", sep="\n")
    print(f"golden: {differing} of {len(names[0] | names[1])} files differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
