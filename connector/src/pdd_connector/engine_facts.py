"""Reads off vLLM's configuration what decides whether an engine can be correct, and refuses to start one that cannot.

What the facts mean is decided in `claims/support.py`; both mechanisms are refused by the same reasons, save what only claims need.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NIXL_CONNECTOR_VERSION

from pdd_connector.claims.support import EngineFacts
from pdd_connector.settings import ConnectorSettings, Mechanism

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class UnsupportedEngineError(ValueError):
    """This engine cannot be correct with this mechanism; the message names every reason."""


def require_supported(mechanism: Mechanism, reasons: Sequence[str]) -> None:
    """UnsupportedEngineError where there are reasons."""
    if reasons:
        raise UnsupportedEngineError(f"this engine cannot run mechanism {mechanism}: " + "; ".join(reasons))


def _hash_of(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()


def engine_facts(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, settings: ConnectorSettings, host_buffer: bool
) -> EngineFacts:
    """The facts that claims depend on, read off vLLM's configuration."""
    from vllm import __version__

    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    return EngineFacts(
        vllm_version=__version__,
        nixl_connector_version=NIXL_CONNECTOR_VERSION,
        model=model.model,
        model_revision=str(model.revision),
        model_config=_hash_of(model.hf_config.to_dict()),
        dtype=str(model.dtype),
        cache_dtype=str(cache.cache_dtype),
        quantization=str(model.quantization),
        block_size=cache.block_size,
        hash_block_size=cache.hash_block_size or cache.block_size,
        hash_algorithm=str(cache.prefix_caching_hash_algo),
        kv_groups=tuple(type(group.kv_cache_spec).__name__ for group in kv_cache_config.kv_cache_groups),
        tp_size=parallel.tensor_parallel_size,
        revision_group=settings.revision_group,
        prefix_caching=bool(cache.enable_prefix_caching),
        pp_size=parallel.pipeline_parallel_size,
        dp_size=parallel.data_parallel_size,
        context_parallel_size=max(parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size),
        speculative=vllm_config.speculative_config is not None,
        sleep_mode=bool(model.enable_sleep_mode),
        load_failure_policy=vllm_config.kv_transfer_config.kv_load_failure_policy,
        host_buffer=host_buffer,
    )
