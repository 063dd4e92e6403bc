"""List, then watch, for ever: what to ask of the API server when, and how long to wait after a failure.

Runs in a thread of its own, as the Kubernetes client blocks; tells the event loop by ``report`` alone and touches nothing
of it. While the API server is away it reports failures and no listing, so the last one stays in force.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import structlog

from pdd_router.logs import frames_of
from pdd_router.pods.table import Listing, MalformedEventError, PodTable

_log = structlog.get_logger(__name__)


class Trouble(StrEnum):
    """Why a list or watch failed; a metric label."""

    CONNECT = "Connect"
    TIMEOUT = "Timeout"
    CUT = "Cut"
    GONE = "Gone"  # 410: the version to watch from is too old
    THROTTLED = "Throttled"
    REFUSED = "Refused"  # 401, 403
    SERVER = "Server"
    STATUS = "Status"
    MALFORMED = "Malformed"
    INTERNAL = "Internal"


# Where going on from the version that was reached cannot help.
_LIST_AGAIN = frozenset({Trouble.GONE, Trouble.STATUS, Trouble.MALFORMED, Trouble.INTERNAL})


class ApiError(Exception):
    def __init__(self, trouble: Trouble, retry_after_seconds: float | None = None) -> None:
        super().__init__(trouble.value)
        self.trouble = trouble
        self.retry_after_seconds = retry_after_seconds


def trouble_of_status(status: object) -> Trouble:
    if status == 410:
        return Trouble.GONE
    if status == 429:
        return Trouble.THROTTLED
    if status in (401, 403):
        return Trouble.REFUSED
    return Trouble.SERVER if isinstance(status, int) and status >= 500 else Trouble.STATUS


@dataclass(frozen=True, slots=True)
class Pace:
    """``watch_seconds``: the API server ends a watch after it; ``grace_seconds`` later a silent connection is taken for
    dead. A watch shorter than ``settled_seconds`` is no sign that all is well again."""

    connect_seconds: float = 5.0
    list_seconds: float = 30.0
    watch_seconds: int = 60
    grace_seconds: float = 5.0
    settled_seconds: float = 5.0
    backoff_base_seconds: float = 0.5
    backoff_max_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class PodList:
    version: str
    items: list[object]


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    object: object


class PodApi(Protocol):
    """Both raise ApiError."""

    def list(self) -> PodList: ...

    def watch(self, version: str, seconds: int) -> Generator[Event]: ...


@dataclass(frozen=True, slots=True)
class Heard:
    """The API server answered. ``kind``: of the watch event that it was, if it was one."""

    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """``verb``: what failed, ``list`` or ``watch``."""

    trouble: Trouble
    retry_in_seconds: float
    verb: str


Report = Heard | Failed | Listing


class Backoff:
    """Waiting times that double up to a limit, each drawn from its upper half, and never below what the server asked."""

    def __init__(self, pace: Pace, chance: random.Random) -> None:
        self._pace = pace
        self._chance = chance
        self._failures = 0

    def next(self, retry_after_seconds: float | None = None) -> float:
        full = min(self._pace.backoff_max_seconds, self._pace.backoff_base_seconds * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return max(full * self._chance.uniform(0.5, 1.0), retry_after_seconds or 0.0)

    def reset(self) -> None:
        self._failures = 0


class PodWatch:
    """``clock``: monotonic seconds. ``stop``: set it, and interrupt the API, to end ``run``."""

    def __init__(
        self,
        api: PodApi,
        table: PodTable,
        *,
        pace: Pace,
        report: Callable[[Report], None],
        stop: threading.Event,
        clock: Callable[[], float],
        chance: random.Random,
    ) -> None:
        self._api = api
        self._table = table
        self._pace = pace
        self._report = report
        self._stop = stop
        self._clock = clock
        self._chance = chance
        self._backoff = Backoff(pace, chance)
        self._version: str | None = None
        self._reported: Listing | None = None

    def run(self) -> None:
        """Until stopped."""
        while not self._stop.is_set():
            delay = self.step()
            if delay:
                self._stop.wait(delay)

    def step(self) -> float:
        """List where that is needed, then one watch. Returns how long to wait before the next step, in seconds."""
        trouble: Trouble | None = None
        retry_after: float | None = None
        began, verb = self._clock(), "list"
        try:
            if self._version is None:
                self._list()
            began, verb = self._clock(), "watch"
            self._watch(self._version or "")
        except ApiError as error:
            trouble, retry_after = error.trouble, error.retry_after_seconds
        except Exception as error:  # noqa: BLE001  # a bug must cost a relist, and be said, but not end discovery
            trouble = Trouble.INTERNAL
            _log.error("Failed unexpectedly", exception=type(error).__name__, frames=frames_of(error))
        settled = self._clock() - began >= self._pace.settled_seconds
        if settled:
            self._backoff.reset()
            if trouble is None:
                return 0.0
        return self._failed(verb, trouble or Trouble.CUT, retry_after)

    def _failed(self, verb: str, trouble: Trouble, retry_after_seconds: float | None) -> float:
        if trouble in _LIST_AGAIN:
            self._version = None
        delay = self._backoff.next(retry_after_seconds)
        if not self._stop.is_set():
            self._report(Failed(trouble, delay, verb))
        return delay

    def _list(self) -> None:
        pods = self._api.list()
        self._table.reset(pods.items)
        self._version = pods.version
        self._report(Heard())
        self._report(self._table.listing())
        self._reported = self._table.listing()

    def _watch(self, version: str) -> None:
        # Drawn, so that many routers do not come back all at once.
        seconds = max(1, round(self._pace.watch_seconds * self._chance.uniform(0.8, 1.0)))
        with contextlib.closing(self._api.watch(version, seconds)) as events:
            self._report(Heard())
            for event in events:
                self._report(Heard(event.kind))
                self._apply(event)

    def _apply(self, event: Event) -> None:
        if event.kind == "ERROR":
            code = event.object.get("code") if isinstance(event.object, dict) else None
            raise ApiError(trouble_of_status(code))
        version = _version_of(event.object)
        try:
            if version is None:
                raise MalformedEventError
            if event.kind != "BOOKMARK":
                self._table.apply(event.kind, event.object)
        except MalformedEventError:
            raise ApiError(Trouble.MALFORMED) from None
        self._version = version
        listing = self._table.listing()
        if listing != self._reported:
            self._reported = listing
            self._report(listing)


def _version_of(value: object) -> str | None:
    metadata = value.get("metadata") if isinstance(value, dict) else None
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) and version else None
