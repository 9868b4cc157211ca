"""The state of a training: its models, optimizers and other things as named tensors and texts."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import _get_fqns

from ddprun import _random, _trees
from ddprun._library import CheckpointError
from ddprun._tensors import FIRST, SHARED, ArrayItem, Item, is_array, is_dtensor, \
    kind_of_array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


#: By module, {its own name of an entry: the plain one}.
_plain_names: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


class Snapshot:
    """References to a rank's tensors, and its values as JSON text; both by name."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.values: dict[str, str] = {}
        self.random: dict[str, Any] = {}

    def add(self, item: Item) -> None:
        """Raises CheckpointError if the name is taken."""
        if item.name in self.items:
            raise CheckpointError(f"two tensors of the state have the name {item.name}")
        self.items[item.name] = item

    def add_node(self, name: str, node: Any, whose: str, is_late: bool) -> None:
        """A tensor under its name; anything else as text, with the tensors in it named."""
        def put(inner: str, leaf: Any) -> str | None:
            if isinstance(leaf, torch.Tensor):
                self.add(Item(inner, leaf, whose, is_late))
                return "tensor"
            if is_array(leaf):
                self.add(ArrayItem(inner, leaf))
                return kind_of_array(leaf)
            return None

        if isinstance(node, torch.Tensor):
            put(name, node)
        else:
            self.values[name] = _trees.encode(name, node, put)


def take(things: Mapping[str, Any], with_random: bool) -> Snapshot:
    """The state of `things` as it is now. Raises CheckpointError for what no checkpoint holds."""
    snapshot = Snapshot()
    stepped = {id(parameter) for thing in things.values() if is_optimizer(thing)
               for parameter in parameters_of(thing)}
    for name, thing in things.items():
        _check_name(name)
        if is_module(thing):
            check_module(name, thing)
            _take_module(name, thing, stepped, snapshot)
        elif is_optimizer(thing):
            _take_optimizer(name, thing, things, snapshot)
        elif is_stateful(thing):
            _take_tree(name, thing.state_dict(), snapshot)
        else:
            snapshot.add_node(name, thing, FIRST, False)
    if with_random:
        snapshot.random = _random.states()
    return snapshot


def is_module(thing: Any) -> bool:
    """Whether it has parameters with names."""
    return isinstance(thing, torch.nn.Module)


def check_module(name: str, module: Any) -> None:
    """Raises CheckpointError if FullyShardedDataParallel wraps a part of it."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    for inner, part in module.named_modules(prefix=name) if fsdp is not None else ():
        if isinstance(part, fsdp.FullyShardedDataParallel):
            raise CheckpointError(f"{inner} is a FullyShardedDataParallel, whose state no "
                                  "checkpoint holds: shard the model with fully_shard()")


def is_optimizer(thing: Any) -> bool:
    """Whether it has state by parameter."""
    return isinstance(thing, torch.optim.Optimizer)


def is_stateful(thing: Any) -> bool:
    """Whether it saves and loads its own state."""
    return callable(getattr(thing, "state_dict", None)) and callable(
        getattr(thing, "load_state_dict", None))


def model_tensors(module: Any) -> dict[str, Any]:
    """Live tensors, and other entries of the module's state, by name without wrappers' prefixes.

    The same as get_model_state_dict(), which looks each name up anew: 0.1 ms a tensor.
    """
    return {plain_name(module, key): entry for key, entry in module.state_dict().items()}


def plain_name(module: Any, key: str) -> str:
    """The name of an entry without the prefixes of DDP, torch.compile and such."""
    names = _plain_names.setdefault(module, {})
    if key not in names:
        names[key], = _get_fqns(module, key)
    return names[key]


def names_of_parameters(things: Mapping[str, Any]) -> dict[int, str]:
    """By id; with several models a name begins with its model's."""
    modules = {name: thing for name, thing in things.items() if is_module(thing)}
    names: dict[int, str] = {}
    for name, module in modules.items():
        prefix = "" if len(modules) == 1 else name + "."
        for key, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), prefix + plain_name(module, key))
    return names


