"""Tensors and numpy's arrays as a checkpoint holds them: type, place in the whole, bytes."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch

from ddprun._library import CheckpointError, Part, Stored, StoredPart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz"}
# An older torch lacks some.
_TORCH_OF = {stored: getattr(torch, name) for stored, name in _TORCH_NAMES.items()
             if hasattr(torch, name)}
_STORED_OF = {dtype: stored for stored, dtype in _TORCH_OF.items()}
_NUMPY_OF = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
             "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
             "C64": "<c8"}
_STORED_OF_NUMPY = {text: stored for stored, text in _NUMPY_OF.items()}

#: Ranks that have the tensor: all have the same, it is written once; the first one's counts.
SHARED, FIRST = "shared", "first"


class Item:
    """One tensor of a rank's state, and its place in the whole."""

    __slots__ = ("dtype", "global_shape", "is_late", "mesh_dimension", "name", "offsets", "shape",
                 "tensor", "whose")

    def __init__(self, name: str, tensor: Any, whose: str, is_late: bool) -> None:
        """Raises CheckpointError, which names the tensor, for a kind that no file holds.

        is_late: only an optimizer's step changes it.
        """
        self.name = name
        self.whose = whose
        self.is_late = is_late
        self.tensor, self.global_shape, self.offsets = _local(name, tensor)
        self.mesh_dimension = _mesh_dimension(tensor)
        self.dtype = dtype_of(name, self.tensor)
        self.shape = list(self.tensor.shape)

    @property
    def size(self) -> int:
        """In bytes."""
        return int(self.tensor.numel() * self.tensor.element_size())

    def is_void(self) -> bool:
        """Whether it is the empty part of a tensor that has elements."""
        return self.size == 0 and self.global_shape is not None and 0 not in self.global_shape

    def description(self) -> list[Any]:
        """For the other ranks."""
        return [self.name, self.dtype, self.shape, self.global_shape, self.offsets, self.size,
                self.whose, self.mesh_dimension]


class ArrayItem(Item):
    """A numpy array, copied."""

    def __init__(self, name: str, array: Any) -> None:
        stored = _STORED_OF_NUMPY.get(array.dtype.str)
        if stored is None:
            raise CheckpointError(f"{name} is a numpy array of {array.dtype}, which no checkpoint "
                                  "holds")
        import numpy

        flat = torch.from_numpy(numpy.array(array, order="C").reshape(-1).view("u1"))
        super().__init__(name, flat, FIRST, False)
        self.dtype, self.shape = stored, list(array.shape)


def dtype_of(name: str, tensor: Any) -> str:
    """As a checkpoint says it."""
    stored = _STORED_OF.get(tensor.dtype)
    if stored is None:
        raise CheckpointError(f"{name} is a tensor of {tensor.dtype}, which no checkpoint holds")
    return stored


def is_array(leaf: Any) -> bool:
    """Whether it is a numpy array or scalar."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(leaf, (numpy.ndarray, numpy.generic))


def kind_of_array(leaf: Any) -> str:
    """Returns "array" or "scalar" for a leaf that is_array() accepts."""
    numpy: Any = sys.modules["numpy"]
    return "array" if isinstance(leaf, numpy.ndarray) else "scalar"


def is_dtensor(tensor: Any) -> bool:
    """Whether it is a DTensor; False where torch has none."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def box_of(name: str, tensor: Any) -> tuple[Any, list[int], list[int]]:
    """The memory of this rank, the whole's shape, and the place of the memory in it."""
    local, shape, offsets = _local(name, tensor)
    if shape is None or offsets is None:
        return local, list(local.shape), [0] * local.dim()
    return local, shape, offsets


