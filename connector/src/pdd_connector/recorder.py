"""The connector's numbers: one table of them, and the recorder that scheduler, worker and channel threads write to.

Pure, and free of vLLM. A recorder gathers what happened since it was last asked, as one flat dict of JSON types that can
be added up and sent between processes; `metrics` puts that on the engine's /metrics.
"""

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pdd_connector.claims.messages import RefuseReason
from pdd_connector.claims.params import Outcome

PREFIX: Final = "pdd:"
"""Every key of ours in the stats' dict begins so; a label's value follows after a second colon."""


class Kind(StrEnum):
    """How values of one key add up: counts are summed, observations collected, of gauges the newest counts."""

    COUNTER = "Counter"
    GAUGE = "Gauge"
    HISTOGRAM = "Histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number. On the wire it is `vllm:pdd_<name>`, for counters with `_total` behind it."""

    name: str
    kind: Kind
    documentation: str
    label: str | None = None
    values: tuple[str, ...] = ()
    """Values of the label that are shown as 0 from the start; others appear when they occur."""


_REFUSALS: Final = tuple(reason.value for reason in RefuseReason)
_DIRECTIONS: Final = ("PrefillToDecode", "DecodeToPrefill", "PrefillToPrefill", "DecodeToDecode")

METRICS: Final = (
    Metric("claims_asked", Kind.COUNTER, "Questions sent to owners."),
    Metric("claims_answered", Kind.COUNTER, "Answers that came from owners, of any kind."),
    Metric(
        "claim_outcomes",
        Kind.COUNTER,
        "Requests that named owners, by what became of it.",
        "outcome",
        tuple(outcome.value for outcome in Outcome),
    ),
    Metric("claims_empty", Kind.COUNTER, "Requests whose owners held nothing more of the prompt."),
    Metric("claims_refused", Kind.COUNTER, "Requests that every owner refused.", "reason", _REFUSALS),
    Metric("claims_late", Kind.COUNTER, "Requests that no owner answered within the time limit."),
    Metric("claims_unconnected", Kind.COUNTER, "Requests granted by an owner that was not connected yet."),
    Metric("read_tokens", Kind.COUNTER, "Prompt tokens read from other engines.", "direction", _DIRECTIONS),
    Metric("read_bytes", Kind.COUNTER, "Bytes of KV read from other engines.", "direction", _DIRECTIONS),
    Metric(
        "reads_failed",
        Kind.COUNTER,
        "Reads that failed or were too slow; the prompt was computed instead.",
        "reason",
        ("Timeout", "Transfer"),
    ),
    Metric("claim_answer_seconds", Kind.HISTOGRAM, "Time from a question to its answer, at the reader."),
    Metric("claims_granted", Kind.COUNTER, "Claims granted by this engine with at least one block."),
    Metric("claims_granted_blocks", Kind.COUNTER, "Blocks in claims granted by this engine."),
    Metric("claims_rejected", Kind.COUNTER, "Questions that this engine refused as owner.", "reason", _REFUSALS),
    Metric("claim_grant_seconds", Kind.HISTOGRAM, "Time to find and hold the blocks of one question, at the owner."),
    Metric("claims_held", Kind.GAUGE, "Claims held by readers of this engine now."),
    Metric("blocks_held", Kind.GAUGE, "Blocks referenced by claims on this engine now."),
    Metric(
        "claims_released",
        Kind.COUNTER,
        "Claims on this engine that ended, by what ended them.",
        "by",
        ("reader", "release", "timer", "shutdown"),
    ),
    Metric("retained", Kind.COUNTER, "Finished requests whose blocks were kept for a later turn."),
    Metric(
        "retain_refused",
        Kind.COUNTER,
        "Requests for which nothing was kept, or whose handle was not used, by reason.",
        "reason",
        ("Cap", "Malformed", "Replayed", "Version", "Direction", "NoProof"),
    ),
    Metric("retain_expired", Kind.COUNTER, "Kept requests whose time was over before anyone read them."),
    Metric("blocks_retained", Kind.GAUGE, "Blocks kept for later turns now."),
    Metric("blocks_quarantined", Kind.GAUGE, "Own blocks that a read given up may still write into."),
    Metric("proof_mismatch", Kind.COUNTER, "Handles of which less was proven than they cover."),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}

_COUNTER_OF_OUTCOME: Final = {
    Outcome.EMPTY.value: "claims_empty",
    Outcome.LATE.value: "claims_late",
    Outcome.UNCONNECTED.value: "claims_unconnected",
    Outcome.REFUSED.value: "claims_refused",
    Outcome.FAILED.value: "reads_failed",
}


