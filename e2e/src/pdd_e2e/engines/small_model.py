"""Cuts a Llama model folder down to a few of its layers, so that real engines on two cores are quick.

Output must still depend on the whole history, or wrong KV would go unseen: the first layers alone give a model that looks at the last token only,
first and last ones together one that looks far back (`tests/engines` measures it). Standard library only; knows nothing of engines.
"""

import json
import re
import shutil
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KEPT_LAYERS = (0, 28, 29)  # of SmolLM2-135M's thirty
_WEIGHTS = "model.safetensors"
_LAYER = re.compile(r"(model\.layers\.)(\d+)(\..*)")
_COPY_BYTES = 1 << 24


def small_model(source: Path, target: Path, layers: Sequence[int] = KEPT_LAYERS) -> Path:
    """`target`, a model folder with these layers of `source`; made first if it is not there (it appears whole, by a rename)."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=target.parent))
    try:
        for file in source.iterdir():
            if file.name not in (_WEIGHTS, "config.json"):
                shutil.copy(file, partial / file.name)
        config = json.loads((source / "config.json").read_text())
        (partial / "config.json").write_text(json.dumps(config | {"num_hidden_layers": len(layers)}))
        _cut_weights(source / _WEIGHTS, partial / _WEIGHTS, layers)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # nothing there after the rename
    return target


def _cut_weights(source: Path, target: Path, layers: Sequence[int]) -> None:
    """A safetensors file is the length of a JSON header, the header (tensor: type, shape, place), then the tensors."""
    with source.open("rb") as whole, target.open("wb") as cut:
        (length,) = struct.unpack("<Q", whole.read(8))
        entries: dict[str, dict[str, Any]] = json.loads(whole.read(length))
        data = 8 + length
        kept: dict[str, dict[str, Any]] = {}
        places: list[tuple[int, int]] = []
        end = 0
        for name, entry in entries.items():
            new_name = _renamed(name, layers)
            if new_name is None:
                continue
            first, last = entry["data_offsets"]
            kept[new_name] = entry | {"data_offsets": [end, end + last - first]}
            end += last - first
            places.append((data + first, last - first))
        header = json.dumps(kept).encode()
        header += b" " * (-len(header) % 8)
        cut.write(struct.pack("<Q", len(header)) + header)
        for place, size in places:
            whole.seek(place)
            while size > 0:
                piece = whole.read(min(size, _COPY_BYTES))
                cut.write(piece)
                size -= len(piece)


def _renamed(name: str, layers: Sequence[int]) -> str | None:
    """A tensor's name in the cut model; None where it is not part of it."""
    if name == "__metadata__":
        return None
    match = _LAYER.fullmatch(name)
    if match is None:
        return name
    number = int(match[2])
    return f"{match[1]}{layers.index(number)}{match[3]}" if number in layers else None
