"""Answers beyond the router's own limits: what was asked for is too much, and no engine is to blame for that."""

from typing import Any

import pytest
from raw_chat import LONG

from pdd_e2e.fake_engine import MalformedSse, Status

BREAKER = {"failures": 1}


def ejected(c: Any) -> list[str]:
    return [state.engine.id.name for state in c.registry.states() if state.breaker.ejected]


async def test_answer_that_is_too_large_is_computed_once_and_ejects_nobody(cluster: Any) -> None:
    config = {"limits": {"maxAnswerBytes": 2000}, "breaker": BREAKER}
    async with cluster(decodes=2, config=config) as c:
        reply = await c.chat(LONG, max_tokens=64, ignore_eos=True, logprobs=True, top_logprobs=20)
        assert (reply.status, reply.body["error"]["code"]) == (502, "answer_too_large")
        assert "`limits.maxAnswerBytes` of 2000 bytes" in reply.body["error"]["message"]
        await c.until_idle()
        assert sum(len(c.legs(engine)) for engine in c.decodes) == 1
        assert ejected(c) == []
        assert (
            sum([await c.metric("legs_total", role="Decode", engine=f"d{at}", result="TooLarge") for at in (0, 1)]) == 1
        )
        assert (await c.chat(LONG, max_tokens=2)).status == 200, "one that is small enough"


@pytest.mark.parametrize("at", [0, 3])
async def test_event_that_is_too_large_ends_its_stream_and_ejects_nobody(cluster: Any, at: int) -> None:
    """Before the answer has begun, and after."""
    config = {"limits": {"maxEventBytes": 4096}, "breaker": BREAKER}
    async with cluster(decodes=2, config=config) as c:
        for engine in c.decodes:
            engine.script(MalformedSse(at, b'data: {"choices": [], "x": "%b"}\n\n' % (b"x" * 2_000_000)))
        reply = await c.chat(LONG, stream=True, max_tokens=8)
        error = reply.events[-1]["error"] if at else reply.body["error"]
        assert (error["code"], error["type"]) == ("answer_too_large", "upstream_error")
        assert "`limits.maxEventBytes` of 4096 bytes" in error["message"]
        assert (reply.status, reply.done, reply.cut) == ((200, False, True) if at else (502, False, False))
        await c.until_idle()
        assert sum(len(c.legs(engine)) for engine in c.decodes) == 1
        assert ejected(c) == []


async def test_refusal_that_repeats_a_long_prompt_is_a_refusal(cluster: Any) -> None:
    async with cluster(decodes=2, config={"breaker": BREAKER}) as c:
        for engine in c.decodes:
            engine.script(Status(400, {"error": {"message": "x" * 100_000}}))
        reply = await c.chat(LONG)
        assert (reply.status, reply.body["error"]["type"]) == (400, "invalid_request_error")
        assert sum(len(c.legs(engine)) for engine in c.decodes) == 1
        assert ejected(c) == []
