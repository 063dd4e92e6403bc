"""Reads the engines' counters of every object now and then, beside the reconciles and never in their way.

Two samples of the same object make a window of some minutes, so that little traffic is evidence too; what came of it is told by putting the
object into the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import structlog

from pdd_operator.api import labels
from pdd_operator.api.names import NamespacedName
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.observed import Observed, ReuseSample, ReuseWindow

_log = structlog.stdlib.get_logger(__name__)

Sample = Callable[[tuple[Manifest, ...]], Awaitable[ReuseSample]]
_EMPTY = ReuseWindow(None, None)
WINDOW_SECONDS = 300.0
"""How far back a window reaches, if samples are taken so often."""
OBJECTS_AT_ONCE = 32


def window_of(samples: Sequence[ReuseSample]) -> ReuseWindow:
    """From the oldest sample of the same engines as the newest one's to that; without such a one from the sample before it. Pure."""
    if not samples:
        return _EMPTY
    *earlier, newest = samples
    alike = (
        one for one in earlier if (one.engines, one.engines_asked > 0) == (newest.engines, newest.engines_asked > 0)
    )
    return ReuseWindow(next(alike, earlier[-1] if earlier else None), newest)


def with_newest(samples: Sequence[ReuseSample], newest: ReuseSample) -> tuple[ReuseSample, ...]:
    """Those of the window's time, and always the last one before the newest. Pure."""
    since = newest.taken_at - timedelta(seconds=WINDOW_SECONDS)
    return (*(sample for sample in samples[:-1] if sample.taken_at >= since), *samples[-1:], newest)


class ReuseSampler:
    """``noted`` and ``window`` are called from worker threads, the rest in the event loop. One entry per object that exists."""

    def __init__(self, sample: Sample, every_seconds: float, sampled: Callable[[NamespacedName], None]) -> None:
        self._sample = sample
        self._every_seconds = every_seconds
        self._sampled = sampled
        self._pods: dict[NamespacedName, tuple[Manifest, ...]] = {}
        self._samples: dict[NamespacedName, tuple[ReuseSample, ...]] = {}

    def noted(self, observed: Observed) -> None:
        """These are its pods now; engines of older revision groups count no more."""
        metadata, current = observed.deployment["metadata"], (observed.deployment.get("status") or {}).get("revision")
        self._pods[NamespacedName(metadata["namespace"], metadata["name"])] = tuple(
            pod for pod in observed.pods if (pod["metadata"].get("labels") or {}).get(labels.REVISION_GROUP) == current
        )

    def forget(self, key: NamespacedName) -> None:
        """The object is gone."""
        self._pods.pop(key, None)
        self._samples.pop(key, None)

    def window(self, key: NamespacedName) -> ReuseWindow:
        """What the last samples say."""
        return window_of(self._samples.get(key, ()))

    async def run(self) -> None:
        """Until cancelled: every object once per period, many at once, so that one whose engines hang keeps no other waiting."""
        turns = asyncio.Semaphore(OBJECTS_AT_ONCE)
        while True:
            await asyncio.sleep(self._every_seconds)
            await asyncio.gather(*(self._sample_one(turns, key, pods) for key, pods in list(self._pods.items())))

    async def _sample_one(self, turns: asyncio.Semaphore, key: NamespacedName, pods: tuple[Manifest, ...]) -> None:
        async with turns:
            sample = await self._sample(pods)
        if key in self._pods:
            self._samples[key] = with_newest(self._samples.get(key, ()), sample)
            self._sampled(key)
