"""Dead watches are noticed and living ones are not blamed; an event is written once and then counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from pdd_operator.__main__ import Operator
from pdd_operator.errors import NotFoundError, TransientError
from pdd_operator.kube.events import EventRecorder
from pdd_operator.observe.events import Event
from pdd_operator.watches import WatchMonitor

DEPLOYMENT = {"metadata": {"namespace": "agents", "name": "a", "uid": "u", "resourceVersion": "1"}}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def seen(version: str, uid: str = "s", kind: str = "Service") -> Any:
    return {"kind": kind, "metadata": {"uid": uid, "resourceVersion": version}}


def monitor(clock: Clock) -> WatchMonitor:
    found = WatchMonitor(clock, 60.0)
    found.expect(["Service"])
    return found


def test_a_change_that_no_watch_tells_makes_its_kind_silent() -> None:
    clock = Clock()
    watches = monitor(clock)
    watches.told("s", "1")
    clock.now = 10
    watches.listed([seen("2")], read_at=9)
    clock.now = 70
    assert watches.silent_kinds() == ()
    clock.now = 71
    assert watches.silent_kinds() == ("Service",)
    watches.told("s", "3")
    assert watches.silent_kinds() == ()


def test_a_watch_that_was_quicker_than_the_list_is_not_blamed() -> None:
    clock = Clock()
    watches = monitor(clock)
    clock.now = 5
    watches.told("s", "3")
    watches.listed([seen("2")], read_at=4)
    clock.now = 500
    assert watches.silent_kinds() == ()


def test_what_is_deleted_and_what_is_not_watched_is_not_waited_for() -> None:
    clock = Clock()
    watches = monitor(clock)
    watches.listed([seen("1"), seen("1", "p", "PodMonitor")], read_at=0)
    watches.told("s", "2", deleted=True)
    clock.now = 500
    assert watches.silent_kinds() == ()


def test_a_list_that_is_older_than_a_deletion_blames_nobody() -> None:
    """Else every such race made the operator unhealthy some minutes later, and for good."""
    clock = Clock()
    watches = monitor(clock)
    watches.told("s", "1")
    clock.now = 5
    watches.told("s", "2", deleted=True)
    watches.listed([seen("1")], read_at=4)
    clock.now = 500
    assert watches.silent_kinds() == ()


def test_what_is_deleted_is_not_remembered_for_ever() -> None:
    clock = Clock()
    watches = monitor(clock)
    for number in range(1000):
        clock.now += 1
        watches.told(str(number), "1", deleted=True)
    assert len(watches._gone) <= 62


def test_why_the_process_is_unhealthy_is_logged_once() -> None:
    reasons = iter([None, "silent", "silent", None, "silent"])
    process: Any = SimpleNamespace(_ill=None, _find_illness=lambda: next(reasons))
    with capture_logs() as lines:
        assert [Operator._illness(process) for _ in range(5)] == [None, "silent", "silent", None, "silent"]
    assert [line["reason"] for line in lines] == ["silent", "silent"]


class Store:
    def __init__(self) -> None:
        self.created: list[Any] = []
        self.patched: list[Any] = []
        self.broken = False

    def create_event(self, namespace: str, event: Any) -> None:
        if self.broken:
            raise TransientError("away")
        self.created.append(event)

    def patch_event(self, namespace: str, name: str, change: Any) -> None:
        if all(event["metadata"]["name"] != name for event in self.created):
            raise NotFoundError("expired", 404)
        self.patched.append((name, change["count"]))


def test_a_repeat_is_counted_and_not_more_often_than_once_a_minute() -> None:
    store, now = Store(), [datetime(2026, 1, 1, tzinfo=UTC)]
    recorder = EventRecorder(store, "operator-1", lambda: now[0])
    event = Event("Stalled", "nothing moves", warning=True)
    for _ in range(3):
        recorder.record(DEPLOYMENT, event)
    assert len(store.created) == 1
    assert (store.created[0]["type"], store.created[0]["involvedObject"]["uid"]) == ("Warning", "u")
    now[0] += timedelta(seconds=61)
    recorder.record(DEPLOYMENT, event)
    assert store.patched == [(store.created[0]["metadata"]["name"], 2)]
    recorder.record(DEPLOYMENT, Event("Stalled", "for another reason"))
    assert len(store.created) == 2


def test_a_repeat_of_an_event_that_has_expired_is_written_anew() -> None:
    store, now = Store(), [datetime(2026, 1, 1, tzinfo=UTC)]
    recorder = EventRecorder(store, "operator-1", lambda: now[0])
    event = Event("Stalled", "nothing moves", warning=True)
    recorder.record(DEPLOYMENT, event)
    store.created.clear()
    now[0] += timedelta(hours=2)
    recorder.record(DEPLOYMENT, event)
    assert [(one["count"], one["firstTimestamp"]) for one in store.created] == [(1, "2026-01-01T02:00:00Z")]
    now[0] += timedelta(minutes=2)
    recorder.record(DEPLOYMENT, event)
    assert store.patched == [(store.created[0]["metadata"]["name"], 2)]


def test_what_is_remembered_of_an_event_is_as_long_as_what_is_written() -> None:
    """A user can have 256 KiB in a message, by an annotation, and as many messages as he likes."""
    store = Store()
    recorder = EventRecorder(store, "operator-1", lambda: datetime(2026, 1, 1, tzinfo=UTC))
    for number in range(3):
        recorder.record(DEPLOYMENT, Event("LeftToAnother", f"{number} " + 100_000 * "x"))
    assert len(store.created) == 3
    assert max(len(event.message) for _, event in recorder._written) == 1024


def test_an_event_that_cannot_be_written_stops_nothing() -> None:
    store = Store()
    store.broken = True
    recorder = EventRecorder(store, "operator-1", lambda: datetime(2026, 1, 1, tzinfo=UTC))
    recorder.record(DEPLOYMENT, Event("Stalled", "x"))
    store.broken = False
    recorder.record(DEPLOYMENT, Event("Stalled", "x"))
    assert len(store.created) == 1
