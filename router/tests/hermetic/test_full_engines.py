"""Decode engines that are full are waited for, as long as anybody may wait."""

import asyncio
import time
from typing import Any

from raw_chat import LONG, raw_chat

from pdd_e2e.fake_engine import HangBeforeHeaders, SlowChunks

ONE = {"balance": {"maxConcurrentPerEngine": 1}}


async def test_requests_beyond_what_decode_may_have_wait_for_it(cluster: Any) -> None:
    async with cluster(config=ONE) as c:
        c.decodes[0].script(SlowChunks(0.02), times=6)
        tasks = [asyncio.create_task(c.chat(LONG, stream=at % 2 == 0)) for at in range(6)]
        await asyncio.gather(*tasks)
        assert [task.result().status for task in tasks] == [200] * 6
        await c.until_idle()


async def test_wait_for_decode_ends_in_time(cluster: Any) -> None:
    async with cluster(config={**ONE, "limits": {"queueTimeoutSeconds": 0.3}}) as c:
        c.decodes[0].script(HangBeforeHeaders())
        holding = asyncio.create_task(c.chat(LONG))
        await c.until(lambda: len(c.legs(c.decodes[0])) == 1)
        began = time.monotonic()
        refused = await c.chat(LONG)
        assert 0.25 < time.monotonic() - began < 2
        assert (refused.status, refused.body["error"]["code"]) == (503, "engines_full")
        assert int(refused.headers["Retry-After"]) > 0
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await c.until_idle()


async def test_client_that_leaves_ends_its_wait_and_the_next_has_its_turn(cluster: Any) -> None:
    async with cluster(config=ONE) as c:
        c.decodes[0].script(HangBeforeHeaders())
        _, holding = await raw_chat(c, stream=True)
        await c.until(lambda: len(c.legs(c.decodes[0])) == 1)
        _, leaving = await raw_chat(c, stream=True)
        await c.until(lambda: c.router.services.admission.in_flight == 2)
        staying = asyncio.create_task(c.chat(LONG))
        await c.until(lambda: c.router.services.admission.in_flight == 3)
        leaving.close()
        await c.until(lambda: c.router.services.admission.in_flight == 2)
        holding.close()
        assert (await staying).status == 200
        await c.until_idle()


async def test_turn_that_ends_before_decode_holds_nobody_up(cluster: Any) -> None:
    """It was called to decode's free place and its client leaves while it is prefilled: no use of decode ends then."""
    async with cluster(prefills=1, config=ONE) as c:
        c.decodes[0].script(HangBeforeHeaders())
        _, holding = await raw_chat(c, stream=True)
        await c.until(lambda: len(c.legs(c.decodes[0])) == 1)
        c.prefills[0].script(HangBeforeHeaders())
        _, leaving = await raw_chat(c, stream=True)
        await c.until(lambda: c.router.services.admission.in_flight == 2)
        staying = asyncio.create_task(c.chat(LONG))
        await c.until(lambda: c.router.services.admission.in_flight == 3)
        holding.close()
        await c.until(lambda: len(c.legs(c.prefills[0])) == 2)
        leaving.close()
        async with asyncio.timeout(5):
            assert (await staying).status == 200
        await c.until_idle()


async def test_engine_that_comes_is_taken_and_one_that_goes_is_not_waited_for(cluster: Any) -> None:
    async with cluster(decodes=2, config=ONE) as c:
        first, second = c.decodes
        c.write_engines([c.prefills[0], first])
        await c.until(lambda: len(c.registry.states()) == 2)
        first.script(HangBeforeHeaders(), times=2)
        _, holding = await raw_chat(c, stream=True)
        await c.until(lambda: len(c.legs(first)) == 1)
        waiting = asyncio.create_task(c.chat(LONG))
        await c.until(lambda: c.router.services.admission.in_flight == 2)
        c.write_engines()
        assert (await waiting).receipt["decode"]["engine"] == second.settings.name
        c.write_engines([c.prefills[0], first])
        await c.until(lambda: len(c.registry.states()) == 2)
        waiting = asyncio.create_task(c.chat(LONG))
        await c.until(lambda: c.router.services.admission.in_flight == 2)
        c.write_engines([c.prefills[0]])
        late = await waiting
        assert (late.status, late.body["error"]["code"]) == (503, "no_engine")
        holding.close()
        await c.until_idle()
