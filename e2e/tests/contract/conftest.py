"""The pair of engines that the contract suite runs against.

Two fakes by default. With PDD_CONTRACT_ENGINES naming a JSON file (a list of {role, url, claim_host, claim_port, model,
block_size, mechanism?, threshold_tokens?}), the real engines listed there: prefix caches on, --enable-prompt-tokens-details,
one model, a threshold of 0, and for Retain a TTL of about 20 s. Tests of a mechanism without a pair are deselected.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from pdd_e2e.engine_pair import Engine, EngineCard, Pair, claim_from
from pdd_e2e.fake_engine import FakeEngine, FakeFabric, Mechanism, Role

Prompt = Callable[[int], list[int]]

_FILE = os.environ.get("PDD_CONTRACT_ENGINES")
_introduced: set[str] = set()


def _cards(mechanism: Mechanism) -> tuple[EngineCard, EngineCard] | None:
    """(prefill, decode) of the file; None without a file. Raises `LookupError` if the file has no such pair."""
    if _FILE is None:
        return None
    cards = [card for card in EngineCard.read_all(Path(_FILE)) if card.mechanism == mechanism]
    by_role = {card.role: card for card in cards}
    if not {Role.PREFILL, Role.DECODE} <= set(by_role):
        raise LookupError(f"{_FILE} has no pair of {mechanism}")
    return by_role[Role.PREFILL], by_role[Role.DECODE]


def _configured(mechanism: Mechanism) -> bool:
    try:
        _cards(mechanism)
    except LookupError:
        return False
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the engines at hand are not configured for."""
    wanted = {"pair": _configured(Mechanism.CLAIM), "retain_pair": _configured(Mechanism.RETAIN)}
    here = Path(__file__).parent
    dropped = [
        item
        for item in items
        if here in item.path.parents
        and any(not wanted[name] for name in getattr(item, "fixturenames", ()) if name in wanted)
    ]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


async def _open_pair(stack: AsyncExitStack, mechanism: Mechanism) -> Pair:
    cards = _cards(mechanism)
    if cards is None:
        fabric = FakeFabric()
        fakes = [
            await stack.enter_async_context(
                FakeEngine(
                    fabric=fabric, role=role, name=role.lower(), mechanism=mechanism, seconds_per_output_token=0.002
                )
            )
            for role in (Role.PREFILL, Role.DECODE)
        ]
        prefill, decode = (EngineCard(**fake.address_card()) for fake in fakes)
    else:
        prefill, decode = cards
    timeout = aiohttp.ClientTimeout(total=110)
    session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
    return Pair(Engine(prefill, session), Engine(decode, session))


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A pair for claims, introduced to each other. Nothing is held any more when the test has ended."""
    async with AsyncExitStack() as stack:
        pair = await _open_pair(stack, Mechanism.CLAIM)
        # Real engines stay connected from test to test; a fake is new every time.
        if _FILE is None or pair.prefill.card.url not in _introduced:
            await asyncio.gather(
                pair.prefill.complete("hello", **claim_from(pair.decode, introduce=True)),
                pair.decode.complete("hello", **claim_from(pair.prefill, introduce=True)),
            )
            _introduced.add(pair.prefill.card.url)
        yield pair
        await pair.wait_idle()


@pytest.fixture
async def retain_pair() -> AsyncIterator[Pair]:
    """A pair for Retain. Tests that leave blocks held wait for their end themselves."""
    async with AsyncExitStack() as stack:
        yield await _open_pair(stack, Mechanism.RETAIN)


@pytest.fixture
def prompt() -> Prompt:
    """Makes prompts of so many token ids that no engine has seen; the ids exist in the fake and in real vocabularies."""
    source = random.Random(os.urandom(16))

    def make(tokens: int) -> list[int]:
        return [source.randrange(300, 500) for _ in range(tokens)]

    return make
