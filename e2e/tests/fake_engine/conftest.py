"""Fakes for the fake's own tests: started with any settings, driven through the black-box client, watched from inside."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from hypothesis import settings

from pdd_e2e.engine_pair import Engine, EngineCard, claim_from
from pdd_e2e.fake_engine import FakeEngine, FakeFabric

# Deadlines of single examples would measure how busy the machine is.
settings.register_profile("busy-machine", deadline=None)
settings.load_profile("busy-machine")


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Fake:
    """One fake: `inside` to script and to look into, `http` to speak to."""

    inside: FakeEngine
    http: Engine


Start = Callable[..., Awaitable[Fake]]


@pytest.fixture
def clock() -> Clock:
    """Rules holds, leases and expiry of every fake of the test."""
    return Clock()


@pytest.fixture
async def start(clock: Clock) -> AsyncIterator[Start]:
    """Start a fake on the test's fabric. When the test has passed, nothing may be held and no fault may be left."""
    fabric = FakeFabric()
    fakes: list[Fake] = []
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)))

        async def start(name: str = "p", **options: Any) -> Fake:
            options = {"role": "Prefill", "clock": clock, **options}
            engine = await stack.enter_async_context(FakeEngine(fabric=fabric, name=name, **options))
            fakes.append(Fake(engine, Engine(EngineCard(**engine.address_card()), session)))
            return fakes[-1]

        yield start
        for fake in fakes:
            assert fake.inside.script_queue.pending == 0
            assert fake.inside.core.scheduler.running == 0
            assert fake.inside.core.scheduler.waiting == 0


@pytest.fixture
def introduce() -> Callable[..., Awaitable[None]]:
    """Connect every fake with every other."""

    async def connect(*fakes: Fake) -> None:
        for reader, owner in itertools.permutations(fakes, 2):
            answer = await reader.http.complete([300], **claim_from(owner.http, introduce=True))
            assert answer.receipt["connected"] == [owner.http.card.address()]

    return connect


@pytest.fixture
def in_prefill() -> Callable[..., AbstractAsyncContextManager[None]]:
    """Run the body while a fake (one that takes time) computes a prompt; the prompt's hashes are visible by then."""

    @asynccontextmanager
    async def run(fake: Fake, ids: list[int]) -> AsyncIterator[None]:
        before = fake.inside.prefix_cache.cached_hashes
        request = asyncio.create_task(fake.http.complete(ids))
        await fake.inside.core.pulse.wait_until(lambda: fake.inside.prefix_cache.cached_hashes != before)
        assert not request.done()
        yield
        await request

    return run
