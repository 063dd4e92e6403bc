"""Real engines for the correctness suite: started once per set, one set at a time, the reference throughout.

Each start costs a minute, so tests of one set run together whatever order pytest chose; those that end engines come last in their set.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from pdd_cli.local.stack import LocalStack
from pdd_e2e.engines import sets
from pdd_e2e.engines.handles import HandlePair
from pdd_e2e.engines.held import BLOCK
from pdd_e2e.engines.node import Node
from pdd_e2e.engines.prompts import token_ids
from pdd_e2e.engines.world import World

_SETS = ("claims", "retain_pair", "tensor_parallel", "tensor_parallel_retain", "stock_pair", "unguarded", "one_rank")
_ANSWER_SECONDS = 240.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ends_engines(order): the test kills or ends engines; such tests come last, in this order"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests of this folder by the set they run on, those marked `ends_engines` last in theirs."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> tuple[int, int]:
        if here not in item.path.parents:
            return -1, 0
        names = getattr(item, "fixturenames", ())
        number = next((number for number, name in enumerate(_SETS) if name in names), -1)
        return number, max((mark.args[0] for mark in item.iter_markers("ends_engines")), default=0)

    items.sort(key=place)


class Sets:
    """Runs one set at a time."""

    def __init__(self, ground: sets.Ground, session: aiohttp.ClientSession) -> None:
        self._ground = ground
        self._session = session
        self._running = AsyncExitStack()
        self._made: Callable[[sets.Ground], LocalStack] | None = None
        self._stack: LocalStack | None = None
        self._reference: Node | None = None
        self._of_reference = AsyncExitStack()

    async def use(self, make: Callable[[sets.Ground], LocalStack]) -> tuple[LocalStack, Node]:
        """The running set and the reference; another set is ended first."""
        if self._made == make and self._stack is not None:
            return self._stack, await self.reference()
        await self._running.aclose()
        self._made = None
        stack = make(self._ground)
        await asyncio.gather(self._running.enter_async_context(stack), self.reference())
        self._made, self._stack = make, stack
        return stack, await self.reference()

    async def reference(self) -> Node:
        """The aggregated engine."""
        if self._reference is None:
            stack = await self._of_reference.enter_async_context(sets.reference_stack(self._ground))
            self._reference = Node(stack.aggregates[0], self._session)
        return self._reference

    async def close(self) -> None:
        """End everything."""
        await asyncio.gather(self._running.aclose(), self._of_reference.aclose())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS)) as session:
        yield session


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine_sets(session: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sets]:
    ground = await sets.prepare_ground(tmp_path_factory.mktemp("engines"))
    running = Sets(ground, session)
    try:
        yield running
    finally:
        await running.close()


@pytest_asyncio.fixture(loop_scope="session")
async def reference(engine_sets: Sets) -> Node:
    """The aggregated engine that computes everything afresh."""
    return await engine_sets.reference()


_claims: dict[int, World] = {}


@pytest_asyncio.fixture(loop_scope="session")
async def claims(engine_sets: Sets, session: aiohttp.ClientSession) -> AsyncIterator[World]:
    """Two prefill engines and a decode engine that claim, introduced to each other and holding nothing; nor afterwards."""
    stack, reference = await engine_sets.use(sets.claims_stack)
    world = _claims.setdefault(id(stack), World(stack, reference, session))
    await world.ready()
    yield world
    for node in world.nodes:
        if not node.stopped:
            await node.wait_unheld()


@pytest_asyncio.fixture(loop_scope="session")
async def tensor_parallel(engine_sets: Sets, session: aiohttp.ClientSession) -> AsyncIterator[World]:
    """A prefill and a decode engine of two ranks each, which claim; in the stack is one more prefill engine, of one rank."""
    stack, reference = await engine_sets.use(sets.tensor_parallel_stack)
    if id(stack) not in _claims:
        pair = [process for process in stack.prefills if process.name != sets.LONE]
        _claims[id(stack)] = World(stack, reference, session, pair, sets.EVEN_BYTES_PER_TOKEN)
    world = _claims[id(stack)]
    await world.ready()
    yield world
    for node in world.nodes:
        if not node.stopped:
            await node.wait_unheld()


@pytest_asyncio.fixture(loop_scope="session")
async def one_rank(engine_sets: Sets, session: aiohttp.ClientSession) -> World:
    """A prefill and a decode engine of two ranks each, of which one reads the wrong blocks."""
    stack, reference = await engine_sets.use(sets.one_rank_stack)
    world = _claims.setdefault(id(stack), World(stack, reference, session, bytes_per_token=sets.EVEN_BYTES_PER_TOKEN))
    await world.ready()
    return world


@pytest_asyncio.fixture(loop_scope="session")
async def unguarded(engine_sets: Sets, session: aiohttp.ClientSession) -> World:
    """One prefill and one decode engine that claim without guards."""
    stack, reference = await engine_sets.use(sets.unguarded_stack)
    world = _claims.setdefault(id(stack), World(stack, reference, session))
    await world.ready()
    return world


_pairs: dict[int, HandlePair] = {}


@pytest_asyncio.fixture(loop_scope="session")
async def stock_pair(engine_sets: Sets, session: aiohttp.ClientSession) -> HandlePair:
    """A pair with vLLM's own connector."""
    stack, reference = await engine_sets.use(sets.stock_stack)
    return _pairs.setdefault(id(stack), HandlePair(stack, reference, session))


@pytest_asyncio.fixture(loop_scope="session")
async def retain_pair(engine_sets: Sets, session: aiohttp.ClientSession) -> HandlePair:
    """A pair that retains."""
    stack, reference = await engine_sets.use(sets.retain_stack)
    return _pairs.setdefault(id(stack), HandlePair(stack, reference, session))


@pytest_asyncio.fixture(loop_scope="session")
async def tensor_parallel_retain(engine_sets: Sets, session: aiohttp.ClientSession) -> HandlePair:
    """A pair that retains, of two ranks each. Four workers on two cores take longer to meet than a handle lives."""
    stack, reference = await engine_sets.use(sets.tensor_parallel_retain_stack)
    if id(stack) not in _pairs:
        pair = _pairs[id(stack)] = HandlePair(stack, reference, session, sets.EVEN_BYTES_PER_TOKEN)
        await pair.meet(token_ids(8 * BLOCK + 3), "tenant-that-meets", 2 * sets.RETAIN_SECONDS)
    return _pairs[id(stack)]


_salts = iter(range(1_000_000))


@pytest.fixture
def salt() -> str:
    """A tenant that no other test is."""
    return f"tenant-{next(_salts)}"
