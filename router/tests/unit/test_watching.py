"""The watch's order of things, on a clock of its own and an API that is a script."""

import random
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_api_server import pod

from pdd_router.pods.reading import Ports
from pdd_router.pods.table import Listing, PodTable
from pdd_router.pods.watching import (
    ApiError,
    Backoff,
    Event,
    Failed,
    Heard,
    Pace,
    PodList,
    PodWatch,
    Report,
    Trouble,
    trouble_of_status,
)

PACE = Pace()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ScriptedApi:
    """``steps``: what the next calls do: an error to raise, a PodList, or events (with seconds that pass before each)."""

    clock: Clock
    steps: deque[Any] = field(default_factory=deque)
    calls: list[str] = field(default_factory=list)

    def list(self) -> PodList:
        self.calls.append("list")
        step = self.steps.popleft()
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, PodList)
        return step

    def watch(self, version: str, seconds: int) -> Generator[Event]:
        self.calls.append(f"watch {version}")
        assert 48 <= seconds <= 60
        step = self.steps.popleft()
        if isinstance(step, Exception):
            raise step
        return self._events(step)

    def _events(self, step: Any) -> Generator[Event]:
        for item in step:
            if isinstance(item, Exception):
                raise item
            if isinstance(item, int):
                self.clock.now += item
            else:
                yield item


def event(kind: str, value: dict[str, Any], version: str) -> Event:
    value["metadata"]["resourceVersion"] = version
    return Event(kind, value)


def make(*steps: Any) -> tuple[PodWatch, ScriptedApi, list[Report]]:
    clock = Clock()
    api, reports = ScriptedApi(clock, deque(steps)), list[Report]()
    watch = PodWatch(
        api, PodTable(Ports(8000, 6600)), pace=PACE, report=reports.append, stop=threading.Event(), clock=clock,
        chance=random.Random(1),
    )  # fmt: skip
    return watch, api, reports


def listings(reports: list[Report]) -> list[list[str]]:
    return [[i.engine.id.name for i in report.engines] for report in reports if isinstance(report, Listing)]


ONE = PodList("7", [pod("p-0")])


def test_lists_once_and_goes_on_watching_from_where_it_was() -> None:
    added = event("ADDED", pod("d-0", "decode"), "8")
    mark = Event("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    watch, api, reports = make(ONE, [added, 60], [mark, 60], [60])
    assert [watch.step() for _ in range(3)] == [0.0] * 3
    assert api.calls == ["list", "watch 7", "watch 8", "watch 20"]
    assert listings(reports) == [["p-0"], ["d-0", "p-0"]], "nothing is said that is no news"
    assert [r.kind for r in reports if isinstance(r, Heard) and r.kind] == ["ADDED", "BOOKMARK"]


@pytest.mark.parametrize(
    "gone",
    [
        ApiError(Trouble.GONE),
        [Event("ERROR", {"code": 410})],
        [Event("ADDED", {"metadata": {"resourceVersion": "8"}})],
        [Event("ADDED", "no object")],
        [ApiError(Trouble.MALFORMED)],
        ValueError("a bug"),
    ],
)
def test_lists_again_where_going_on_cannot_help(gone: Any) -> None:
    watch, api, _ = make(ONE, gone, PodList("9", []), [60])
    assert watch.step() > 0
    watch.step()
    assert api.calls == ["list", "watch 7", "list", "watch 9"]


@pytest.mark.parametrize("trouble", [Trouble.CUT, Trouble.TIMEOUT, Trouble.SERVER, Trouble.THROTTLED, Trouble.CONNECT])
def test_goes_on_from_its_version_after_other_trouble(trouble: Trouble) -> None:
    watch, api, reports = make(ONE, ApiError(trouble), [60])
    assert watch.step() > 0
    assert [report.trouble for report in reports if isinstance(report, Failed)] == [trouble]
    watch.step()
    assert api.calls == ["list", "watch 7", "watch 7"]
    assert listings(reports) == [["p-0"]]


def test_failed_list_reports_no_listing() -> None:
    watch, api, reports = make(ApiError(Trouble.CONNECT), ONE, [60])
    assert watch.step() > 0
    assert listings(reports) == []
    watch.step()
    assert api.calls == ["list", "list", "watch 7"]


def test_watches_that_end_at_once_are_no_hot_loop() -> None:
    watch, _, reports = make(ONE, *([[]] * 8), [60], [])
    delays = [watch.step() for _ in range(8)]
    assert delays == sorted(delays)
    assert delays[0] >= 0.25
    assert delays[-1] >= 15
    assert all(report.trouble is Trouble.CUT for report in reports if isinstance(report, Failed))
    assert watch.step() == 0.0, "a watch that lasted is no failure"
    assert watch.step() <= 0.5, "and all is forgiven"


def test_backoff_doubles_to_its_limit_and_spreads() -> None:
    first = Backoff(PACE, random.Random(1))
    delays = [first.next() for _ in range(10)]
    for at, delay in enumerate(delays):
        full = min(30.0, 0.5 * 2**at)
        assert full / 2 <= delay <= full
    other = Backoff(PACE, random.Random(2))
    assert delays != [other.next() for _ in range(10)]
    first.reset()
    assert first.next() <= 0.5


@pytest.mark.parametrize("asked", [1.0, 45.0])
def test_retry_after_is_never_undercut(asked: float) -> None:
    watch, _, _ = make(ApiError(Trouble.THROTTLED, retry_after_seconds=asked))
    assert watch.step() >= asked


def test_stops_and_says_nothing_of_being_cut() -> None:
    watch, api, reports = make(ONE, [])
    stop: Callable[[], None] = watch._stop.set
    api.steps[1] = _StopThenCut(stop)
    watch.run()
    assert api.calls == ["list", "watch 7"]
    assert not [report for report in reports if isinstance(report, Failed)]


class _StopThenCut:
    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __iter__(self) -> Iterator[Any]:
        self._stop()
        yield ApiError(Trouble.CUT)


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        (410, Trouble.GONE),
        (429, Trouble.THROTTLED),
        (401, Trouble.REFUSED),
        (403, Trouble.REFUSED),
        (500, Trouble.SERVER),
        (503, Trouble.SERVER),
        (404, Trouble.STATUS),
        (None, Trouble.STATUS),
    ],
)
def test_trouble_of_a_status(status: object, trouble: Trouble) -> None:
    assert trouble_of_status(status) is trouble
