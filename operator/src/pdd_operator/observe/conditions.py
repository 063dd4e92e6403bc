"""The set of conditions: findings in, the list of status.conditions out. Knows times, and nothing of engines. Pure.

Ready is the root of its dependents: False trumps Unknown, and the newest unhappy dependent gives reason and message.
``lastTransitionTime`` moves only when a status' value does, so what is equal stays equal and is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

from pdd_operator.observe.printable import printable
from pdd_operator.observe.reasons import ConditionType, Reason

MAX_MESSAGE_CHARACTERS: Final = 1024
Condition: TypeAlias = dict[str, Any]
"""One element of status.conditions, as the API server gives it."""

DEPENDENTS: Final = (
    ConditionType.ACCEPTED,
    ConditionType.RECONCILED,
    ConditionType.PREFILL_AVAILABLE,
    ConditionType.DECODE_AVAILABLE,
    ConditionType.ROUTER_AVAILABLE,
    ConditionType.TRANSPORT_READY,
)
"""What Ready depends on. Not on reuse, which needs traffic first; not on Stalled, which depends on Ready."""

_AS_ASKED: Final = frozenset((Reason.PAUSED, Reason.SCALED_TO_ZERO))
"""Not ready, and no wonder."""


class Truth(StrEnum):
    """A condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. ``message`` says what to do where something is to be done."""

    status: Truth
    reason: Reason
    message: str

    @property
    def is_happy(self) -> bool:
        return self.status is Truth.TRUE


NOT_OBSERVED: Final = Finding(Truth.UNKNOWN, Reason.NOT_OBSERVED, "The operator has not looked at this yet.")


def previous_conditions(status: Mapping[str, Any]) -> dict[str, Condition]:
    """Conditions of a status by their type; those without a type are left out."""
    return {str(condition["type"]): condition for condition in status.get("conditions") or [] if "type" in condition}


def assemble(
    findings: Mapping[ConditionType, Finding], previous: Mapping[str, Condition], generation: int, now: datetime
) -> list[Condition]:
    """Every condition, in the order of ConditionType. What has no finding is Unknown. Ready and Stalled may not be given.

    ``generation``: the object's, which is what was looked at.
    """
    dated: dict[ConditionType, Condition] = {
        kind: _dated(kind, findings.get(kind, NOT_OBSERVED), previous, generation, now)
        for kind in ConditionType
        if kind not in (ConditionType.READY, ConditionType.STALLED)
    }
    ready = ready_finding([dated[kind] for kind in DEPENDENTS])
    dated[ConditionType.READY] = _dated(ConditionType.READY, ready, previous, generation, now)
    return [dated[kind] for kind in ConditionType if kind in dated]


def with_stalled(
    conditions: list[Condition],
    stalled: Finding,
    previous: Mapping[str, Condition],
    generation: int,
    now: datetime,
) -> list[Condition]:
    """Stalled comes last, because it depends on how long Ready has not been True."""
    return [*conditions, _dated(ConditionType.STALLED, stalled, previous, generation, now)]


def ready_finding(dependents: Sequence[Condition]) -> Finding:
    """The root. Of several equally new the first in order counts."""
    for status in (Truth.FALSE, Truth.UNKNOWN):
        unhappy = [condition for condition in dependents if condition["status"] == status]
        if unhappy:
            newest = max(unhappy, key=lambda condition: str(condition["lastTransitionTime"]))
            return Finding(status, Reason(newest["reason"]), str(newest["message"]))
    return Finding(Truth.TRUE, Reason.ALL_AVAILABLE, "Prefill, decode and router are available.")


def stalled_finding(
    accepted: Condition, ready: Condition, progressed: datetime | None, deadline_seconds: int, now: datetime
) -> Finding:
    """``progressed``: when something got better last, None if nothing ever did. Abnormal when True."""
    if accepted["status"] == Truth.FALSE:
        return Finding(Truth.TRUE, Reason.INVALID_SPEC, "The spec must be changed: condition Accepted says what.")
    if ready["status"] == Truth.TRUE:
        return Finding(Truth.FALSE, Reason.COMPLETE, "Nothing is left to do.")
    if ready["reason"] in _AS_ASKED:
        return Finding(Truth.FALSE, Reason(ready["reason"]), "It is as somebody asked for it to be.")
    started = max(parse_time(ready["lastTransitionTime"]) or now, progressed or datetime.min.replace(tzinfo=UTC))
    if now - started <= timedelta(seconds=deadline_seconds):
        return Finding(Truth.FALSE, Reason.PROGRESSING, "It is on its way.")
    message = (
        f"Nothing got better within `spec.rollout.progressDeadlineSeconds` ({deadline_seconds} s): {ready['message']}"
    )
    return Finding(Truth.TRUE, Reason.PROGRESS_DEADLINE_EXCEEDED, message)


def format_time(moment: datetime) -> str:
    """RFC 3339 in whole seconds, UTC, as metav1.Time has it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: object) -> datetime | None:
    """None for what is no aware RFC 3339 time: a pod's status is not ours to trust."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _dated(
    kind: ConditionType, finding: Finding, previous: Mapping[str, Condition], generation: int, now: datetime
) -> Condition:
    before = previous.get(kind, {})
    unchanged = before.get("status") == finding.status and before.get("lastTransitionTime")
    return {
        "type": kind.value,
        "status": finding.status.value,
        "reason": finding.reason.value,
        "message": shortened(finding.message),
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if unchanged else format_time(now),
    }


def shortened(message: str, limit: int = MAX_MESSAGE_CHARACTERS) -> str:
    """At most ``limit`` characters, on one line, and no orders to terminals: part of a message may come from a container."""
    line = printable(" ".join(message.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"
