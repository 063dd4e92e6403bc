"""What is known about an engine beside its `--kv-transfer-config`, and what that rules out.

Pure. Every fact is optional: what is unknown is not judged here but by the engine at its start or at first contact.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pdd_connector.settings import Problem


class Platform(StrEnum):
    """The platform of the engine, in vLLM's words."""

    CUDA = "cuda"
    XPU = "xpu"
    CPU = "cpu"


class Fabric(StrEnum):
    """What lies between two engines."""

    EFA = "EFA"
    INFINIBAND = "InfiniBand"
    TCP = "TCP"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Facts about one engine. `None` is unknown."""

    platform: Platform | None = None
    fabric: Fabric | None = None
    vllm_version: str | None = None
    model: str | None = None
    dtype: str | None = None
    cache_dtype: str | None = None
    attention_backend: str | None = None
    block_size: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    total_kv_heads: int | None = None
    mla: bool = False
    hybrid_kv_cache: bool = False


def check_parallelism(facts: EngineFacts, *, own_connector: bool, producer: bool, both_ways: bool) -> Iterator[Problem]:
    """Combinations of parallelism that the NIXL connector refuses at start or cannot transfer with."""
    pcp, dcp = facts.prefill_context_parallel_size, facts.decode_context_parallel_size
    if pcp > 1 and (own_connector or both_ways):
        yield Problem(
            "prefill_context_parallel_size",
            f"`prefill_context_parallel_size` must be 1 where KV is read in both directions, not {pcp}",
        )
    elif pcp > 1 and not producer:
        yield Problem(
            "prefill_context_parallel_size", f"`prefill_context_parallel_size` must be 1 on decode, not {pcp}"
        )
    if dcp > 1 and own_connector:
        yield Problem(
            "decode_context_parallel_size",
            f"`decode_context_parallel_size` must be 1 with PddConnector, not {dcp}: a block's id must be the same on every rank",
        )
    elif dcp > 1 and not facts.mla:
        yield Problem("decode_context_parallel_size", "`decode_context_parallel_size` must be 1 for models without MLA")
    elif dcp > 1 and pcp > 1 and (facts.tensor_parallel_size != 1 or dcp != pcp):
        yield Problem(
            "decode_context_parallel_size",
            "`decode_context_parallel_size` must equal `prefill_context_parallel_size`, with `tensor_parallel_size` 1",
        )
    if facts.pipeline_parallel_size > 1 and facts.hybrid_kv_cache:
        yield Problem(
            "pipeline_parallel_size",
            "`pipeline_parallel_size` must be 1 for models with several KV cache groups: the pull connector cannot read them",
        )


def check_equal_facts(prefill: EngineFacts, decode: EngineFacts) -> Iterator[Problem]:
    """What upstream's handshake refuses at first contact, and what makes a read impossible in one direction."""
    for name in ("vllm_version", "model", "dtype", "cache_dtype", "attention_backend", "block_size", "platform"):
        ours, theirs = getattr(prefill, name), getattr(decode, name)
        if ours is not None and theirs is not None and ours != theirs:
            yield Problem(
                name, f'`{name}` must be equal on both sides, not "{ours}" on prefill and "{theirs}" on decode'
            )
    if prefill.hybrid_kv_cache != decode.hybrid_kv_cache:
        yield Problem("hybrid_kv_cache", "`hybrid_kv_cache` must be equal on both sides")
    if prefill.pipeline_parallel_size != decode.pipeline_parallel_size:
        yield Problem("pipeline_parallel_size", "`pipeline_parallel_size` must be equal on both sides")
    yield from _check_tensor_parallel(prefill, decode)


def _check_tensor_parallel(prefill: EngineFacts, decode: EngineFacts) -> Iterator[Problem]:
    small, big = sorted((prefill.tensor_parallel_size, decode.tensor_parallel_size))
    if big % small:
        yield Problem(
            "tensor_parallel_size",
            f"`tensor_parallel_size` must divide: {prefill.tensor_parallel_size} on prefill and {decode.tensor_parallel_size} on decode do not",
        )
    heads = prefill.total_kv_heads or decode.total_kv_heads
    if small != big and heads is not None and big > heads and not prefill.mla:
        yield Problem(
            "tensor_parallel_size",
            f"`tensor_parallel_size` must be at most the model's {heads} KV heads where the sides differ, not {big}",
        )
