"""The random states of a rank as bytes: torch's, Python's and numpy's."""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from typing import Any

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PYTHON = struct.Struct("<625I?d")
_NUMPY = struct.Struct("<624Iiid")

#: Names are as the C++ runtime has them, which saves random.cpu and random.cuda.
PREFIX = "random."


def states() -> dict[str, Any]:
    """The state of each generator, by its name in a checkpoint, as uint8."""
    found = {"random.cpu": torch.get_rng_state(), "random.python": _tensor(_python_state())}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["random.cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        found["random.numpy"] = _tensor(_numpy_state())
    return found


def size_of(name: str) -> int | None:
    """Bytes of a state that this process can restore, if that is known."""
    if name == "random.cpu":
        return int(torch.get_rng_state().numel())
    return {"random.python": _PYTHON.size, "random.numpy": _NUMPY.size}.get(name)


def restorer(name: str, saved: Any, rank: int, world_size: int) -> Callable[[], None] | None:
    """How to restore a state of `saved` (uint8, [world that saved, n]), if it can be here.

    In another world size each rank gets a state of its own that follows from rank 0's.
    """
    setters = {"random.cpu": (torch.set_rng_state, torch.manual_seed),
               "random.python": (_set_python_state, random.seed),
               "random.cuda": (torch.cuda.set_rng_state, torch.cuda.manual_seed),
               "random.numpy": (_set_numpy_state, _seed_numpy)}
    is_here = name in setters and (name != "random.cuda" or torch.cuda.is_available())
    if not is_here or name == "random.numpy" and "numpy" not in sys.modules:
        return None
    set_state, seed = setters[name]
    if saved.shape[0] == world_size:
        return lambda: set_state(saved[rank].clone())
    digest = hashlib.blake2b(bytes(saved[0].tolist()), digest_size=8, key=b"rank %d" % rank)
    return lambda: seed(int.from_bytes(digest.digest(), "little") >> 1)


def _tensor(state: bytes) -> Any:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _python_state() -> bytes:
    _, numbers, gauss = random.getstate()
    return _PYTHON.pack(*numbers, gauss is not None, gauss or 0.0)


def _set_python_state(state: Any) -> None:
    *numbers, has_gauss, gauss = _PYTHON.unpack(bytes(state.tolist()))
    random.setstate((3, tuple(numbers), gauss if has_gauss else None))


def _numpy_state() -> bytes:
    import numpy

    _, numbers, position, has_gauss, gauss = numpy.random.get_state()
    return _NUMPY.pack(*numbers, position, has_gauss, gauss)


def _set_numpy_state(state: Any) -> None:
    import numpy

    *numbers, position, has_gauss, gauss = _NUMPY.unpack(bytes(state.tolist()))
    keys = numpy.array(numbers, dtype="uint32")
    numpy.random.set_state(("MT19937", keys, position, has_gauss, gauss))


def _seed_numpy(seed: int) -> None:
    import numpy

    numpy.random.seed(seed & 0xFFFFFFFF)
