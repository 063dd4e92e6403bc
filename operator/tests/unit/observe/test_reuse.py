"""Verdicts on reuse: what takes one back, what leaves it, and that a steady flow says the same words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from condition_case import GIB, SAMPLE, condition, window
from hypothesis import given
from hypothesis import strategies as st

from pdd_operator.api.v1alpha1 import KVTransfer
from pdd_operator.observe.conditions import Finding, Truth
from pdd_operator.observe.observed import ReuseSample, ReuseWindow
from pdd_operator.observe.reasons import ConditionType, Reason
from pdd_operator.observe.reuse import change_between, judge_reuse

CLAIM = KVTransfer()


def as_condition(finding: Finding) -> dict[str, Any]:
    return condition(ConditionType.REUSE_ACTIVE, finding.status, finding.reason, finding.message)


def judge(some: ReuseWindow, before: Finding | None = None, engines: int = 4, transfer: KVTransfer = CLAIM) -> Finding:
    return judge_reuse(some, transfer, engines, None if before is None else as_condition(before))


def moved(share: float = 0.9, gib: float = 4.0) -> ReuseWindow:
    return window(
        prefill_bytes_read=gib * GIB,
        decode_to_prefill_bytes_read=gib * GIB,
        prefill_tokens_read=share * 200_000,
        prefill_prompt_tokens=200_000.0,
        claims_asked=100.0,
    )


MOVED = judge(moved())
EMPTY = judge(window(claims_asked=50.0, claims_empty=50.0))


@given(st.floats(0.80, 1.0), st.floats(0.1, 10_000))
def test_a_steady_flow_says_the_same_words(share: float, gib: float) -> None:
    assert judge(moved(share, gib), MOVED) == MOVED


def test_a_share_that_is_far_from_what_was_said_is_said_anew_once() -> None:
    dropped = judge(moved(0.31), MOVED)
    assert "about 30 %" in dropped.message
    assert judge(moved(0.36), dropped) == dropped


def test_without_evidence_the_verdict_stays() -> None:
    for none in (ReuseWindow(None, None), ReuseWindow(None, SAMPLE), window()):
        for verdict in (MOVED, EMPTY):
            assert judge(none, verdict) == verdict


def test_an_engine_that_began_anew_or_came_along_is_no_evidence() -> None:
    back = ReuseWindow(replace(SAMPLE, claims_asked=9.0), SAMPLE)
    refusal_gone = ReuseWindow(replace(SAMPLE, claims_refused={"Group": 2.0}), SAMPLE)
    others = window(engines=frozenset("abx"), decode_to_prefill_bytes_read=GIB)
    for none in (back, refusal_gone, others):
        assert change_between(none) is None
        assert judge(none, EMPTY) == EMPTY
        assert judge(none).reason is Reason.NOT_OBSERVED


def test_one_miss_takes_nothing_back_and_many_do() -> None:
    assert judge(window(claims_asked=1.0, claims_empty=1.0), MOVED) == MOVED
    assert judge(window(claims_asked=50.0, claims_empty=50.0), MOVED).reason is Reason.ALL_EMPTY
    assert judge(window(prefill_prompt_tokens=500.0), MOVED) == MOVED
    assert judge(window(prefill_prompt_tokens=500_000.0), MOVED).reason is Reason.NO_SECOND_TURNS


def test_one_byte_is_enough_for_true() -> None:
    assert judge(window(decode_to_prefill_bytes_read=1.0, prefill_bytes_read=1.0), EMPTY).status is Truth.TRUE


def test_two_causes_do_not_alternate() -> None:
    some = window(claims_asked=100.0, claims_empty=45.0, claims_late=55.0)
    other = window(claims_asked=100.0, claims_empty=55.0, claims_late=45.0)
    late = judge(some)
    assert late.reason is Reason.CLAIMS_LATE
    assert judge(other, late) == late
    assert judge(window(claims_asked=100.0, claims_empty=95.0, claims_late=5.0), late).reason is Reason.ALL_EMPTY


def test_what_was_no_verdict_is_not_kept() -> None:
    asked_one_way = KVTransfer.model_validate({"direction": "PrefillToDecode"})
    not_asked = judge(moved(), MOVED, transfer=asked_one_way)
    assert not_asked.reason is Reason.NOT_ASKED
    assert judge(ReuseWindow(None, None), not_asked).reason is Reason.NOT_OBSERVED
    foreign = {"type": "ReuseActive", "status": "True", "reason": "OfAnotherRelease", "message": "x"}
    assert judge_reuse(ReuseWindow(None, None), CLAIM, 4, foreign).reason is Reason.NOT_OBSERVED


def test_unreachable_needs_engines_and_two_samples() -> None:
    none: ReuseSample = replace(SAMPLE, engines_read=0, engines=frozenset())
    assert judge(ReuseWindow(none, none), MOVED).reason is Reason.ENGINES_UNREACHABLE
    assert judge(ReuseWindow(none, none), MOVED, engines=0) == MOVED
    assert judge(ReuseWindow(None, none), MOVED) == MOVED
    assert judge(ReuseWindow(SAMPLE, none), MOVED) == MOVED


def test_engines_that_were_not_ready_when_they_were_read_are_not_unreachable() -> None:
    """Right after a start: two samples of nobody, and now they are ready."""
    nobody: ReuseSample = replace(SAMPLE, engines_asked=0, engines_read=0, engines=frozenset())
    silent = replace(nobody, engines_asked=4)
    for starting in (ReuseWindow(nobody, nobody), ReuseWindow(nobody, silent)):
        assert judge(starting).reason is Reason.NOT_OBSERVED
        assert judge(starting, MOVED) == MOVED
    assert judge(ReuseWindow(silent, silent)).reason is Reason.ENGINES_UNREACHABLE


@pytest.mark.parametrize(
    "reason",
    [
        "Version",
        "Group",
        "ReaderFull",
        "OwnerFull",
        "Place",
        "Stopping",
        "Asleep",
        "Unauthenticated",
        "Malformed",
        "New",
    ],
)
def test_each_refusal_says_what_to_do(reason: str) -> None:
    finding = judge(window(claims_asked=5.0, claims_refused={reason: 5.0}))
    assert finding.reason is Reason.CLAIMS_REFUSED
    assert f"({reason}): " in finding.message


def test_sizes_are_in_words() -> None:
    sizes = {5.0: "5 bytes", 2048.0: "2.0 KiB", 3.5 * (1 << 20): "3.5 MiB", 2.0 * (1 << 40): "2.0 TiB"}
    for size, text in sizes.items():
        assert text in judge(window(decode_to_prefill_bytes_read=size)).message
