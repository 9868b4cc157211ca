"""Whether a training that resumes goes on from all of its state."""

from __future__ import annotations

import copy
import ctypes
import gc
import hashlib
import random
import shutil
import sys
import tempfile
from typing import Any

import torch

from ddprun import _random, _states
from ddprun._exchange import Exchange, place
from ddprun._library import CheckpointError, text_of
from ddprun._saves import Checkpoints
from ddprun._tensors import box_of, in_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_NAMES_MAX = 10


def verify_resume(model: Any, optimizer: Any, *, rng: bool = True, **more: Any) -> None:
    """Saves the state, loads it into copies that were changed, and compares them bit by bit.

    Give the things that Checkpoints.save() gets, after a step or two. Every rank calls it; the
    checkpoint is in a temporary folder (TMPDIR), which all ranks must see. The training's own
    state stays as it is. One line on stderr if all is right; else CheckpointError on every rank,
    with the names of what is not saved or not restored. Things that cannot be copied, as models
    of FSDP, are changed themselves and put back. A checkpoint has rank 0's buffers: give the model
    in its DistributedDataParallel, so that it is known whether the other ranks' are state.
    """
    things = {"model": getattr(model, "module", model) if _is_ddp(model) else model,
              "optimizer": optimizer, **more}
    exchange = Exchange(*place())
    before = _random.states()
    # The next forward pass takes them from rank 0.
    overwritten = set(_overwritten(model)) if exchange.rank != 0 else set()
    folder = None
    try:
        mine = _on_all(exchange, lambda: tempfile.mkdtemp(prefix="ddprun-verify-")
                       if exchange.rank == 0 else None)
        folder, = exchange.gather(mine)[:1]
        problems = [*_on_all(exchange, lambda: list(_not_given(things, rng))),
                    *_not_restored(exchange, folder, things, rng, before, overwritten)]
    except Exception as error:  # the other ranks must know
        text = text_of(error)
        problems = [text] if text else []
    finally:
        for name, state in before.items():
            restore = _random.restorer(name, state.unsqueeze(0), 0, 1)
            if restore is not None:
                restore()
    said = exchange.gather(problems)
    if exchange.rank == 0 and folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    for rank, names in enumerate(said):
        if names:
            more_names = f"; and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
            raise CheckpointError(f"a resume would lose state: rank {rank}: " +
                                  "; ".join(names[:_NAMES_MAX]) + more_names)
    if exchange.rank == 0:
        print(f"ddprun: a resume restores all of {', '.join(things)} and the random states, bit "
              "for bit", file=sys.stderr, flush=True)


class _Trial(Checkpoints):
    """The agent learns nothing of its folder and resume."""

    def _tell_folder(self) -> None:
        pass

    def _tell_resumed(self) -> None:
        pass

    def _memory(self, exchange: Exchange) -> None:
        """The node's memory is the training's own."""


def _on_all(exchange: Exchange, act: Callable[[], Any]) -> Any:
    """act() on every rank. If it raises on one, raises CheckpointError on all; the text is empty
    on the others."""
    result = problem = None
    try:
        result = act()
    except Exception as error:  # a program's own things may raise anything
        problem = text_of(error)
    if any(said is not None for said in exchange.gather(problem)):
        raise CheckpointError(problem or "")
    return result


def _is_ddp(model: Any) -> bool:
    return isinstance(model, torch.nn.parallel.DistributedDataParallel)


def _overwritten(model: Any) -> Iterator[str]:
    """The buffers that DistributedDataParallel gives to all ranks before each forward pass."""
    if _is_ddp(model) and model.broadcast_buffers:
        for key, _ in model.module.named_buffers():
            yield f"model.{_states.plain_name(model.module, key)}"


def _not_given(things: Mapping[str, Any], rng: bool) -> Iterator[str]:
    """State of the training that no thing has."""
    given: list[Any] = []
    for thing in things.values():
        given += [thing, *getattr(thing, "_schedulers", [])]
    optimizer = things["optimizer"]
    gc.collect()  # what the program has dropped is no state
    for thing in gc.get_objects():
        if any(thing is known for known in given):
            continue
        kind = type(thing)
        if issubclass(kind, torch.optim.lr_scheduler.LRScheduler) and (
                getattr(thing, "optimizer", None) is optimizer):
            yield f"a {kind.__name__} of the optimizer is not saved: give it as scheduler="
        elif issubclass(kind, torch.amp.GradScaler) and thing.is_enabled():
            yield f"a {kind.__name__} is not saved: give it as scaler="
    if not rng:
        yield "random states are not saved: leave rng=True"
    if not hasattr(optimizer, "consolidate_state_dict"):
        own = {id(parameter) for parameter in _states.parameters_of(optimizer)}
        for key in optimizer.state:
            if id(key) not in own:
                yield f"optimizer.state[{key!r}] is not saved: it belongs to no parameter"
        for key in optimizer.state_dict().keys() - {"state", "param_groups"}:
            yield f"optimizer.state_dict()[{key!r}] is not saved: give it by a name of its own"


