"""OpenBLAS starts its threads when the worker has its place, not while numpy is imported.

OpenBLAS, which numpy and scipy bring, makes a pool of threads when it is loaded: as many as
the first of VARIABLES says that names a number, at most one per CPU. A standby must have one thread
only. So it has OpenBLAS make none, and in the worker asks for as many as a cold one has:
openblas_set_num_threads(), https://github.com/OpenMathLib/OpenBLAS.
"""

from __future__ import annotations

import os

from ddprun_start.state import c_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_VARIABLE = "OPENBLAS_NUM_THREADS"
VARIABLES = (_VARIABLE, "OPENBLAS_DEFAULT_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
# Their names in the builds of distributions and of numpy's and scipy's wheels.
_NAMES = tuple((f"{prefix}openblas_get_num_procs{suffix}",
                f"{prefix}openblas_set_num_threads{suffix}")
               for prefix in ("", "scipy_") for suffix in ("", "64_"))


def hold_back() -> None:
    """From now on OpenBLAS starts no threads when it is loaded. os.environ does not show it."""
    os.putenv(_VARIABLE, "1")


def end_hold() -> None:
    """From now on OpenBLAS starts its threads when it is loaded."""
    if _VARIABLE in os.environ:
        os.putenv(_VARIABLE, os.environ[_VARIABLE])
    else:
        os.unsetenv(_VARIABLE)


def starter(libraries: set[str]) -> Callable[[], None] | None:
    """Returns a function that starts the threads of each OpenBLAS among these mapped libraries.
    Returns None if there is no OpenBLAS.

    It starts as many as OpenBLAS would have by itself, in the environment at the time of the call.
    """
    paths = sorted(path for path in libraries if "openblas" in path)
    if not paths:
        return None
    found = [functions for functions in map(_functions, paths) if functions is not None]

    def start() -> None:
        for procs, set_threads in found:
            set_threads(_wanted(procs()))

    return start


def _functions(path: str) -> tuple[Any, Any] | None:
    for names in _NAMES:
        procs, set_threads = (c_function(path, name) for name in names)
        if procs is not None and set_threads is not None:
            return procs, set_threads
    return None


def _wanted(procs: int) -> int:
    for variable in VARIABLES:
        digits = ""
        for character in os.environ.get(variable, "").lstrip():
            if not ("0" <= character <= "9"):
                break
            digits += character
        if digits and int(digits) > 0:
            return min(int(digits), procs)
    return procs
