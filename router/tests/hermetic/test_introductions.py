"""Pairs are connected before traffic needs them, beside it, and again whenever they are not."""

import asyncio
import itertools
from typing import Any

from pdd_e2e.fake_engine import HangBeforeHeaders, Status

LONG = [{"role": "user", "content": "Tell me all that you know of lighthouses. " * 12}]


def introductions(c: Any, engine: Any) -> list[Any]:
    legs = c.legs(engine)
    return [request for request in engine.requests if request not in legs and request.method == "POST"]


async def test_every_pair_is_introduced_once_in_both_directions(cluster: Any) -> None:
    async with cluster(prefills=2, decodes=2) as c:
        for engine in c.engines:
            (request,) = introductions(c, engine)
            assert request.path == "/v1/completions"
            claim = request.body["kv_transfer_params"]["claim"]
            assert claim["introduce"] is True
            assert {owner["port"] for owner in claim["owners"]} == {
                other.claim_port for other in c.engines if other is not engine
            }
            assert (request.body["max_tokens"], request.body["model"]) == (1, "fake")
        await asyncio.sleep(0.3)
        assert all(len(introductions(c, engine)) == 1 for engine in c.engines), "connected pairs are left alone"


async def test_traffic_does_not_wait_and_names_nobody_unconnected(cluster: Any) -> None:
    async with cluster(wait=False, engine={"connect_seconds": 1.0}) as c:
        await c.until(lambda: all(state.healthy for state in c.registry.states()))
        reply = await c.chat(LONG)
        assert (reply.status, reply.receipt["why"]) == (200, "NotIntroduced")
        assert "kv_transfer_params" not in c.legs(c.decodes[0])[0].body
        assert not c.registry.introductions.introduced, "control: they were not connected yet"
        await c.until_introduced()
        assert (await c.chat(LONG)).receipt["arm"] == "PrefillDecode"


async def test_engine_that_comes_back_is_introduced_again(cluster: Any) -> None:
    async with cluster() as c:
        await c.decodes[0].kill()
        await c.until(lambda: not c.registry.states()[1].healthy)
        assert not c.registry.introductions.introduced
        await c.decodes[0].restart()
        await c.until(lambda: c.registry.states()[1].healthy)
        await c.until_introduced()
        assert len(introductions(c, c.prefills[0])) == 2, "the one that stayed must meet the new one"


async def test_unconnected_pair_is_introduced_again(cluster: Any) -> None:
    """A restart too quick for health checks: the engine says that it is not connected."""
    config = {"health": {"intervalSeconds": 60.0}}
    async with cluster(config=config) as c:
        await c.decodes[0].restart()
        await c.chat(LONG)
        await c.until_idle()
        assert await c.metric("claims_total", direction="NoneToDecode", outcome="Unconnected", reason="") == 1
        await c.until(lambda: len(introductions(c, c.decodes[0])) == 2)
        await c.until_introduced()
        assert (await c.chat(LONG)).receipt["arm"] == "PrefillDecode"


async def test_failed_introduction_is_tried_again_later_and_later(cluster: Any) -> None:
    async with cluster(wait=False) as c:
        for engine in c.engines:
            engine.script(Status(500), path="/v1/completions", times=3)
        await c.until(lambda: all(state.healthy for state in c.registry.states()))
        await c.until_introduced()
        times = [request.received_at for request in introductions(c, c.prefills[0])]
        assert len(times) == 4
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert gaps[0] >= 0.05
        assert gaps[1] >= 0.1
        assert gaps[2] >= 0.2


async def test_introductions_are_few_at_once(cluster: Any) -> None:
    config = {"introductions": {"concurrency": 1, "timeoutSeconds": 0.3}}
    async with cluster(prefills=2, decodes=2, wait=False, config=config) as c:
        for engine in c.engines:
            engine.script(HangBeforeHeaders(), path="/v1/completions")
        await c.until(lambda: all(state.healthy for state in c.registry.states()))
        await c.until(lambda: any(introductions(c, engine) for engine in c.engines))
        await asyncio.sleep(0.1)
        assert sum(len(introductions(c, engine)) for engine in c.engines) == 1
        assert (await c.chat(LONG)).status == 200
        await c.until_introduced()