def _not_restored(exchange: Exchange, folder: str, things: Mapping[str, Any], rng: bool,
                  before: Mapping[str, Any], overwritten: set[str]) -> list[str]:
    wanted, wanted_values = _on_all(exchange, lambda: _contents(things))
    trial = _on_all(exchange, lambda: _Trial(folder))
    if not trial.save(0, rng=rng, **things):
        return ["the checkpoint could not be written, as the line before says"]
    copies, undo = _on_all(exchange, lambda: _copied(things))
    try:
        _on_all(exchange, lambda: _change_all(copies))
        trial.resume(rng=rng, **copies)
        after = _random.states()
        values = {name: trial.values[name] for name in trial.values if name in copies}
        found, found_values = _contents({**copies, **values})
    finally:
        undo()
    names = [f"{name} is not restored" for name in sorted({*wanted, *found} - overwritten)
             if wanted.get(name) != found.get(name)]
    names += [f"{name} is {found_values.get(name)} in place of {wanted_values.get(name)}"
              for name in sorted({*wanted_values, *found_values})
              if wanted_values.get(name) != found_values.get(name)]
    if rng:
        names += [f"{name} is not restored" for name in before
                  if not torch.equal(before[name], after[name])]
    return names


def _copied(things: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
    """Copies that refer to each other; the things themselves if they cannot be copied, as FSDP's
    cannot. The function puts those back as they were."""
    try:
        return copy.deepcopy(dict(things)), lambda: None
    except Exception:  # a program's own things may raise anything
        undos = [_undo(thing) for thing in things.values()]

    def undo() -> None:
        with torch.no_grad():
            for put_back in undos:
                put_back()

    return dict(things), undo


def _undo(thing: Any) -> Callable[[], None]:
    if _states.is_module(thing):
        kept = [(local, local.clone()) for local, _, _ in (
            box_of("", tensor) for tensor in _states.model_tensors(thing).values()
            if isinstance(tensor, torch.Tensor))]

        def put_tensors_back() -> None:
            for local, old in kept:
                local.copy_(old)

        return put_tensors_back
    if _states.is_optimizer(thing):
        state = _states.state_of(thing)
        old_state, groups = dict(state), [dict(group) for group in thing.param_groups]

        def put_back() -> None:
            state.clear()
            state.update(old_state)
            for group, old in zip(thing.param_groups, groups):
                group.update(old)

        return put_back
    if isinstance(thing, torch.Tensor):
        old_tensor = thing.detach().clone()
        return lambda: thing.detach().copy_(old_tensor)
    attributes = getattr(thing, "__dict__", None)
    old_attributes = copy.copy(attributes)
    return lambda: attributes.update(old_attributes) if attributes else None


def _change_all(things: Mapping[str, Any]) -> None:
    for name, thing in things.items():
        _change(name, thing)
    _use_random_numbers()


def _change(name: str, thing: Any) -> None:
    """Makes all of it differ from what was saved."""
    if _states.is_module(thing):
        for tensor in _states.model_tensors(thing).values():
            _flip(name, tensor)
    elif _states.is_optimizer(thing):
        _states.state_of(thing).clear()
        for group in thing.param_groups:
            _change_numbers(group, group)
    elif _states.is_stateful(thing):
        _change_numbers(getattr(thing, "__dict__", {}), thing.state_dict())
    elif isinstance(thing, torch.Tensor):
        _flip(name, thing)


def _flip(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        return
    local, _, _ = box_of(name, tensor)
    with torch.no_grad():
        if local.dtype == torch.bool:
            local.logical_not_()
        elif local.is_contiguous():
            local.reshape(-1).view(torch.uint8).bitwise_not_()
        else:
            local.add_(1)


def _change_numbers(attributes: Any, keys: Any) -> None:
    for key in list(keys):
        if type(attributes.get(key)) in (int, float):
            attributes[key] += 1


def _use_random_numbers() -> None:
    torch.rand(1, device="cpu")
    random.random()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.rand(1, device="cuda")
    if "numpy" in sys.modules:
        import numpy

        numpy.random.random()


def _contents(things: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Type, place and digest of each tensor by its name, and the values."""
    snapshot = _states.take(things, False)
    found = {}
    for name, item in snapshot.items.items():
        kept, part = in_memory(item)
        data = (ctypes.c_char * part.size).from_address(kept.data_ptr()) if part.size else b""
        found[name] = (part.dtype, list(part.shape), part.offsets, hashlib.sha256(data).digest())
    return found, snapshot.values
