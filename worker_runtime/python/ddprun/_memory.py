"""How much memory this process may still take."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_CGROUPS = "/sys/fs/cgroup"


def available() -> int:
    """Bytes: what the kernel calls available, or what is left of a cgroup's limit if that is less.
    """
    return min([_meminfo("MemAvailable"), *_left_in_cgroups()])


def _meminfo(key: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0]) << 10
    return 1 << 62


def _left_in_cgroups() -> Iterator[int]:
    """This process's cgroup and those above it. Cached files give way, so they do not count."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            number, controllers, path = line.rstrip("\n").split(":", 2)
            if number == "0":
                names = (_CGROUPS, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                names = (_CGROUPS + "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                         "total_inactive_file")
            else:
                continue
            root, limit, used, cached = names
            folder = root + path.rstrip("/")
            while len(folder) >= len(root):
                yield from _left(folder, limit, used, cached)
                folder = os.path.dirname(folder)


def _left(folder: str, limit: str, used: str, cached: str) -> Iterator[int]:
    try:
        most = _read(folder, limit).strip()
        if most.isdigit():
            inactive = dict(line.split() for line in _read(folder, "memory.stat").splitlines())
            yield int(most) - int(_read(folder, used)) + int(inactive.get(cached, 0))
    except OSError:
        pass  # a level without a limit, or one that this process may not see


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()
