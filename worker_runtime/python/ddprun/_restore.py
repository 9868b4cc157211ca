"""How the state of a training becomes that of a checkpoint: all is compared, then changed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from ddprun import _random, _states, _trees
from ddprun._library import CheckpointError, Stored
from ddprun._tensors import box_of, dtype_of, is_array, is_dtensor, read, torch_dtype, whole, \
    whole_array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Source:
    """The tensors and texts of an open checkpoint, by name, and which of them are used."""

    def __init__(self, tensors: Mapping[str, Stored], values: Mapping[str, str],
                 rename: Callable[[str], str] | None, rank: int, world_size: int) -> None:
        """Raises CheckpointError if `rename` gives two of them one name."""
        self.tensors = _renamed(tensors, rename)
        self.used: set[str] = set()
        self.foreign: list[str] = []  # values of each rank of another world
        self.values: dict[str, str] = {}
        for name, text in _renamed(values, rename).items():
            own, is_own = _trees.of_rank(text, rank, world_size)
            if not is_own:
                self.foreign.append(name)
            if own is not None:
                self.values[name] = own
        self._rename = rename

    def node(self, name: str) -> Any:
        """The value of that name, with the tensors in it."""
        self.used.add(name)
        return _trees.decode(self.values[name], self._tensor)

    def below(self, name: str) -> list[str]:
        """Names of tensors and values that begin with `name` and a dot."""
        prefix = name + "."
        return sorted(key for key in {*self.tensors, *self.values} if key.startswith(prefix))

    def unused(self) -> list[str]:
        """Names that nobody has asked for; values without a dot are the program's to take."""
        return sorted(name for name in {*self.tensors, *self.values} - self.used
                      if name in self.tensors or "." in name)

    def renamed(self, name: str) -> str:
        """The program's name of a stored one."""
        return self._rename(name) if self._rename else name

    def _tensor(self, kind: str, name: str) -> Any:
        name = self.renamed(name)
        stored = self.tensors.get(name)
        if stored is None:
            raise CheckpointError(f"tensor {name} is missing")
        self.used.add(name)
        if kind == "tensor":
            return whole(stored)
        return whole_array(stored) if kind == "array" else whole_array(stored)[()]


