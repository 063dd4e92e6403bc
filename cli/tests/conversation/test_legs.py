"""The demo's legs against the real router process and fake engines: no real KV, but every rule of it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from pdd_cli.demo import checks
from pdd_cli.demo.conversation import TokenRates, plan_new_tokens, script
from pdd_cli.demo.legs import OFF, ON, Deployment, Legs, tenant_names
from pdd_cli.demo.results import Cache
from pdd_cli.errors import BrokenPromiseError, LostEngineError
from pdd_cli.local.engine import Engine
from pdd_cli.local.engines import EngineSpec, Role
from pdd_cli.local.progress import Silent
from pdd_cli.local.router import Router, RouterSpec
from pdd_e2e.fake_engine import FakeEngine, FakeFabric, Status

BLOCK = 16
TENANTS = {name: f"key-of-{name}" for name in tenant_names()}
# A token of the fake is a byte.
TURNS = script(plan_new_tokens(5, 3000), TokenRates(prose=1.0, log=1.0))


def as_engine(fake: FakeEngine, folder: Path) -> Engine:
    role = Role(str(fake.settings.role).lower())
    port = int(fake.url.rpartition(":")[2])
    spec = EngineSpec(fake.settings.name, role, folder, "fake", port, 1, fake.claim_port, None)
    return Engine(spec, folder / "python", folder, "", None)


class Bench:
    """Fake engines and two router processes, as `LocalStack` would have them."""

    def __init__(self, fakes: Sequence[FakeEngine], deployment: Deployment) -> None:
        self.fakes = fakes
        self.deployment = deployment

    def legs(self) -> Legs:
        return Legs(self.deployment, TENANTS, TURNS, 8, Silent())


async def start_bench(exits: AsyncExitStack, folder: Path, prefills: int) -> Bench:
    fabric = FakeFabric()
    names = [("Prefill", f"prefill-{number}") for number in range(prefills)] + [("Decode", "decode-0")]
    fakes = [
        await exits.enter_async_context(
            FakeEngine(fabric=fabric, role=role, name=name, block_size=BLOCK, seconds_per_prompt_token=0.0002)
        )
        for role, name in names
    ]
    session = await exits.enter_async_context(aiohttp.ClientSession())
    engines = tuple(as_engine(fake, folder) for fake in fakes)
    routers = {}
    keys = {key: name for name, key in TENANTS.items()}
    for name, direction in ((OFF, "PrefillToDecode"), (ON, "Bidirectional")):
        spec = RouterSpec(name, direction, keys, {"runOnDecodeBelowTokens": 0})
        routers[name] = Router(spec, [engine.spec for engine in engines], folder, folder, None)
        exits.push_async_callback(routers[name].stop)
        routers[name].start()
        await routers[name].wait_ready(session, Silent())
    return Bench(fakes, Deployment(engines, routers, session, "fake", BLOCK))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as exits:
        yield await start_bench(exits, tmp_path, prefills=1)


async def test_first_table(bench: Bench) -> None:
    legs = bench.legs()
    pair = await legs.hold(Cache.EMPTIED)

    assert checks.check_same_replies([pair.off, pair.on]).held
    found = checks.check_reads_everything(pair.on, BLOCK, threshold_tokens=0)
    assert found.held, found.detail
    assert not checks.check_reads_everything(pair.off, BLOCK, threshold_tokens=0).held, (
        "the control: nothing to read with reuse off"
    )
    assert checks.check_read_bytes(pair.on).held
    assert pair.off.read_bytes == 0
    assert {turn.receipt.owner for turn in pair.on.turns[1:]} == {"decode-0"}
    assert [turn.is_tool_result for turn in pair.on.turns] == [False, True, False, True, False]
    assert pair.off.computed_tokens == sum(turn.prompt_tokens for turn in pair.off.turns)
    assert checks.speedup(pair) > 2
    usage = await legs.held_at_the_end()
    assert usage == {"prefill-0": 0.0, "decode-0": 0.0}


async def test_second_table_finds_the_history_in_the_own_cache(bench: Bench) -> None:
    pair = await bench.legs().hold(Cache.KEPT)
    for turn in pair.off.turns[1:]:
        assert turn.receipt.read_tokens == 0
        assert turn.receipt.local_tokens > 0
    assert pair.on.turns[1].receipt.local_tokens > 0, "P's own cache was left alone"


async def test_a_leg_finds_nothing_of_another(bench: Bench) -> None:
    legs = bench.legs()
    for cache in Cache:
        pair = await legs.hold(cache)
        for leg in (pair.off, pair.on):
            first = leg.turns[0].receipt
            assert first.local_tokens + first.read_tokens == 0


async def test_turns_land_on_different_prefill_engines(tmp_path: Path) -> None:
    async with AsyncExitStack() as exits:
        bench = await start_bench(exits, tmp_path, prefills=2)
        pair = await bench.legs().hold(Cache.KEPT)
    for leg in (pair.off, pair.on):
        assert [turn.receipt.prefill for turn in leg.turns] == [f"prefill-{number % 2}" for number in range(5)]
    assert checks.check_less_computed(pair).held
    assert checks.check_same_replies([pair.off, pair.on]).held
    assert checks.check_reads_everything(pair.on, BLOCK, threshold_tokens=0).held


async def test_a_lost_engine_is_named(bench: Bench) -> None:
    await bench.fakes[0].kill()
    with pytest.raises(LostEngineError, match="prefill-0 does not answer"):
        await bench.legs().hold(Cache.KEPT)


async def test_a_turn_that_fails_is_named(bench: Bench) -> None:
    bench.fakes[1].script(Status(400), times=9)
    with pytest.raises(BrokenPromiseError, match="turn 1 failed"):
        await bench.legs().hold(Cache.KEPT)
