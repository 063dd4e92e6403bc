"""Who is called when a place becomes free: one, the first, and nobody's call is lost."""

import asyncio
from collections.abc import Callable

import pytest

from pdd_router.endpoints.waiting import Waiting


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def wait_until(waiting: Waiting, may_go: Callable[[], bool], gone: list[str], name: str) -> None:
    with waiting.ticket() as ticket:
        while True:
            await ticket.call()
            if may_go():
                gone.append(name)
                return


async def test_a_free_place_calls_the_first_and_nobody_else() -> None:
    waiting, gone = Waiting(), list[str]()
    tasks = [asyncio.create_task(wait_until(waiting, lambda: True, gone, name)) for name in "abc"]
    await settle()
    waiting.call_next()
    await settle()
    assert gone == ["a"]
    waiting.call_next()
    waiting.call_next()
    await settle()
    assert gone == ["a", "b", "c"]
    await asyncio.gather(*tasks)
    waiting.call_next()  # nobody is there


async def test_who_cannot_use_it_gives_it_on_and_keeps_its_turn() -> None:
    waiting, gone, may = Waiting(), list[str](), {"a": False, "b": True, "c": True}
    tasks = [asyncio.create_task(wait_until(waiting, lambda n=name: may[n], gone, name)) for name in "abc"]
    await settle()
    waiting.call_next()
    await settle()
    assert gone == ["b"]
    may["a"] = True
    waiting.call_next()
    await settle()
    assert gone == ["b", "a"]
    waiting.call_all()
    await asyncio.gather(*tasks)


async def test_call_of_one_that_leaves_in_the_very_moment_is_not_lost() -> None:
    waiting, gone = Waiting(), list[str]()
    tasks = [asyncio.create_task(wait_until(waiting, lambda: True, gone, name)) for name in "ab"]
    await settle()
    waiting.call_next()
    tasks[0].cancel()
    await settle()
    assert gone == ["b"]
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