class Plan:
    """The changes to be made, and the problems that speak against them."""

    def __init__(self, source: Source, rank: int, world_size: int) -> None:
        self.source = source
        self.problems: list[str] = []  # these things do not fit
        self.new: list[str] = []  # the program has them, the checkpoint does not
        self._loads: list[Callable[[], None]] = []  # may fail
        self._copies: list[Callable[[], None]] = []
        self._rank, self._world_size = rank, world_size

    def add(self, things: Mapping[str, Any], with_random: bool) -> None:
        """Compares all of `things`; changes nothing."""
        for name, thing in things.items():
            if _states.is_module(thing):
                self._add_module(name, thing)
            elif _states.is_optimizer(thing):
                self._add_optimizer(name, thing, things)
            elif _states.is_stateful(thing):
                self._add_stateful(name, thing)
            elif isinstance(thing, torch.Tensor):
                self._add_tensor(name, thing)
            elif is_array(thing) and thing.shape:
                self._add_array(name, thing)
        for name in [name for name in self.source.tensors if name.startswith(_random.PREFIX)]:
            self.source.used.add(name)
            if with_random:
                self._add_random(name)

    def carry_out(self) -> None:
        """Changes the program's state. Raises what a load_state_dict() raises, before tensors of
        models and optimizers are changed."""
        for load in self._loads:
            load()
        with torch.no_grad():
            for copy in self._copies:
                copy()

    def _add_module(self, name: str, module: Any) -> None:
        _states.check_module(name, module)
        live = {parameter.data_ptr() for parameter in _memory_of(module)}
        rest: dict[str, Any] = {}
        for key, tensor in _states.model_tensors(module).items():
            full = f"{name}.{key}"
            if not isinstance(tensor, torch.Tensor):
                if full in self.source.values:
                    rest[key] = self.source.node(full)
                else:
                    self.new.append(full)
                continue
            local, _, _ = box_of(full, tensor)
            if local.data_ptr() not in live and local.numel():
                # Not the memory of the module: it takes a copy.
                tensor = rest[key] = tensor.clone()
            self._add_tensor(full, tensor)
        if rest:
            self._copies.append(lambda: _set_rest(module, rest))

    def _add_tensor(self, name: str, tensor: Any) -> None:
        stored = self.source.tensors.get(name)
        if stored is None:
            self.new.append(name)
            return
        self.source.used.add(name)
        local, shape, offsets = box_of(name, tensor)
        if self._fits(name, stored, dtype_of(name, local), shape):
            self._copies.append(lambda: read(stored, local, offsets))

    def _fits(self, name: str, stored: Stored, dtype: str, shape: list[int]) -> bool:
        if stored.dtype == dtype and list(stored.shape) == list(shape):
            return True
        self.problems.append(f"{name} is {stored.dtype} {list(stored.shape)}, this program's is "
                             f"{dtype} {list(shape)}")
        return False

    def _add_array(self, name: str, array: Any) -> None:
        stored = self.source.tensors.get(name)
        if stored is None or name not in self.source.values:
            self.new.append(name)
            return
        saved = self.source.node(name)
        if array.shape != saved.shape or array.dtype != saved.dtype:
            self.problems.append(f"{name} is {saved.dtype} {list(saved.shape)}, this program's is "
                                 f"{array.dtype} {list(array.shape)}")
            return
        self._copies.append(lambda: array.__setitem__(Ellipsis, saved))

    def _add_stateful(self, name: str, thing: Any) -> None:
        try:
            if name in self.source.values:
                tree = self.source.node(name)
            else:
                tree = self._tree(name)
        except CheckpointError as error:
            self.problems.append(f"{name}: {error}")
            return
        if tree is None:
            self.new.append(name)
            return
        self._loads.append(lambda: thing.load_state_dict(tree))

    def _tree(self, name: str) -> dict[str, Any] | None:
        names = self.source.below(name)
        prefix = len(name) + 1
        tree = {full[prefix:]: self.source.node(full) for full in names
                if full in self.source.values}
        for full in names:
            if full in self.source.tensors and full not in self.source.used:
                self.source.used.add(full)
                tree[full[prefix:]] = whole(self.source.tensors[full])
        return tree if names else None

    def _add_optimizer(self, name: str, optimizer: Any, things: Mapping[str, Any]) -> None:
        parameters = _states.named_parameters_of(name, optimizer, things)
        groups_name = f"{name}.param_groups"
        if groups_name not in self.source.values:
            self.new.append(name)
            return
        saved = self._renamed_groups(name, self.source.node(groups_name))
        own = _states.groups_of(optimizer, parameters)
        if len(saved) != len(own):
            self.problems.append(f"{name} has {len(saved)} groups of parameters, this program's "
                                 f"has {len(own)}")
            return
        for group, saved_group, own_group in zip(optimizer.param_groups, saved, own):
            self.new += [f"{name}.{key}" for key in own_group["params"]
                         if key not in saved_group["params"]]
            self._copies.append(partial(_set_group, group, saved_group))
        state = _states.state_of(optimizer)
        is_own = _owned(optimizer)
        on_device = {id(parameter) for group in optimizer.param_groups
                     if group.get("capturable") or group.get("fused")
                     for parameter in group["params"]}
        saved_keys = {key for group in saved for key in group["params"]}
        fields = self._fields(name, saved_keys)
        for key in sorted(parameters.keys() & saved_keys):
            parameter, names = parameters[key], fields.get(key, {})
            self.source.used.update(names.values())
            if is_own(parameter):
                self._copies.append(partial(_drop_state, state, parameter, names))
                self._add_state(parameter, state, names, id(parameter) in on_device)
            else:
                self._pass_over(names)

    def _renamed_groups(self, name: str, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """With the names that the program has for the parameters."""
        prefix = len(name) + 1
        return [{**group, "params": [self.source.renamed(f"{name}.{key}")[prefix:]
                                     for key in group["params"]]} for group in groups]

    def _fields(self, name: str, keys: set[str]) -> dict[str, dict[str, str]]:
        """{parameter: {field: full name}}: what is stored of each."""
        found: dict[str, dict[str, str]] = {}
        prefix = len(name) + 1
        for full in self.source.below(name):
            rest = full[prefix:]
            dot = rest.rfind(".")
            while dot > 0 and rest[:dot] not in keys:
                dot = rest.rfind(".", 0, dot)
            if dot > 0:
                found.setdefault(rest[:dot], {})[rest[dot + 1:]] = full
        return found

    def _pass_over(self, names: Mapping[str, str]) -> None:
        """State that another rank holds."""
        for full in names.values():
            if full in self.source.values:
                self.source.node(full)

    def _add_state(self, parameter: Any, state: Any, names: Mapping[str, str],
                   is_on_device: bool) -> None:
        own = state[parameter] if parameter in state else {}
        values = {field: full for field, full in names.items() if full in self.source.values}
        nodes = {field: self.source.node(full) for field, full in values.items()}
        # A tensor within a value comes with it.
        tensors = {field: full for field, full in names.items() if full in self.source.tensors
                   and not any(field.startswith(value + ".") for value in values)}
        for field, full in tensors.items():
            stored = self.source.tensors[full]
            live = own.get(field)
            if isinstance(live, torch.Tensor):
                self._add_tensor(full, live)
                continue
            self._copies.append(partial(_set_state, state, parameter, field, stored, is_on_device))
        if nodes:
            self._copies.append(lambda: state[parameter].update(nodes))

    def _add_random(self, name: str) -> None:
        stored = self.source.tensors[name]
        if stored.dtype != "U8" or len(stored.shape) != 2 or stored.shape[0] < 1:
            self.problems.append(f"{name} is {stored.dtype} {list(stored.shape)}, no random "
                                 "states by rank")
            return
        size = _random.size_of(name)
        if size is not None and stored.shape[1] != size:
            self.problems.append(f"{name} is {stored.dtype} {list(stored.shape)}, states of this "
                                 f"program have {size} bytes")
            return
        restore = _random.restorer(name, whole(stored), self._rank, self._world_size)
        if restore is not None:
            self._copies.append(restore)


def _renamed(named: Mapping[str, Any], rename: Callable[[str], str] | None) -> dict[str, Any]:
    if rename is None:
        return dict(named)
    found: dict[str, Any] = {}
    for name, thing in named.items():
        new = rename(name)
        if new in found:
            raise CheckpointError(f"rename gives two of the stored names the new name {new}")
        found[new] = thing
    return found


def _memory_of(module: Any) -> list[Any]:
    tensors = [*module.parameters(), *module.buffers()]
    return [tensor.to_local() if is_dtensor(tensor) else tensor for tensor in tensors]


def _set_rest(module: Any, rest: dict[str, Any]) -> None:
    set_model_state_dict(module, rest, options=StateDictOptions(strict=False))


def _set_group(group: dict[str, Any], saved: Mapping[str, Any]) -> None:
    for key, value in saved.items():
        if key == "params":
            continue
        if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
            group[key].copy_(value)
        else:
            group[key] = value


def _owned(optimizer: Any) -> Callable[[Any], bool]:
    """Whether this rank has a parameter's state: all have, but for ZeroRedundancyOptimizer."""
    if _states.state_of(optimizer) is optimizer.state:
        return lambda parameter: True
    own = {id(parameter) for group in optimizer.optim.param_groups
           for parameter in group["params"]}
    return lambda parameter: id(parameter) in own


def _drop_state(state: Any, parameter: Any, fields: Mapping[str, str]) -> None:
    """Later than the checkpoint, the optimizer may have state that it had not then."""
    own = state.pop(parameter, {})
    kept = {field: value for field, value in own.items() if field in fields}
    if kept:
        state[parameter] = kept


def _set_state(state: Any, parameter: Any, field: str, stored: Stored, is_on_device: bool) -> None:
    state[parameter][field] = _new_state(stored, parameter, field, is_on_device)


def _new_state(stored: Stored, parameter: Any, field: str, is_on_device: bool) -> Any:
    """The stored tensor, laid out as `parameter` if it has its shape."""
    dtype = torch_dtype(stored.dtype)
    has_its_shape = list(stored.shape) == list(parameter.shape)
    if has_its_shape and (stored.shape or is_dtensor(parameter)):
        local, _, offsets = box_of(field, parameter)
        # Fused kernels pair elements by their place in memory.
        own = torch.empty_like(local, dtype=dtype, memory_format=torch.preserve_format)
        read(stored, own, offsets)
        if not is_dtensor(parameter):
            return own
        return type(parameter.detach()).from_local(
            own, parameter.device_mesh, parameter.placements, run_check=False,
            shape=parameter.shape, stride=parameter.stride())
    # Counters of steps lie on the CPU, unless the optimizer's kernels read them.
    device = parameter.device if is_on_device or stored.shape else torch.device("cpu")
    own = torch.empty(stored.shape, dtype=dtype, device=device)
    read(stored, own, [0] * len(stored.shape))
    return own
