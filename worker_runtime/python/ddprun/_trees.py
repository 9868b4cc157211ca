"""State without tensors as JSON text, exactly; tensors in it are named."""

from __future__ import annotations

import json
import struct
from collections import Counter, OrderedDict
from typing import Any

from ddprun._library import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Containers in each other.
_DEPTH_MAX = 64
#: Marks an object that stands for something that JSON lacks: {"$tuple": [1, 2]}.
_MARK = "$"


def encode(name: str, node: Any, put_tensor: Callable[[str, Any], str | None]) -> str:
    """`node` as JSON text. put_tensor(name, leaf) keeps a tensor or an array under that name and
    returns its kind; for other leaves it returns None.

    Raises CheckpointError, which names the place and the type, for what is no state.
    """
    return json.dumps(_encoded(name, node, put_tensor, 0), allow_nan=False,
                      separators=(",", ":"))


def decode(text: str, get_tensor: Callable[[str, str], Any]) -> Any:
    """The inverse; get_tensor(kind, name) gives the tensors. Raises CheckpointError."""
    try:
        return _decoded(json.loads(text), get_tensor)
    except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
        raise CheckpointError(f"{text[:100]} is no value of a checkpoint: {error}") from None


def ranks_of(texts: list[str | None]) -> str:
    """One value for texts that differ from rank to rank."""
    return json.dumps({"$ranks": texts}, separators=(",", ":"))


def of_rank(text: str, rank: int, world_size: int) -> tuple[str | None, bool]:
    """The text of a rank, and whether it is the rank's own: rank 0's in another world size."""
    if not text.startswith('{"$ranks":'):
        return text, True
    try:
        texts = json.loads(text)["$ranks"]
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{text[:100]} is no value of a checkpoint: {error}") from None
    if not isinstance(texts, list) or not texts or not all(
            own is None or isinstance(own, str) for own in texts):
        raise CheckpointError(f"{text[:100]} is no value of a checkpoint: it has no text by rank")
    is_own = len(texts) == world_size
    return texts[rank if is_own else 0], is_own


def _encoded(name: str, node: Any, put_tensor: Callable[[str, Any], str | None],
             depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise CheckpointError(f"{name} is nested deeper than {_DEPTH_MAX}")
    kind = type(node)
    if node is None or kind in (bool, int, str):
        return node
    if kind is float:
        if node - node == 0:
            return node
        return {"$float": struct.pack(">d", node).hex()}

    def inner(key: Any, child: Any) -> Any:
        return _encoded(f"{name}.{key}", child, put_tensor, depth + 1)

    if kind in (list, tuple):
        items = [inner(index, child) for index, child in enumerate(node)]
        return items if kind is list else {"$tuple": items}
    if kind in (dict, OrderedDict):
        if all(type(key) is str and not key.startswith(_MARK) for key in node):
            return {key: inner(key, child) for key, child in node.items()}
        return {"$dict": [[inner("key", key), inner(key, child)] for key, child in node.items()]}
    if kind is Counter:
        return {"$counter": [[inner("key", key), inner(key, child)] for key, child in node.items()]}
    kept = put_tensor(name, node)
    if kept is None:
        raise CheckpointError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, which no checkpoint holds: give "
            "tensors, arrays, None, bool, int, float, str, list, tuple, dict, or what has "
            "state_dict() and load_state_dict()")
    return {"$" + kept: name}


def _decoded(node: Any, get_tensor: Callable[[str, str], Any]) -> Any:
    if isinstance(node, list):
        return [_decoded(child, get_tensor) for child in node]
    if not isinstance(node, dict):
        return node
    if len(node) != 1 or not next(iter(node)).startswith(_MARK):
        return {key: _decoded(child, get_tensor) for key, child in node.items()}
    (mark, inside), = node.items()
    if mark == "$float":
        return struct.unpack(">d", bytes.fromhex(inside))[0]
    if mark == "$tuple":
        return tuple(_decoded(child, get_tensor) for child in inside)
    if mark in ("$dict", "$counter"):
        pairs = {_decoded(key, get_tensor): _decoded(child, get_tensor) for key, child in inside}
        return pairs if mark == "$dict" else Counter(pairs)
    if mark not in ("$tensor", "$array", "$scalar"):
        raise CheckpointError(f"{mark} stands for nothing that a checkpoint holds")
    return get_tensor(mark[1:], inside)