def _local(name: str, tensor: Any) -> tuple[Any, list[int] | None, list[int] | None]:
    if is_dtensor(tensor):
        return _local_of_dtensor(name, tensor.detach())
    plain = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
    if type(tensor) not in plain or tensor.layout != torch.strided or tensor.is_meta:
        raise CheckpointError(f"{name} is a {type(tensor).__module__}.{type(tensor).__qualname__} "
                              f"({tensor.layout}, {tensor.device}), which no checkpoint holds")
    return tensor.detach().resolve_conj().resolve_neg(), None, None


def _local_of_dtensor(name: str, tensor: Any) -> tuple[Any, list[int] | None, list[int] | None]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(placement.is_partial() for placement in tensor.placements):
        raise CheckpointError(f"{name} is a DTensor with {tensor.placements}, sums that are not "
                              "done; no checkpoint holds it")
    local = tensor.to_local()
    if all(placement.is_replicate() for placement in tensor.placements):
        return local, None, None
    shape, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements)
    if list(shape) != list(local.shape):
        raise CheckpointError(f"{name} is a DTensor with {tensor.placements} whose part of shape "
                              f"{list(local.shape)} is expected to have {list(shape)}")
    return local, list(tensor.shape), list(offsets) if local.numel() else [0] * len(shape)


def _mesh_dimension(tensor: Any) -> str:
    """The name of the mesh dimension along which a DTensor is sharded; several have commas between
    them. Empty: the mesh has no names."""
    if not is_dtensor(tensor) or not tensor.device_mesh.mesh_dim_names:
        return ""
    names = zip(tensor.device_mesh.mesh_dim_names, tensor.placements)
    return ",".join(name for name, placement in names if not placement.is_replicate())


def in_memory(item: Item) -> tuple[Any, Part]:
    """The bytes of `item` on the CPU, row by row: its own where they lie so. The first keeps them.
    """
    kept = item.tensor.cpu().contiguous()
    return kept, Part(item.name, item.dtype, item.shape, kept.data_ptr(), item.size,
                      item.global_shape, item.offsets, item.mesh_dimension)


def read(stored: Stored, local: Any, offsets: Sequence[int]) -> None:
    """Copies what lies from `offsets` on into `local`, straight from the mapping."""
    for part in stored.parts:
        begins = [max(*pair) for pair in zip(part.offsets, offsets)]
        ends = [min(at + length, own_at + own_length) for at, length, own_at, own_length in
                zip(part.offsets, part.lengths, offsets, local.shape)]
        if any(end <= begin for begin, end in zip(begins, ends)) or part.size == 0:
            continue
        target, source = local, _view(part, stored.dtype)
        for dimension, (begin, end) in enumerate(zip(begins, ends)):
            target = target.narrow(dimension, begin - offsets[dimension], end - begin)
            source = source.narrow(dimension, begin - part.offsets[dimension], end - begin)
        target.copy_(source)


def whole(stored: Stored) -> Any:
    """All of it, in memory of its own."""
    tensor = torch.empty(stored.shape, dtype=torch_dtype(stored.dtype), device="cpu")
    read(stored, tensor, [0] * len(stored.shape))
    return tensor


def whole_array(stored: Stored) -> Any:
    """The same as numpy's array."""
    import numpy

    part, = stored.parts
    if stored.dtype not in _NUMPY_OF:
        raise CheckpointError(f"numpy has no {stored.dtype}")
    array = numpy.empty(stored.shape, _NUMPY_OF[stored.dtype])
    if part.size:
        ctypes.memmove(array.ctypes.data, part.pointer, part.size)
    return array


def torch_dtype(stored: str) -> Any:
    """Raises CheckpointError if this torch lacks the type."""
    if stored not in _TORCH_OF:
        raise CheckpointError(f"torch {torch.__version__} has no type for {stored}")
    return _TORCH_OF[stored]


def _view(part: StoredPart, dtype: str) -> Any:
    """The mapped bytes as a tensor, which must not be written."""
    memory = (ctypes.c_char * part.size).from_address(part.pointer)
    return torch.frombuffer(memory, dtype=torch.uint8).view(torch_dtype(dtype)).view(part.lengths)
