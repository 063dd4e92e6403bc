"""Model folders made out of other model folders: the same files with another configuration and other weights.

I/O only; what becomes of the weights is the caller's business. Standard library only; knows nothing of engines.
"""

import json
import mmap
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class Tensor:
    """`data` is row after row of `shape`, of elements of `dtype` (as safetensors names it: F32 ...)."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


Tensors = Mapping[str, Tensor]


def derived_model(source: Path, target: Path, config: Mapping[str, Any], weights: Callable[[Tensors], Tensors]) -> Path:
    """`target`, made of `source` if it is not there (it appears whole, by a rename); `config` overrides what `source` is configured with."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=target.parent))
    try:
        for file in source.iterdir():
            if file.name not in (WEIGHTS, CONFIG):
                shutil.copy(file, partial / file.name)
        (partial / CONFIG).write_text(json.dumps(model_config(source) | dict(config)))
        write_tensors(partial / WEIGHTS, weights(read_tensors(source / WEIGHTS)))
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # nothing there after the rename
    return target


def model_config(folder: Path) -> dict[str, Any]:
    """What a model folder is configured with."""
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    return config


def read_tensors(path: Path) -> Tensors:
    """Every tensor of a safetensors file by name: views of the file, which is read where they are."""
    with path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    # The length of a JSON header, the header (tensor: type, shape, place), then the tensors.
    (length,) = struct.unpack("<Q", whole[:8])
    entries: dict[str, dict[str, Any]] = json.loads(bytes(whole[8 : 8 + length]))
    entries.pop("__metadata__", None)
    data = whole[8 + length :]
    return {
        name: Tensor(entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for name, entry in entries.items()
    }


def write_tensors(path: Path, tensors: Tensors) -> None:
    """A safetensors file of them."""
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in tensors.items():
        first, end = end, end + len(tensor.data)
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [first, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for tensor in tensors.values():
            file.write(tensor.data)
