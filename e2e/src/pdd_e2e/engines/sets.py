"""Which engines the suite runs, and how they are set. One set at a time, because each start costs a minute; the reference stays throughout.

Time limits are far above what a loaded machine needs, so that no test depends on its speed; where a test wants one to be exceeded it holds
something up until it is.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pdd_cli.local.engines import EngineOptions, EngineSpec, Role
from pdd_cli.local.environment import checkout_start, find_engine_python
from pdd_cli.local.kv_config import Connector
from pdd_cli.local.model import default_cache, prepare_model
from pdd_cli.local.progress import Silent
from pdd_cli.local.stack import LocalStack, StackSpec
from pdd_e2e.engines.even_heads import with_even_heads
from pdd_e2e.engines.small_model import KEPT_LAYERS, small_model

CLAIM_KEY = "a key for the engines of one test run only"
LIMIT_TOKENS = 512
BYTES_PER_TOKEN = len(KEPT_LAYERS) * 2 * 3 * 64 * 4  # keys and values, three heads of 64, float32

RANKS = 2
EVEN_BYTES_PER_TOKEN = BYTES_PER_TOKEN * 4 // 3  # of the model with even heads, on all ranks together
LONE = "prefill-1"
"""The engine of one rank among those of two."""

ANSWER_SECONDS = 4
READ_SECONDS = 10
HOLD_SECONDS = 20
CLAIM_SETTINGS: Mapping[str, Any] = {
    "recompute_threshold_tokens": 32,
    "claim": {
        "timeout_milliseconds": ANSWER_SECONDS * 1_000,
        "hold_seconds": HOLD_SECONDS,
        "read_timeout_milliseconds": READ_SECONDS * 1_000,
        "max_percent_of_blocks": 90,
        "connect_timeout_seconds": 60,
    },
}
RETAIN_SECONDS = 12
RETAIN_SETTINGS: Mapping[str, Any] = {
    "mechanism": "Retain",
    "recompute_threshold_tokens": 32,
    "retain": {
        "decoder_blocks_ttl_seconds": RETAIN_SECONDS,
        "lease_seconds": RETAIN_SECONDS,
        "max_percent_of_blocks": 50,
    },
}
STOCK_SETTINGS: Mapping[str, Any] = {
    "kv_recompute_threshold": 32,
    "kv_lease_duration": 5,
    "decoder_kv_blocks_ttl": 60,
}

_OPTIONS = EngineOptions(
    cache_blocks=96,
    max_model_len=LIMIT_TOKENS,
    development_api=True,
    environment={"PDD_CLAIM_KEY": CLAIM_KEY},
    arguments=("--max-num-batched-tokens", "128", "--shutdown-timeout", "60"),
)
_SMALL_CACHE = replace(_OPTIONS, cache_blocks=48)
"""Decode's: three of the longest prompts fill it, so tests can make it evict and preempt."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What every set needs: interpreter, model, a folder for logs."""

    python: Path
    model: Path
    logs: Path


async def prepare_ground(logs: Path) -> Ground:
    """Finds the engine environment and makes the small model, once, in the cache of `pdd`. Raises what `pdd_cli` raises where they are missing."""
    python = find_engine_python(None, os.environ, checkout_start())
    whole = await prepare_model(python, default_cache(os.environ), Silent())
    name = f"{whole.name}-layers-" + "-".join(str(layer) for layer in KEPT_LAYERS)
    return Ground(python, small_model(whole, whole.parent / name), logs)


def reference_stack(ground: Ground) -> LocalStack:
    """One aggregated engine without a connector and without a prefix cache: it computes everything, always."""
    options = replace(_OPTIONS, prefix_caching=False)
    return LocalStack(_spec(ground, "reference", prefills=0, decodes=0, aggregates=1, options=options))


def claims_stack(ground: Ground) -> LocalStack:
    """Two prefill engines and one decode engine with a small cache."""
    return LocalStack(_spec(ground, "claims", prefills=2, connector=CLAIM_SETTINGS))


def retain_stack(ground: Ground) -> LocalStack:
    """A pair that retains."""
    return LocalStack(_spec(ground, "retain", connector=RETAIN_SETTINGS))


def stock_stack(ground: Ground) -> LocalStack:
    """A pair with vLLM's own NixlConnector."""
    return _ControlStack("StockConnector", ground, connector=STOCK_SETTINGS, connector_kind=Connector.STOCK)


def unguarded_stack(ground: Ground) -> LocalStack:
    """A pair with our connector, whose guards are taken out."""
    return _ControlStack("UnguardedConnector", ground, connector=CLAIM_SETTINGS)


def tensor_parallel_stack(ground: Ground) -> LocalStack:
    """A pair that claims, of two ranks each, and one more prefill engine that differs from the first in its one rank only."""
    options = replace(_OPTIONS, tensor_parallel=RANKS)
    return _UnequalStack(
        _spec(_of_even_heads(ground), "tensor-parallel", prefills=2, options=options, connector=CLAIM_SETTINGS)
    )


def tensor_parallel_retain_stack(ground: Ground) -> LocalStack:
    """A pair that retains, of two ranks each."""
    options = replace(_OPTIONS, tensor_parallel=RANKS)
    return LocalStack(
        _spec(_of_even_heads(ground), "tensor-parallel-retain", options=options, connector=RETAIN_SETTINGS)
    )


def one_rank_stack(ground: Ground) -> LocalStack:
    """A pair of two ranks each with our connector, whose second rank reads something else."""
    options = replace(_OPTIONS, tensor_parallel=RANKS)
    return _ControlStack("OneRankConnector", _of_even_heads(ground), options=options, connector=CLAIM_SETTINGS)


def _of_even_heads(ground: Ground) -> Ground:
    model = with_even_heads(ground.model, ground.model.with_name(f"{ground.model.name}-even-heads"))
    return replace(ground, model=model)


def _spec(ground: Ground, name: str, **fields: Any) -> StackSpec:
    fields.setdefault("options", _OPTIONS)
    decode = replace(fields["options"], cache_blocks=_SMALL_CACHE.cache_blocks)
    return StackSpec(ground.python, ground.model, ground.logs / name, options_of={Role.DECODE: decode}, **fields)


class _UnequalStack(LocalStack):
    """`LONE` has one rank."""

    async def _engine_specs(self, private: Path) -> list[EngineSpec]:
        specs = await super()._engine_specs(private)
        one_rank = replace(_OPTIONS, tensor_parallel=1)
        return [replace(spec, options=one_rank) if spec.name == LONE else spec for spec in specs]


class _ControlStack(LocalStack):
    """Engines with a connector out of `controls/`."""

    def __init__(self, class_name: str, ground: Ground, *, options: EngineOptions = _OPTIONS, **fields: Any) -> None:
        self._class_name = class_name
        environment = {**options.environment, "PYTHONPATH": str(Path(__file__).parent / "controls")}
        super().__init__(_spec(ground, class_name, options=replace(options, environment=environment), **fields))

    async def _kv_config(self, role: Role, claim_port: int, private: Path) -> str | None:
        built = await super()._kv_config(role, claim_port, private)
        if built is None:
            return None
        module = self._class_name.removesuffix("Connector").lower() + "_connector"
        ours = {"kv_connector": self._class_name, "kv_connector_module_path": module}
        return json.dumps(json.loads(built) | ours)
