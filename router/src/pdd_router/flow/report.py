"""What a turn did, as the client may see it (``X-PDD-Receipt``) and as metrics count it. Pure but for counting."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pdd_router.endpoints.engine import EngineView, Living
from pdd_router.endpoints.registry import Registry
from pdd_router.flow.kv_params import Receipt
from pdd_router.metrics import Metrics
from pdd_router.policy.decide import Plan

HEADER = "X-PDD-Receipt"


@dataclass(frozen=True, slots=True)
class PrefillReport:
    """``prompt_tokens``: from the receipt, else from usage. ``owner``: name of the engine it read from or asked."""

    engine: str
    receipt: Receipt | None
    owner: str | None
    prompt_tokens: int | None
    seconds: float

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that nobody computed for this turn: prefill had them or read them. None where it does not say."""
        if self.receipt is None or self.receipt.local_tokens is None:
            return None
        return self.receipt.local_tokens + self.receipt.read_tokens


def render_receipt(plan: Plan, prefill: PrefillReport | None) -> str:
    """Compact ASCII JSON, fit for a header."""
    value: dict[str, object] = {
        "arm": plan.arm.value,
        "why": plan.why.value,
        "prefill": _render_prefill(prefill) if prefill is not None else None,
        "decode": {"engine": plan.decode.id.name},
    }
    return json.dumps(value, separators=(",", ":"))


def _render_prefill(report: PrefillReport) -> dict[str, object]:
    receipt = report.receipt
    return {
        "engine": report.engine,
        "outcome": receipt.outcome if receipt else None,
        "reason": receipt.reason if receipt else None,
        "owner": report.owner,
        "prompt_tokens": report.prompt_tokens,
        "local_tokens": receipt.local_tokens if receipt else None,
        "read_tokens": receipt.read_tokens if receipt else None,
        "read_bytes": receipt.read_bytes if receipt else None,
        "seconds": round(report.seconds, 4),
    }


def note_receipt(
    receipt: Receipt, reader: EngineView, asked: tuple[EngineView, ...], registry: Registry, metrics: Metrics
) -> str | None:
    """Count a receipt, and have an unconnected pair introduced again. Returns the owner's name."""
    owner = registry.find_claim(receipt.owner) if receipt.owner is not None else None
    direction = f"{owner.engine.role if owner else 'None'}To{reader.engine.role}"
    metrics.claims.labels(direction, receipt.outcome, receipt.reason or "").inc()
    if receipt.read_tokens:
        metrics.read_tokens.labels(direction).inc(receipt.read_tokens)
        metrics.read_bytes.labels(direction).inc(receipt.read_bytes)
    if receipt.outcome == "Unconnected":
        for living in _suspects(owner.view().living if owner else None, asked):
            registry.forget_introduction(reader.living, living)
    return owner.engine.id.name if owner else None


def _suspects(owner: Living | None, asked: tuple[EngineView, ...]) -> list[Living]:
    return [owner] if owner is not None else [view.living for view in asked]
