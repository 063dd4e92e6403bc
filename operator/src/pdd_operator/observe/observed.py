"""Everything that was read about one PDDeployment at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pdd_operator.api.names import ObjectRef
from pdd_operator.api.objects import Manifest


@dataclass(frozen=True, slots=True)
class ReuseSample:
    """Counters of all engines of the current group together, added up, at one moment.

    Bytes and tokens that prefill engines read from others (D to P, P to P) and that decode engines read. Claims are those of prefill engines alone:
    requests whose history was looked for. With Retain: requests that decode kept blocks for, that were refused, and kept ones that expired.
    ``decode_to_prefill_bytes_read``: the part of ``prefill_bytes_read`` that is reuse of earlier turns.
    """

    taken_at: datetime
    engines_asked: int
    """How many were ready, and so had to answer."""
    engines_read: int
    """How many did."""
    prefill_bytes_read: float
    decode_bytes_read: float
    prefill_tokens_read: float
    claims_asked: float
    claims_empty: float
    claims_refused: Mapping[str, float]
    """By reason."""
    claims_late: float
    decode_to_prefill_bytes_read: float = 0.0
    prefill_prompt_tokens: float = 0.0
    claims_unconnected: float = 0.0
    reads_failed: float = 0.0
    engines: frozenset[str] = frozenset()
    """Which engines answered: another process of an engine is another one."""


@dataclass(frozen=True, slots=True)
class ReuseWindow:
    """Two samples of the same engines; ``before`` None until there are two."""

    before: ReuseSample | None
    after: ReuseSample | None


@dataclass(frozen=True, slots=True)
class Observed:
    """``deployment``: the object as the API server gives it. ``children``: every object labelled as its own, without pods.

    ``pods``: its engine and router pods, terminating ones too. ``now``: aware, UTC.
    """

    deployment: Manifest
    children: Mapping[ObjectRef, Manifest]
    pods: tuple[Manifest, ...]
    reuse: ReuseWindow
    now: datetime
    refusals: Mapping[ObjectRef, str] = field(default_factory=dict)
    """Why StatefulSets that lack pods could not make them, as their newest event says."""
