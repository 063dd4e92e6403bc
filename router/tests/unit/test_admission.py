"""The door: bounded, fair, and nothing is lost at it."""

import asyncio

import pytest

from pdd_router.admission import Admission
from pdd_router.errors import QueueFullError, UnavailableError


async def hold(door: Admission, tenant: str, log: list[str], release: asyncio.Event) -> None:
    async with door.place(tenant):
        log.append(tenant)
        await release.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_free_place_goes_to_the_tenant_with_the_fewest_inside() -> None:
    door = Admission(max_concurrent=2, max_queued=100, timeout_seconds=60)
    log: list[str] = []
    releases = [asyncio.Event() for _ in range(8)]
    tasks = [asyncio.create_task(hold(door, "flood", log, releases[at])) for at in range(6)]
    await settle()
    tasks += [asyncio.create_task(hold(door, "calm", log, releases[at])) for at in (6, 7)]
    await settle()
    assert (door.in_flight, door.queued) == (2, 6)
    releases[0].set()
    await settle()
    assert log == ["flood", "flood", "calm"], "not the third of the flood, though it came first"
    for release in releases:
        release.set()
    await asyncio.gather(*tasks)
    assert (door.in_flight, door.queued) == (0, 0)
    assert sorted(log) == ["calm"] * 2 + ["flood"] * 6


async def test_a_tenant_s_long_answers_leave_places_for_others() -> None:
    door = Admission(max_concurrent=4, max_queued=100, timeout_seconds=60)
    log: list[str] = []
    releases = [asyncio.Event() for _ in range(6)]
    flood = [asyncio.create_task(hold(door, "flood", log, releases[at])) for at in range(5)]
    await settle()
    assert (door.in_flight, door.queued) == (3, 2)
    calm = [asyncio.create_task(hold(door, "calm", log, releases[5])) for _ in range(2)]
    await settle()
    assert log == ["flood", "flood", "flood", "calm"], "at once, past those who wait for their own"
    releases[0].set()
    await settle()
    assert log[4:] == ["calm"], "the tenant with the fewest"
    releases[1].set()
    await settle()
    assert log[5:] == ["flood"]
    for release in releases:
        release.set()
    await asyncio.gather(*flood, *calm)
    assert (door.in_flight, door.queued) == (0, 0)


async def test_without_keys_nobody_keeps_places_for_others() -> None:
    door = Admission(max_concurrent=4, max_queued=100, timeout_seconds=60)
    release = asyncio.Event()
    all_of_them = [asyncio.create_task(hold(door, "anonymous", [], release)) for _ in range(5)]
    await settle()
    assert (door.in_flight, door.queued) == (4, 1)
    release.set()
    await asyncio.gather(*all_of_them)


async def test_full_queue_has_room_where_somebody_leaves_in_the_same_moment() -> None:
    """The one to be refused has just been cancelled, and has not heard of it yet."""
    door = Admission(max_concurrent=1, max_queued=3, timeout_seconds=60)
    release = asyncio.Event()
    log: list[str] = []
    flood = [asyncio.create_task(hold(door, "flood", log, release)) for _ in range(4)]
    await settle()
    calm = asyncio.create_task(hold(door, "calm", log, release))
    flood[-1].cancel()  # both in the next pass of the loop, the cancelled one's future first
    await settle()
    release.set()
    await asyncio.gather(calm, *flood[:-1])
    assert sorted(log) == ["calm", "flood", "flood", "flood"]
    assert (door.in_flight, door.queued) == (0, 0)


async def test_full_queue_refuses_the_tenant_that_fills_it() -> None:
    door = Admission(max_concurrent=1, max_queued=3, timeout_seconds=60)
    release = asyncio.Event()
    log: list[str] = []
    flood = [asyncio.create_task(hold(door, "flood", log, release)) for _ in range(4)]
    await settle()
    with pytest.raises(QueueFullError):
        async with door.place("flood"):
            raise AssertionError("not reached")
    calm = asyncio.create_task(hold(door, "calm", log, release))
    await settle()
    assert flood[-1].done()
    assert isinstance(flood[-1].exception(), QueueFullError), "the newest of the flood makes room"
    release.set()
    await asyncio.gather(*flood[:3], calm)
    assert (door.in_flight, door.queued) == (0, 0)


async def test_waiting_has_an_end() -> None:
    door = Admission(max_concurrent=1, max_queued=3, timeout_seconds=0.01)
    async with door.place("a"):
        with pytest.raises(UnavailableError):
            async with door.place("b"):
                raise AssertionError("not reached")
    assert (door.in_flight, door.queued) == (0, 0)


@pytest.mark.parametrize("when", ["waiting", "granted"])
async def test_cancelled_waiter_gives_its_place_on(when: str) -> None:
    door = Admission(max_concurrent=1, max_queued=9, timeout_seconds=60)
    log: list[str] = []
    release, free = asyncio.Event(), asyncio.Event()
    free.set()
    first = asyncio.create_task(hold(door, "a", log, release))
    await settle()
    second = asyncio.create_task(hold(door, "b", log, free))
    third = asyncio.create_task(hold(door, "c", log, free))
    await settle()
    if when == "granted":
        release.set()
        # The place is b's as soon as a has left; cancel b before it runs again.
        while door.queued == 2:  # noqa: ASYNC110  # the point is the very step of the loop in which it happens
            await asyncio.sleep(0)
        second.cancel()
    else:
        second.cancel()
        release.set()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert (door.in_flight, door.queued) == (0, 0)
    assert log[-1] == "c"


async def test_no_queue_at_all() -> None:
    door = Admission(max_concurrent=1, max_queued=0, timeout_seconds=60)
    async with door.place("a"):
        with pytest.raises(QueueFullError):
            async with door.place("b"):
                raise AssertionError("not reached")
