"""The queue: coalescing, one flight per key, backoff, Retry-After as a floor, the cap on calls. Time is a number here."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd_operator.api.names import NamespacedName
from pdd_operator.workqueue import Done, Pace, Retry, WorkQueue, serve

A = NamespacedName("agents", "a")
B = NamespacedName("agents", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def queue_of(clock: Clock, **pace: float) -> WorkQueue:
    return WorkQueue(clock, lambda: 0.0, Pace(**pace))


def test_many_adds_make_one_look(clock: Clock) -> None:
    queue = queue_of(clock)
    for _ in range(100):
        queue.add(A)
    assert queue.take() == A
    assert queue.take() is None
    queue.done(A, Done())
    assert queue.take() is None
    assert queue.seconds_to_next() is None


def test_an_add_during_a_look_makes_one_more_and_never_a_second_flight(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add(A)
    assert queue.take() == A
    queue.add(A)
    queue.add(A)
    assert queue.take() is None, "one flight per key"
    queue.done(A, Done())
    assert queue.take() == A
    queue.done(A, Done())
    assert queue.take() is None


def test_the_longest_waiting_key_comes_first(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add(B)
    clock.now += 1
    queue.add(A)
    assert (queue.take(), queue.take()) == (B, A)


def test_backoff_doubles_up_to_its_end_and_success_forgets_it(clock: Clock) -> None:
    queue = queue_of(clock, backoff_seconds=1.0, max_backoff_seconds=5.0)
    queue.add(A)
    waits = []
    for _ in range(5):
        assert queue.take() == A
        queue.done(A, Retry())
        waits.append(queue.seconds_to_next())
        clock.now += waits[-1] or 0.0
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert queue.take() == A
    queue.done(A, Done())
    queue.add(A)
    assert queue.take() == A
    queue.done(A, Retry())
    assert queue.seconds_to_next() == 1.0


def test_progress_begins_the_backoff_anew(clock: Clock) -> None:
    queue = queue_of(clock, backoff_seconds=1.0)
    queue.add(A)
    waits = []
    for progressed in (False, False, True, False):
        assert queue.take() == A
        queue.done(A, Retry(progressed=progressed))
        waits.append(queue.seconds_to_next())
        clock.now += waits[-1] or 0.0
    assert waits == [1.0, 2.0, 1.0, 2.0]


def test_retry_after_is_never_undercut_by_events(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add(A)
    queue.take()
    queue.done(A, Retry(at_least_seconds=30.0))
    for _ in range(29):
        clock.now += 1
        queue.add(A)
        assert queue.take() is None
    clock.now += 1
    assert queue.take() == A


def test_a_retry_after_shorter_than_the_backoff_does_not_shorten_it(clock: Clock) -> None:
    queue = queue_of(clock, backoff_seconds=10.0)
    queue.add(A)
    queue.take()
    queue.done(A, Retry(at_least_seconds=1.0))
    assert queue.seconds_to_next() == 10.0


def test_jitter_only_adds() -> None:
    clock = Clock()
    queue = WorkQueue(clock, lambda: 1.0, Pace(backoff_seconds=10.0, jitter=0.5))
    queue.add(A)
    queue.take()
    queue.done(A, Retry())
    assert queue.seconds_to_next() == 15.0


def test_what_asks_to_be_looked_at_again_is(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add(A)
    queue.take()
    queue.done(A, Done(again_seconds=7.0))
    assert queue.take() is None
    clock.now += 7
    assert queue.take() == A


def test_a_gone_key_is_forgotten_unless_somebody_asked_again_meanwhile(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add(A)
    queue.take()
    queue.done(A, Done(gone=True))
    assert queue.keys == ()
    queue.add(A)
    queue.take()
    queue.add(A)
    queue.done(A, Done(gone=True))
    assert queue.take() == A


@given(st.lists(st.tuples(st.integers(0, 80), st.floats(0, 0.5)), min_size=20, max_size=60))
def test_a_key_that_is_asked_for_all_the_time_costs_ten_calls_a_second(looks: list[tuple[int, float]]) -> None:
    clock = Clock()
    queue = queue_of(clock, calls_per_second=10.0, burst_calls=60.0)
    began, spent = clock.now, 0
    for calls, duration in looks:
        queue.add(A)
        clock.now += queue.seconds_to_next() or 0.0
        assert queue.take() == A
        assert spent <= 60 + 10 * (clock.now - began) + 1e-6, "beyond burst and average"
        clock.now += duration
        spent += calls
        queue.done(A, Done(calls=calls))


def test_age_counts_what_might_run_or_is_stuck_in_flight_but_not_what_backs_off(clock: Clock) -> None:
    queue = queue_of(clock, backoff_seconds=50.0, max_backoff_seconds=50.0)
    queue.add(A)
    clock.now += 5
    assert (queue.oldest_seconds, queue.depth) == (5.0, 1)
    queue.take()
    clock.now += 7
    assert (queue.oldest_seconds, queue.depth) == (7.0, 0)
    queue.done(A, Retry())
    clock.now += 40
    assert (queue.oldest_seconds, queue.depth) == (0.0, 0)


async def test_serve_runs_as_many_as_there_are_workers_and_wakes_for_what_comes() -> None:
    loop, wake = asyncio.get_running_loop(), asyncio.Event()
    queue = WorkQueue(loop.time, lambda: 0.0, on_add=wake.set)
    running: set[NamespacedName] = set()
    most, looks, enough = 0, 0, asyncio.Event()

    async def work(key: NamespacedName) -> Done:
        nonlocal most, looks
        assert key not in running
        running.add(key)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(key)
        looks += 1
        if looks == 20:
            enough.set()
        return Done()

    serving = asyncio.create_task(serve(queue, wake, work, 2))
    for number in range(20):
        queue.add(NamespacedName("agents", f"n{number}"))
    await asyncio.wait_for(enough.wait(), 2)
    serving.cancel()
    await asyncio.wait((serving,))
    assert most == 2
