"""Whether prefill engines read the KV of earlier turns, from two samples of their counters; and why not, when not. Pure.

A verdict needs evidence: without any the one before stays, so an idle night or a new operator process changes nothing.
Numbers are told when a verdict is new or far from what it says; the dashboard has them live. A steady flow writes no status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pdd_operator.api.v1alpha1 import Direction, KVTransfer, Mechanism
from pdd_operator.observe.conditions import Condition, Finding, Truth
from pdd_operator.observe.observed import ReuseSample, ReuseWindow
from pdd_operator.observe.reasons import Reason

MIN_REQUESTS: Final = 10
MIN_PROMPT_TOKENS: Final = 100_000
"""Either is enough evidence to take back a verdict; a single miss is none."""
RESTATE_POINTS: Final = 25
"""The share is told anew when it is so many percentage points from what the message says."""
KEEP_REASON_SHARE: Final = 0.25
"""The reason given before stays as long as it explains this part of the misses: two causes must not alternate."""
_NO_VERDICT: Final = frozenset((Reason.NOT_OBSERVED, Reason.NOT_ASKED, Reason.ENGINES_UNREACHABLE))
_SHARE: Final = re.compile(r"about (\d+) % of")

_WAITING: Final = Finding(
    Truth.UNKNOWN, Reason.NOT_OBSERVED, "The counters of the engines were not read twice yet: it takes a minute or two."
)
REFUSALS: Final = {
    "Version": "engines speak different versions of the protocol: all must have one connector image",
    "Group": "engines differ in what must match, although they are of one revision: restart those whose weights were changed",
    "ReaderFull": "a prefill engine has too little room to read into: lower the load or raise its KV cache",
    "OwnerFull": "an engine holds as much for others as it may: raise `spec.kvTransfer.claim.maxPercentOfBlocks` or lower `.holdSeconds`",
    "Place": "an engine gives a loopback address as its own: its pod must have an IP",
    "Stopping": "the engines that hold the history are stopping",
    "Asleep": "the engines that hold the history sleep",
    "Unauthenticated": "engines have different claim keys: delete the pods whose Secret was made anew",
    "Malformed": "an engine or the router sent something malformed: all must be of one release",
    "Cap": "decode keeps as much as it may: raise `spec.kvTransfer.retain.maxPercentOfBlocks` or lower `.decoderBlocksTTLSeconds`",
    "Replayed": "a handle came a second time: the router must be of the operator's release",
    "Direction": "a handle came to an engine that may not read it",
    "NoProof": "a handle came without proof: engines must have the operator's connector",
    "Other": "for a reason that the operator does not know: engines and operator must be of one release",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What happened between two samples of the same engines; nothing in it is negative."""

    bytes_reused: float
    bytes_read: float
    tokens_read: float
    prompt_tokens: float
    asked: float
    refused: Mapping[str, float]
    misses: Mapping[Reason, float]
    """Requests that got nothing, by the reason of the verdict."""

    @property
    def is_evidence(self) -> bool:
        return self.asked >= MIN_REQUESTS or self.prompt_tokens >= MIN_PROMPT_TOKENS

    @property
    def share_percent(self) -> int:
        """Prompt tokens at prefill that were read from others, to the next 10."""
        if self.prompt_tokens <= 0:
            return 0
        return min(100, round(10 * self.tokens_read / self.prompt_tokens) * 10)


def judge_reuse(window: ReuseWindow, transfer: KVTransfer, ready_engines: int, previous: Condition | None) -> Finding:
    """The verdict, given the one before. ``ready_engines``: of the current group, which should have answered."""
    if transfer.direction is Direction.PREFILL_TO_DECODE:
        message = "Decode reads from prefill alone: `spec.kvTransfer.direction` is PrefillToDecode."
        return Finding(Truth.FALSE, Reason.NOT_ASKED, message)
    before = _verdict_of(previous)
    if _is_unreachable(window) and ready_engines:
        return Finding(
            Truth.UNKNOWN,
            Reason.ENGINES_UNREACHABLE,
            "No engine answered when its counters were read: the operator must reach port 8000 of engine pods (NetworkPolicy, service mesh).",
        )
    change = change_between(window)
    if change is None:
        return before or _WAITING
    fresh = _judge(change, transfer.mechanism, None if before is None else before.reason)
    return fresh if before is None else _damped(fresh, before, change)


def change_between(window: ReuseWindow) -> Change | None:
    """None without two samples of the same engines: a counter that went back, or came along, is no evidence."""
    before, after = window.before, window.after
    if before is None or after is None or not before.engines_read or before.engines != after.engines:
        return None
    refused = {reason: count - before.claims_refused.get(reason, 0.0) for reason, count in after.claims_refused.items()}
    differences = _differences(before, after)
    if min(*differences.values(), *refused.values(), 0.0) < 0 or set(before.claims_refused) - set(refused):
        return None
    return Change(
        bytes_reused=differences["decode_to_prefill_bytes_read"],
        bytes_read=differences["prefill_bytes_read"],
        tokens_read=differences["prefill_tokens_read"],
        prompt_tokens=differences["prefill_prompt_tokens"],
        asked=differences["claims_asked"],
        refused={reason: count for reason, count in refused.items() if count},
        misses={
            Reason.CLAIMS_REFUSED: sum(refused.values()),
            Reason.CLAIMS_LATE: differences["claims_late"],
            Reason.UNCONNECTED: differences["claims_unconnected"],
            Reason.READS_FAILING: differences["reads_failed"],
            Reason.ALL_EMPTY: differences["claims_empty"],
        },
    )