def parameters_of(optimizer: Any) -> Iterator[Any]:
    """All that it steps, group by group."""
    for group in optimizer.param_groups:
        yield from group["params"]


def named_parameters_of(name: str, optimizer: Any,
                        things: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that it steps, by name; by number if no model is among `things`."""
    if not any(map(is_module, things.values())):
        return {str(index): parameter
                for index, parameter in enumerate(parameters_of(optimizer))}
    names = names_of_parameters(things)
    found = {}
    for parameter in parameters_of(optimizer):
        if id(parameter) not in names:
            raise CheckpointError(
                f"{name} steps a parameter of shape {list(parameter.shape)} that no model of this "
                "call has: give its model, too, and make the optimizer after the model is wrapped")
        found[names[id(parameter)]] = parameter
    return found


def state_of(optimizer: Any) -> Any:
    """The state by parameter: of ZeroRedundancyOptimizer that of this rank's share."""
    inner = getattr(optimizer, "optim", None)
    is_zero = type(optimizer).__name__ == "ZeroRedundancyOptimizer"
    return inner.state if is_zero and inner is not None else optimizer.state


def groups_of(optimizer: Any, names: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Its groups with names in place of parameters."""
    name_of = {id(parameter): name for name, parameter in names.items()}
    return [{**group, "params": [name_of[id(parameter)] for parameter in group["params"]]}
            for group in optimizer.param_groups]


def _check_name(name: str) -> None:
    if not name or "." in name or name == "random":
        raise CheckpointError(f"{name!r} is no name for a part of the state: it has a dot, is "
                              "empty, or is `random`")


def _take_module(name: str, module: Any, stepped: set[int], snapshot: Snapshot) -> None:
    own = set(map(id, module.parameters()))
    for key, tensor in _with_parameters(module).items():
        is_parameter = id(tensor) in own
        # Only an optimizer of the call waits for copies.
        is_late = is_parameter and id(tensor) in stepped
        snapshot.add_node(f"{name}.{key}", tensor, SHARED if is_parameter else FIRST, is_late)


def _with_parameters(module: Any) -> dict[str, Any]:
    """As model_tensors(), but parameters are the module's own objects."""
    entries = model_tensors(module)
    for key, parameter in module.named_parameters(remove_duplicate=False):
        name = plain_name(module, key)
        entry = entries.get(name)
        # A module that saves something else than its parameter keeps that.
        if isinstance(entry, torch.Tensor) and _is_same(entry, parameter):
            entries[name] = parameter
    return entries


def _is_same(entry: Any, parameter: Any) -> bool:
    """Whether both are the same memory."""
    if entry.shape != parameter.shape or entry.dtype != parameter.dtype:
        return False
    if is_dtensor(entry) and is_dtensor(parameter):
        with torch.no_grad():
            return bool(entry.to_local().data_ptr() == parameter.to_local().data_ptr())
    return bool(entry.data_ptr() == parameter.data_ptr())


def _take_optimizer(name: str, optimizer: Any, things: Mapping[str, Any],
                    snapshot: Snapshot) -> None:
    parameters = named_parameters_of(name, optimizer, things)
    snapshot.add_node(f"{name}.param_groups", groups_of(optimizer, parameters), FIRST, False)
    state = state_of(optimizer)
    for key, parameter in parameters.items():
        # A look at a defaultdict would add the parameter.
        for field, node in state[parameter].items() if parameter in state else ():
            snapshot.add_node(f"{name}.{key}.{field}", node, SHARED, True)


def _take_tree(name: str, tree: Any, snapshot: Snapshot) -> None:
    is_flat = isinstance(tree, dict) and tree and all(
        type(key) is str and not key.startswith("$") for key in tree)
    if not is_flat:
        snapshot.add_node(name, tree, FIRST, False)
        return
    for key, node in tree.items():
        snapshot.add_node(f"{name}.{key}", node, FIRST, False)
