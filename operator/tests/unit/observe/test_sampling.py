"""Windows of samples: how far they reach, and that they are of the same engines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from condition_cases import SAMPLE

from pdd_operator.observe.observed import ReuseSample, ReuseWindow
from pdd_operator.sampling import WINDOW_SECONDS, window_of, with_newest


def at(seconds: float, engines: str = "ab") -> ReuseSample:
    return replace(SAMPLE, taken_at=SAMPLE.taken_at + timedelta(seconds=seconds), engines=frozenset(engines))


def taken(*samples: ReuseSample) -> tuple[ReuseSample, ...]:
    kept: tuple[ReuseSample, ...] = ()
    for sample in samples:
        kept = with_newest(kept, sample)
    return kept


def test_a_window_needs_two_samples() -> None:
    assert window_of(()) == ReuseWindow(None, None)
    assert window_of(taken(at(0))) == ReuseWindow(None, at(0))
    assert window_of(taken(at(0), at(30))) == ReuseWindow(at(0), at(30))


def test_a_window_reaches_back_some_minutes_and_no_further() -> None:
    kept = taken(*(at(30.0 * number) for number in range(100)))
    window = window_of(kept)
    assert window.before is not None and window.after is not None
    assert (window.after.taken_at - window.before.taken_at).total_seconds() == WINDOW_SECONDS
    assert len(kept) == WINDOW_SECONDS / 30 + 1


def test_samples_that_are_far_apart_still_make_a_window() -> None:
    assert window_of(taken(at(0), at(3600), at(7200))) == ReuseWindow(at(3600), at(7200))


def test_a_window_is_of_the_same_engines_where_there_are_such_samples() -> None:
    assert window_of(taken(at(0, "ab"), at(30, "a"), at(60, "ab"))) == ReuseWindow(at(0, "ab"), at(60, "ab"))
    assert window_of(taken(at(0, "ab"), at(30, "abc"))) == ReuseWindow(at(0, "ab"), at(30, "abc"))
