"""Cuts a Llama model folder down to a few of its layers, so that real engines on two cores are quick.

Output must still depend on the whole history, or wrong KV would go unseen: the first layers alone give a model that looks at the last token only,
first and last ones together one that looks far back (`tests/engines` measures it). Knows nothing of engines.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from pdd_e2e.engines.derived_model import Tensors, derived_model

KEPT_LAYERS = (0, 28, 29)  # of SmolLM2-135M's thirty
_LAYER = re.compile(r"(model\.layers\.)(\d+)(\..*)")


def small_model(source: Path, target: Path, layers: Sequence[int] = KEPT_LAYERS) -> Path:
    """`target`, a model folder with these layers of `source`; made first if it is not there."""

    def cut(tensors: Tensors) -> Tensors:
        renamed = {_renamed(name, layers): tensor for name, tensor in tensors.items()}
        return {name: tensor for name, tensor in renamed.items() if name is not None}

    return derived_model(source, target, {"num_hidden_layers": len(layers)}, cut)


def _renamed(name: str, layers: Sequence[int]) -> str | None:
    """A tensor's name in the cut model; None where it is not part of it."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return name
    number = int(match[2])
    return f"{match[1]}{layers.index(number)}{match[3]}" if number in layers else None
