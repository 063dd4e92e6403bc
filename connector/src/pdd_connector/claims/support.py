"""What claims cannot serve, with the reason: an engine that cannot claim correctly refuses to start instead of claiming wrongly.

Pure: facts about an engine in, reasons out; and the revision group, the hash of what two engines must share.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class EngineFacts:
    """What of an engine's configuration decides whether, and with whom, it can claim."""

    vllm_version: str
    nixl_connector_version: int
    model: str
    model_revision: str
    model_config: str  # hash of the model's resolved configuration: rope scaling and other overrides
    dtype: str
    cache_dtype: str
    quantization: str
    block_size: int
    hash_block_size: int
    hash_algorithm: str
    kv_groups: tuple[str, ...]  # kinds of KV cache, one per group
    tp_size: int
    revision_group: str
    prefix_caching: bool
    pp_size: int
    dp_size: int
    context_parallel_size: int
    speculative: bool
    sleep_mode: bool
    load_failure_policy: str
    host_buffer: bool


_GROUP_FIELDS = (
    "vllm_version",
    "nixl_connector_version",
    "model",
    "model_revision",
    "model_config",
    "dtype",
    "cache_dtype",
    "quantization",
    "block_size",
    "hash_block_size",
    "hash_algorithm",
    "kv_groups",
    "tp_size",
    "revision_group",
)
_PROVEN_HASHES = ("sha256", "sha256_cbor")
_FULL_ATTENTION = ("FullAttentionSpec", "MLAAttentionSpec")


def revision_group(facts: EngineFacts) -> str:
    """Hex hash of what two engines must have in common for one to use the other's blocks."""
    values = asdict(facts)
    text = json.dumps({name: values[name] for name in _GROUP_FIELDS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def unsupported(facts: EngineFacts) -> list[str]:
    """Why this engine cannot claim; empty where it can."""
    checks = (
        (not facts.prefix_caching, "`enable_prefix_caching` must be on: claims are granted from the prefix cache"),
        (
            facts.hash_algorithm not in _PROVEN_HASHES,
            f"`prefix_caching_hash_algo` must be one of {', '.join(_PROVEN_HASHES)}: {facts.hash_algorithm} is seeded per process or too weak to prove",
        ),
        (
            len(facts.kv_groups) != 1 or facts.kv_groups[0] not in _FULL_ATTENTION,
            f"the model must keep one group of full-attention KV cache, not {', '.join(facts.kv_groups) or 'none'}: "
            "blocks of windows and states do not follow from a chain of hashes",
        ),
        (
            facts.hash_block_size != facts.block_size,
            f"`hash_block_size` ({facts.hash_block_size}) must equal `block_size` ({facts.block_size}): a claim pairs one hash with one block",
        ),
        (facts.pp_size > 1, "`pipeline_parallel_size` must be 1: a stage holds only its own layers"),
        (
            facts.dp_size > 1,
            "`data_parallel_size` must be 1 per server: run one server per rank, so that each has a claim channel of its own",
        ),
        (
            facts.context_parallel_size > 1,
            "`prefill_context_parallel_size` and `decode_context_parallel_size` must be 1",
        ),
        (
            facts.speculative,
            "`speculative_config` must not be set: a drafted token may be filed before it is confirmed",
        ),
        (
            facts.sleep_mode,
            "`enable_sleep_mode` must be off: what NIXL has registered is not the memory of an engine that has slept",
        ),
        (
            facts.load_failure_policy != "recompute",
            f"`kv_load_failure_policy` must be recompute, not {facts.load_failure_policy}: a failed read is a miss, not an error",
        ),
        (
            facts.host_buffer,
            "`kv_buffer_device` must be the accelerator's own: through a host buffer nothing can be read back",
        ),
    )
    return [reason for wrong, reason in checks if wrong]
