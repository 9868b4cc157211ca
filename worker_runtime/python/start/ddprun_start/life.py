"""The death of this process is known at once: it holds the lock of its slot in the agent's page.

hold() is called while `site` runs, in a process that leads its session, as workers do.
The lock is a robust mutex of glibc: the kernel marks it when the process dies, and wakes the agent,
before it takes down the process's memory. No signal handler is set. docs/containment.md has more.
"""

from __future__ import annotations

import os
import sys

# The number of a member is its index in a view of its type.
# Made by scripts/page_layout.py --write from worker_page.hpp:
_MAGIC = 0x4547415072706464
_VERSION_MIN = 3
_HEADER_BYTES = 64
_HEADER_MAGIC = 0
_HEADER_VERSION = 2
_HEADER_SLOT_COUNT = 3
_HEADER_BELL = 11
_SLOT_BYTES = 128
_SLOT_LIFE_LOCK = 64
# End of what is made.
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAKE = 1
_EVERYBODY = 0x7FFFFFFF
_PROT_READ_WRITE = 3
_MAP_SHARED = 1
_EOWNERDEAD = 130


def hold() -> None:
    """Takes the lock, if this Python, its C library and the page allow. Leaves no module behind."""
    had_ctypes = "_ctypes" in sys.modules
    try:
        _hold(os.environ["DDPRUN_PAGE"], int(os.environ["DDPRUN_SLOT"]))
    except Exception:
        pass  # The agent then learns of the death from its keeper, when the process is gone.
    if not had_ctypes:
        sys.modules.pop("_ctypes", None)


def _hold(path: str, slot: int) -> None:
    futex = _SYS_FUTEX[os.uname().machine]
    page = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(page).st_size
        header = memoryview(os.pread(page, _HEADER_BYTES, 0))
        words = header.cast("I")
        slots = words[_HEADER_SLOT_COUNT]
        if (header.cast("Q")[_HEADER_MAGIC] != _MAGIC or words[_HEADER_VERSION] < _VERSION_MIN or
                not 0 <= slot < slots or size < _HEADER_BYTES + slots * _SLOT_BYTES):
            return
        # The package ctypes would take longer, and stay.
        import _ctypes

        class Pointer(_ctypes._SimpleCData):  # type: ignore
            _type_ = "P"

        class Word(_ctypes._SimpleCData):  # type: ignore
            _type_ = "l"

        class Function(_ctypes.CFuncPtr):
            _flags_ = _ctypes.FUNCFLAG_CDECL
            _restype_ = Word

        library = _ctypes.dlopen(None, 0)  # type: ignore

        def function(name: str) -> Function:
            return Function(_ctypes.dlsym(library, name))

        function("gnu_get_libc_version")  # The lock is one of that library.
        # It stays mapped for as long as this process lives.
        memory = function("mmap")(Pointer(), Word(size), Word(_PROT_READ_WRITE), Word(_MAP_SHARED),
                                  Word(page), Word(0))
    finally:
        os.close(page)
    if memory == -1:
        return
    lock = Pointer(memory + _HEADER_BYTES + slot * _SLOT_BYTES + _SLOT_LIFE_LOCK)
    taken = function("pthread_mutex_trylock")(lock) & 0xFFFFFFFF
    # It died when this process became another program, which is what runs here now.
    if taken == 0 or taken == _EOWNERDEAD and (
            function("pthread_mutex_consistent")(lock) & 0xFFFFFFFF) == 0:
        # The agent waits for the lock's word, too: the bell's value need not change.
        function("syscall")(Word(futex), Pointer(memory + 4 * _HEADER_BELL), Word(_FUTEX_WAKE),
                            Word(_EVERYBODY))
