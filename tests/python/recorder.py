"""A program's view of its process, as plain values: a cold start and a warm one find the same.

For tests, which lay it beside a program or install it. seen() is asked at a moment; note_imports()
has each import of the process noted, with what it can read.
"""

import os
import sys

# The lock by which a death is noticed, and a standby's socket, need these in both lives.
OF_DDPRUN = ("/_ctypes.", "/_socket.", "/libffi.")
# Variables of which a standby knows nothing, or that differ in any two runs.
OF_GENERATION = ("RANK", "WORLD_SIZE", "MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC_", "DDPRUN_")
noted = {}  # name of a module: what its imports could read, each once


def _names(finders):
    return [getattr(one, "__name__", type(one).__name__) for one in finders]


def state(hidden):
    """Returns all that an import can read, but for modules; without variables that begin with one
    of `hidden`."""
    warnings = sys.modules.get("warnings") or sys.modules["_warnings"]
    # Not as a library would go through them, which a standby notices.
    variables = map(os.fsdecode, dict.keys(getattr(os.environ, "_data", os.environ)))
    order = [key for key in variables if not key.startswith(hidden)]
    return {
        "path": sys.path[:], "environment": {key: os.environ[key] for key in sorted(order)},
        "order": order, "finders": _names(sys.meta_path), "hooks": _names(sys.path_hooks),
        "filters": [str(one) for one in warnings.filters],
        "cpus": sorted(os.sched_getaffinity(0)), "dlopen": sys.getdlopenflags(),
        "folder": os.getcwd(), "recursion": sys.getrecursionlimit(), "argv": sys.argv[1:],
    }


def seen(hidden):
    """All of it: also modules with their origins, threads, limits and mapped libraries."""
    with open("/proc/self/maps", "rb") as maps:
        mapped = {line.rstrip(b"\n").split(None, 5)[5].decode() for line in maps if b".so" in line}
    with open("/proc/self/limits", encoding="utf-8") as file:
        limits = file.read()
    with open("/proc/self/status", encoding="utf-8") as file:
        fields = dict(line.split(":\t", 1) for line in file)
    return {
        **state(hidden), "flags": str(sys.flags), "limits": limits, "umask": fields["Umask"],
        # Two of them are the C library's own, once there has been a thread.
        "signals": [hex(int(fields[name], 16) & ~(3 << 31))
                    for name in ("SigPnd", "SigBlk", "SigIgn", "SigCgt")],
        "threads": len(os.listdir("/proc/self/task")),
        "mapped": sorted(path for path in mapped if not any(one in path for one in OF_DDPRUN)),
        "sleep": __import__("time").sleep.__name__,
        "modules": {name: str(getattr(getattr(one, "__spec__", None), "origin", None))
                    for name, one in sorted(sys.modules.items())},
        "caches": sorted(sys.path_importer_cache),
    }


def note_imports(hidden):
    """From now on, in `noted`. Imports nothing, and keeps nothing open."""
    def note(event, arguments):
        if event == "import":
            found = state(hidden)
            states = noted.setdefault(arguments[0], [])
            if found not in states:
                states.append(found)

    sys.addaudithook(note)
