"""Windows of samples: how far they reach, and that they are of the same engines."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from condition_case import SAMPLE

from pdd_operator.api.labels import REVISION_GROUP
from pdd_operator.api.names import NamespacedName
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.observed import Observed, ReuseSample, ReuseWindow
from pdd_operator.sampling import WINDOW_SECONDS, ReuseSampler, window_of, with_newest


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


def test_silence_is_compared_with_silence_and_not_with_having_nobody_to_ask() -> None:
    nobody, first, second = (
        replace(at(30.0 * number, ""), engines_asked=min(number, 1), engines_read=0) for number in range(3)
    )
    assert window_of(taken(nobody, first, second)) == ReuseWindow(first, second)


async def test_an_object_whose_engines_hang_keeps_no_other_waiting() -> None:
    told: asyncio.Queue[NamespacedName] = asyncio.Queue()

    async def sample(pods: tuple[Manifest, ...]) -> ReuseSample:
        if any(pod["metadata"]["name"] == "hangs" for pod in pods):
            await asyncio.Event().wait()
        return SAMPLE

    sampler = ReuseSampler(sample, 0.0, told.put_nowait)
    for name in ("hangs", "answers"):
        deployment = {"metadata": {"namespace": "a", "name": name}, "status": {"revision": "c0ffee"}}
        pod = {"metadata": {"name": name, "labels": {REVISION_GROUP: "c0ffee"}}}
        sampler.noted(Observed(deployment, {}, (pod,), ReuseWindow(None, None), SAMPLE.taken_at))
    running = asyncio.create_task(sampler.run())
    assert await asyncio.wait_for(told.get(), 5) == NamespacedName("a", "answers")
    running.cancel()
