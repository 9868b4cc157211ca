#!/usr/bin/env python3
"""The constants by which Python uses the page that workers share with their agent.

usage: scripts/page_layout.py [--write | --check]

The constants are made from worker_page.hpp, into a block of each Python file of FILES. Without an
option the script prints the files; --write puts them where they belong; --check exits 1 if a block
is older than the header. A block holds the constants that its file uses:

_VERSION_MIN   kWorkerPageVersionMin, and so on
_PACE_BYTES    sizeof(WorkerPagePace)
_PACE_STEP_NS  the index of WorkerPagePace::step_ns in a memoryview of its type
"""

import re
import sys

from made_files import Unreadable, main, read

SOURCE = "worker_runtime/contract/worker_page.hpp"
FILES = ("worker_runtime/python/ddprun/_page.py",
         "worker_runtime/python/start/ddprun_start/life.py")
SIZES = {"std::uint32_t": 4, "std::uint64_t": 8, "std::int64_t": 8, "double": 8, "FatalSignal": 8,
         "std::byte": 1, "char": 1}
NUMBER = re.compile(r"constexpr std::\w+ (k\w+) = (\w+);")
STRUCT = re.compile(r"struct alignas\(64\) WorkerPage(\w+) \{\n(.*?)\n\};", re.S)
MEMBER = re.compile(r"(?:alignas\((\d+)\) )?(?:std::array<)?(?:std::atomic<)?([\w:]+)>?"
                    r"(?:, (\w+)>)? (\w+)(?: = .+|\{.*\})")
BLOCK = re.compile(r"(?<=\n# Made by scripts/page_layout.py --write from worker_page.hpp:\n).*?"
                   r"(?=# End of what is made.\n)", re.S)


def read_layout(header):
    """({name: number as written}, {struct: (bytes, {member: (offset, bytes of its type)})})"""
    numbers = dict(NUMBER.findall(header))
    structs = {}
    for struct, body in STRUCT.findall(header):
        members, end = {}, 0
        for line in re.sub(r"//[^\n]*", "", body).split(";")[:-1]:
            member = MEMBER.fullmatch(line.strip())
            if not member or member[2] not in SIZES:
                raise Unreadable(f"WorkerPage{struct}: `{line.strip()}` is no member of known type")
            unit = SIZES[member[2]]
            align = int(member[1] or unit)
            begin = (end + align - 1) // align * align
            members[member[4]] = (begin, unit)
            count = member[3] or "1"
            end = begin + unit * int(numbers.get(count, count))
        size = (end + 63) // 64 * 64
        # The compiler holds its own size to the assertion, so both count alike.
        if not re.search(rf"sizeof\(WorkerPage{struct}\) == {size}\b", header):
            raise Unreadable(f"no static_assert says that WorkerPage{struct} has {size} bytes")
        structs[struct] = (size, members)
    return numbers, structs


def constants(header):
    """{name in Python: number}, in the order of the header."""
    numbers, structs = read_layout(header)
    names = {re.sub("(?=[A-Z])", "_", name[1:].removeprefix("WorkerPage")).upper(): number
             for name, number in numbers.items()}
    for struct, (size, members) in structs.items():
        names[f"_{struct.upper()}_BYTES"] = size
        names.update((f"_{struct.upper()}_{member.upper()}", offset // unit)
                     for member, (offset, unit) in members.items())
    return names


def document(header, path, there):
    """The whole of the Python file at `path`: what is there, with the constants of `header`."""
    rest, count = BLOCK.subn("", there)
    if count != 1:
        raise Unreadable(f"{path} has {count} blocks for the constants, and needs one")
    names = constants(header)
    used = set(re.findall(r"\b_[A-Z][A-Z_]+\b", rest))
    unknown = used - names.keys() - set(re.findall(r"^(_[A-Z_]+) = ", rest, re.M))
    if unknown:
        raise Unreadable(f"{path} uses {sorted(unknown)[0]}, which the header does not have")
    block = "".join(f"{name} = {number}\n" for name, number in names.items() if name in used)
    return BLOCK.sub(block, there)


if __name__ == "__main__":
    sys.exit(main("page_layout", SOURCE, lambda: {
        path: document(read(SOURCE), path, read(path)) for path in FILES}))