def metric_of(key: str) -> tuple[Metric, str | None]:
    """The metric of a key in the stats' dict, and the label's value where it has one. KeyError for a foreign key."""
    name, _, value = key.removeprefix(PREFIX).partition(":")
    return BY_NAME[name], value or None


def add_up(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Add later numbers of ours to earlier ones, in place."""
    for key, value in more.items():
        kind = metric_of(key)[0].kind
        if kind is Kind.HISTOGRAM:
            into.setdefault(key, []).extend(value)
        elif kind is Kind.COUNTER:
            into[key] = into.get(key, 0) + value
        else:
            into[key] = value


class Recorder:
    """What happened since `take` was last called. Every method may be called from any thread and never waits."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._data: dict[str, Any] = {}
        self._gauges: Final[dict[str, int]] = {}

    @property
    def has_news(self) -> bool:
        """Whether `take` would give anything. An idle engine takes one more step for it, or its gauges would stay."""
        return bool(self._data)

    def take(self) -> dict[str, Any] | None:
        """Everything recorded since last time, or None; forgets it."""
        with self._lock:
            data, self._data = self._data, {}
        return data or None

    def claim_asked(self) -> None:
        """A question went to one owner."""
        self._count("claims_asked")

    def claim_answered(self, seconds: float) -> None:
        """An owner answered, so long after the question."""
        self._count("claims_answered")
        self._observe("claim_answer_seconds", seconds)

    def claim_ended(self, outcome: str, reason: str | None) -> None:
        """A request's question is settled."""
        self._count("claim_outcomes", outcome)
        name = _COUNTER_OF_OUTCOME.get(outcome)
        if name is not None:
            self._count(name, reason if BY_NAME[name].label else None)

    def read(self, direction: str, tokens: int, size_bytes: int) -> None:
        """So much of a prompt came from another engine."""
        self._count("read_tokens", direction, tokens)
        self._count("read_bytes", direction, size_bytes)

    def claim_granted(self, blocks: int, seconds: float) -> None:
        """This engine answered a question with so many blocks, maybe none."""
        if blocks:
            self._count("claims_granted")
            self._count("claims_granted_blocks", None, blocks)
        self._observe("claim_grant_seconds", seconds)

    def claim_refused_by_us(self, reason: str) -> None:
        """This engine refused a question."""
        self._count("claims_rejected", reason)

    def claims_released(self, by: str, count: int = 1) -> None:
        """Claims on this engine ended."""
        self._count("claims_released", by, count)

    def held(self, claims: int, blocks: int) -> None:
        """What claims hold on this engine from now on."""
        self._set("claims_held", claims)
        self._set("blocks_held", blocks)

    def retained(self, blocks: int) -> None:
        """A finished request's blocks are kept; `blocks` is what is kept in all now."""
        self._count("retained")
        self._set("blocks_retained", blocks)

    def retained_freed(self, blocks: int, *, expired: bool) -> None:
        """A kept request's blocks were let go; `blocks` is what is kept in all now."""
        if expired:
            self._count("retain_expired")
        self._set("blocks_retained", blocks)

    def retain_refused(self, reason: str) -> None:
        """Nothing was kept for a request, or its handle was not used."""
        self._count("retain_refused", reason)

    def quarantined(self, blocks: int) -> None:
        """So many own blocks are kept back from now on."""
        self._set("blocks_quarantined", blocks)

    def proof_mismatch(self) -> None:
        """A handle covers more than it proves for this prompt."""
        self._count("proof_mismatch")

    def _count(self, name: str, label: str | None = None, amount: int = 1) -> None:
        if amount:
            with self._lock:
                key = _key(name, label)
                self._data[key] = self._data.get(key, 0) + amount

    def _observe(self, name: str, value: float) -> None:
        with self._lock:
            self._data.setdefault(_key(name, None), []).append(value)

    def _set(self, name: str, value: int) -> None:
        with self._lock:
            if self._gauges.get(name, 0) != value:
                self._gauges[name] = value
                self._data[_key(name, None)] = value


def _key(name: str, label: str | None) -> str:
    metric = BY_NAME[name]
    if (metric.label is None) != (label is None):
        raise ValueError(f"{name} takes {'no label' if metric.label is None else f'the label {metric.label}'}")
    return f"{PREFIX}{name}" if label is None else f"{PREFIX}{name}:{label}"
