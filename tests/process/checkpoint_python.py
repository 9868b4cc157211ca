"""The Python side of checkpoint_python.cpp: `read FOLDER`, `write FILE`, `refuse FILE...`.

Exit code 0 if all is as expected.
"""

import json
import sys

import safetensors
import safetensors.torch
import torch

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "C64": torch.complex64, "U64": torch.uint64,
    "U32": torch.uint32, "U16": torch.uint16,
}
SHAPES = [[5], [], [0, 3], [2, 3]]


def expected():
    """Name -> (type, shape, bytes)."""
    tensors = {}
    for name, dtype in TYPES.items():
        for shape in SHAPES:
            elements = torch.Size(shape).numel()
            size = elements * torch.empty((), dtype=dtype).element_size()
            data = bytes((i * i + i // 3) % 2 for i in range(size))
            tensors[f"{name}.{len(shape)}.{shape[0] if shape else 1}"] = (dtype, shape, data)
    return tensors


def bytes_of(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def read(folder):
    with open(f"{folder}/manifest.json", encoding="utf-8") as file:
        name = json.load(file)["files"][0]["name"]
    with safetensors.safe_open(f"{folder}/{name}", framework="pt") as file:
        if file.metadata() != {"format": "pt"}:
            return f"metadata {file.metadata()}"
    found = {key: (tensor.dtype, list(tensor.shape), bytes_of(tensor))
             for key, tensor in safetensors.torch.load_file(f"{folder}/{name}").items()}
    wanted = expected()
    return sorted(key for key in found.keys() | wanted.keys()
                  if found.get(key) != wanted.get(key))


def write(path):
    tensors = {}
    for name, (dtype, shape, data) in expected().items():
        raw = torch.tensor(list(data), dtype=torch.uint8)
        tensors[name] = (raw.view(dtype) if data else torch.empty(0, dtype=dtype)).reshape(shape)
    safetensors.torch.save_file(tensors, path, metadata={"by": "Python"})
    return []


def refuse(paths):
    taken = []
    for path in paths:
        try:
            safetensors.torch.load_file(path)
            taken.append(path)
        except safetensors.SafetensorError:
            pass
    return taken


def main():
    what, *args = sys.argv[1:]
    wrong = refuse(args) if what == "refuse" else {"read": read, "write": write}[what](*args)
    if wrong:
        print("checkpoint_python.py", what, "differs:", wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