_COUNTERS: Final = (
    "decode_to_prefill_bytes_read",
    "prefill_bytes_read",
    "prefill_tokens_read",
    "prefill_prompt_tokens",
    "claims_asked",
    "claims_late",
    "claims_unconnected",
    "reads_failed",
    "claims_empty",
)


def _differences(before: ReuseSample, after: ReuseSample) -> dict[str, float]:
    return {name: float(getattr(after, name)) - float(getattr(before, name)) for name in _COUNTERS}


def _is_unreachable(window: ReuseWindow) -> bool:
    """Twice there were engines to ask and none answered. While they start there are none."""
    samples = (window.before, window.after)
    return all(sample is not None and sample.engines_asked and not sample.engines_read for sample in samples)


def _verdict_of(previous: Condition | None) -> Finding | None:
    """The verdict of before, None where it was none, or of a release that had other reasons."""
    if previous is None or previous.get("reason") not in set(Reason) - _NO_VERDICT:
        return None
    return Finding(Truth(previous["status"]), Reason(previous["reason"]), str(previous["message"]))


def _judge(change: Change, mechanism: Mechanism, reason_before: Reason | None) -> Finding:
    if change.bytes_reused > 0:
        return Finding(Truth.TRUE, Reason.BYTES_MOVED, _moved_message(change))
    if change.bytes_read > 0:
        message = "Prefill engines read history from each other, and nothing from decode engines: those hold none of it any more."
        return Finding(Truth.FALSE, Reason.PREFILL_ONLY, message)
    if change.asked <= 0 and not any(change.misses.values()):
        return _nothing_asked(change, mechanism)
    total = sum(change.misses.values())
    if total <= 0:
        message = "History was looked for and none was read; the engines' counters do not say why: see their logs."
        return Finding(Truth.FALSE, Reason.NOTHING_READ, message)
    reason = max(change.misses, key=lambda miss: change.misses[miss])
    if reason_before is not None and change.misses.get(reason_before, 0.0) >= KEEP_REASON_SHARE * total:
        reason = reason_before
    return Finding(Truth.FALSE, reason, _why(reason, change, mechanism))


def _nothing_asked(change: Change, mechanism: Mechanism) -> Finding:
    if change.prompt_tokens <= 0:
        return Finding(Truth.UNKNOWN, Reason.NO_TRAFFIC, "No prompt has reached prefill since this was last looked at.")
    named = (
        "decode kept no blocks for a next turn"
        if mechanism is Mechanism.RETAIN
        else "none named engines that hold its history"
    )
    message = f"Prompts reach prefill and {named}: they are first turns, or `spec.router.conversationTTLSeconds` is shorter than the pauses between turns."
    return Finding(Truth.UNKNOWN, Reason.NO_SECOND_TURNS, message)


def _moved_message(change: Change) -> str:
    share = (
        f"; about {change.share_percent} % of the prompt tokens at prefill were read" if change.prompt_tokens else ""
    )
    return f"Prefill reads earlier turns from decode: {_size(change.bytes_reused)} when this was last judged{share}."


def _size(size_bytes: float) -> str:
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes:.0f} bytes"


def _why(reason: Reason, change: Change, mechanism: Mechanism) -> str:
    if reason is Reason.CLAIMS_REFUSED:
        most = min(change.refused, key=lambda name: (-change.refused[name], name))
        return f"History is refused ({most}): {REFUSALS.get(most, 'see docs/protocol.md')}."
    if reason is Reason.CLAIMS_LATE and mechanism is Mechanism.RETAIN:
        return "Kept blocks expire before the next turn comes: raise `spec.kvTransfer.retain.decoderBlocksTTLSeconds`, or use the mechanism Claim."
    return {
        Reason.CLAIMS_LATE: "Engines answer too late: raise `spec.kvTransfer.claim.timeoutMilliseconds`, or they have too little CPU.",
        Reason.UNCONNECTED: "Engines are not connected with those that hold the history: ports 5600 and 6600 between engine pods must be open, both ways.",
        Reason.READS_FAILING: "Reads fail or exceed `spec.kvTransfer.readTimeoutMilliseconds`: see the engines' logs and the condition TransportReady.",
        Reason.ALL_EMPTY: (
            "Engines were asked for history and had nothing (more) of it: the prompts are first turns, or the KV cache of decode is too small "
            "for the pauses between turns."
        ),
    }[reason]


def _damped(fresh: Finding, before: Finding, change: Change) -> Finding:
    """The verdict of before where nothing speaks against it."""
    if fresh.reason is Reason.NO_TRAFFIC:
        return before
    if fresh.reason is not before.reason:
        return fresh if fresh.is_happy or change.is_evidence else before
    if fresh.reason is not Reason.BYTES_MOVED:
        return fresh
    stated = _SHARE.search(before.message)
    if stated is None or abs(int(stated[1]) - change.share_percent) < RESTATE_POINTS:
        return before
    return fresh
