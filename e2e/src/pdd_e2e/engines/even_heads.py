"""Gives a Llama model with an odd number of KV heads one more, so that two tensor-parallel ranks can share them; its output stays the same.

The last KV head is there twice, with its query heads, and what each of the two adds to the output is halved: the sum is what it was, exactly up to
rounding. So both ranks hold KV that the output depends on, and an engine that runs the model as it was can be the reference. Float32 only.
"""

import re
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdd_e2e.engines.derived_model import Tensor, Tensors, derived_model, model_config

_PROJECTION = re.compile(r"model\.layers\.\d+\.self_attn\.([qkvo])_proj\.weight")


def with_even_heads(source: Path, target: Path) -> Path:
    """`target`, a model folder with one KV head more than `source`; made first if it is not there."""
    config = model_config(source)
    return derived_model(source, target, _one_more_head(config), lambda tensors: _weights(tensors, config))


def _one_more_head(config: dict[str, Any]) -> dict[str, int]:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    return {"num_attention_heads": heads + heads // kv_heads, "num_key_value_heads": kv_heads + 1}


def _weights(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    head = config["head_dim"]
    of_queries = head * (config["num_attention_heads"] // config["num_key_value_heads"])
    changed = {}
    for name, tensor in tensors.items():
        match = _PROJECTION.fullmatch(name)
        if match is None:
            changed[name] = tensor
        elif match[1] == "o":
            changed[name] = last_columns_shared(tensor, of_queries)
        else:
            changed[name] = last_rows_twice(tensor, of_queries if match[1] == "q" else head)
    return changed


def last_rows_twice(tensor: Tensor, count: int) -> Tensor:
    """The last `count` rows once more."""
    rows, columns = tensor.shape
    size = len(tensor.data) // rows * count
    return replace(tensor, shape=(rows + count, columns), data=bytes(tensor.data) + bytes(tensor.data[-size:]))


def last_columns_shared(tensor: Tensor, count: int) -> Tensor:
    """The last `count` columns twice, each with half the value."""
    if tensor.dtype != "F32":
        raise ValueError(f"the weights must be float32, not {tensor.dtype}")
    rows, columns = tensor.shape
    values = array("f", bytes(tensor.data))
    wider = array("f")
    for row in range(rows):
        end = (row + 1) * columns
        wider.extend(values[end - columns : end - count])
        halves = array("f", (value / 2 for value in values[end - count : end]))
        wider.extend(halves)
        wider.extend(halves)
    return replace(tensor, shape=(rows, columns + count), data=wider.tobytes())
