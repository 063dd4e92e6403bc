"""Reads the engines' counters of every object now and then, beside the reconciles and never in their way.

Two samples of the same object make a window; what came of it is told by putting the object into the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from pdd_operator.api import labels
from pdd_operator.api.names import NamespacedName
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.observed import Observed, ReuseSample, ReuseWindow

_log = structlog.stdlib.get_logger(__name__)

Sample = Callable[[tuple[Manifest, ...]], Awaitable[ReuseSample]]
_EMPTY = ReuseWindow(None, None)


class ReuseSampler:
    """``noted`` and ``window`` are called from worker threads, the rest in the event loop. One entry per object that exists."""

    def __init__(self, sample: Sample, every_seconds: float, sampled: Callable[[NamespacedName], None]) -> None:
        self._sample = sample
        self._every_seconds = every_seconds
        self._sampled = sampled
        self._pods: dict[NamespacedName, tuple[Manifest, ...]] = {}
        self._windows: dict[NamespacedName, ReuseWindow] = {}

    def noted(self, observed: Observed) -> None:
        """These are its pods now; engines of older revision groups count no more."""
        metadata, current = observed.deployment["metadata"], (observed.deployment.get("status") or {}).get("revision")
        self._pods[NamespacedName(metadata["namespace"], metadata["name"])] = tuple(
            pod for pod in observed.pods if (pod["metadata"].get("labels") or {}).get(labels.REVISION_GROUP) == current
        )

    def forget(self, key: NamespacedName) -> None:
        """The object is gone."""
        self._pods.pop(key, None)
        self._windows.pop(key, None)

    def window(self, key: NamespacedName) -> ReuseWindow:
        """The last two samples."""
        return self._windows.get(key, _EMPTY)

    async def run(self) -> None:
        """Until cancelled: every object once per period, one after the other."""
        while True:
            await asyncio.sleep(self._every_seconds)
            for key, pods in list(self._pods.items()):
                await self._sample_one(key, pods)

    async def _sample_one(self, key: NamespacedName, pods: tuple[Manifest, ...]) -> None:
        sample = await self._sample(pods)
        if key in self._pods:
            self._windows[key] = ReuseWindow(self.window(key).after, sample)
            self._sampled(key)
