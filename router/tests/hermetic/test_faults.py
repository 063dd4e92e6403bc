"""Engines fail in every way before and at decode's first event; what breaks after it is in test_broken_streams."""

import asyncio
import random
import time
from typing import Any

import pytest

from pdd_e2e.fake_engine import (
    Abort,
    ErrorIn200,
    Fault,
    FinishError,
    GarbageJson,
    HangBeforeHeaders,
    HangMidStream,
    ResetAfterBytes,
    ResetBeforeHeaders,
    SlowChunks,
    Status,
)
from pdd_router.config import Limits
from pdd_router.errors import EngineFailedError, FailureReason
from pdd_router.flow.turn import Turn, TurnInput
from pdd_router.openai.request import Endpoint, parse_request
from pdd_router.policy.chain import chain_of

LONG = [{"role": "user", "content": "Tell me all that you know of lighthouses. " * 12}]
BEFORE: list[Fault] = [
    Status(500),
    Status(502, b"<html>bad gateway</html>"),
    ResetBeforeHeaders(),
    GarbageJson(),
    ErrorIn200(),
    FinishError(),
    Abort(),
    ResetAfterBytes(3),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", BEFORE, ids=repr)
async def test_prefill_fails_and_another_takes_over(cluster: Any, fault: Fault, stream: bool) -> None:
    async with cluster(prefills=2) as c:
        c.prefills[0].script(fault)
        reply = await c.chat(LONG, stream=stream)
        assert reply.status == 200
        assert reply.receipt["prefill"]["engine"] == "p1"
        assert len(c.legs(c.prefills[0])) + len(c.legs(c.prefills[1])) == 2, "one retry"
        await c.until_idle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", BEFORE, ids=repr)
async def test_decode_fails_before_its_first_event_and_another_takes_over(
    cluster: Any, fault: Fault, stream: bool
) -> None:
    async with cluster(decodes=2) as c:
        c.decodes[0].script(fault)
        reply = await c.chat(LONG, stream=stream)
        assert reply.status == 200
        assert reply.receipt["decode"]["engine"] == "d1"
        assert len(c.legs(c.prefills[0])) == 1, "prefill's work is not done twice: its KV can be claimed again"
        assert reply.receipt["prefill"]["engine"] == "p0"
        await c.until_idle()


@pytest.mark.parametrize(
    ("policy", "prefills", "status", "arm"),
    [
        ("Retry", 2, 200, "PrefillDecode"),
        ("Retry", 1, 200, "DecodeOnly"),
        ("Aggregate", 2, 200, "DecodeOnly"),
        ("Fail", 2, 502, None),
    ],
)
async def test_prefill_failure_is_answered_as_configured(
    cluster: Any, policy: str, prefills: int, status: int, arm: str | None
) -> None:
    async with cluster(prefills=prefills, config={"onPrefillFailure": policy}) as c:
        c.prefills[0].script(ResetBeforeHeaders())
        reply = await c.chat(LONG)
        assert reply.status == status
        if arm is None:
            assert reply.body["error"]["code"] == "prefill_failed"
            assert not c.legs(c.decodes[0])
        else:
            assert reply.receipt["arm"] == arm


async def test_engine_refusal_goes_to_the_client_in_openai_form(cluster: Any) -> None:
    body = {"error": {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}}
    async with cluster(prefills=2, decodes=2) as c:
        for engines in (c.prefills, c.decodes):
            for engine in engines:
                engine.script(Status(400, body))
            reply = await c.chat(LONG)
            assert (reply.status, reply.body) == (400, body)
            assert sum(len(c.legs(engine)) for engine in engines) == 1, "no other engine would judge otherwise"
            for engine in engines:
                engine.script_queue.__init__()  # forget what was not used
        assert await c.metric("retries_total", role="Prefill") == 0
        for engine in c.prefills:
            engine.script(Status(400, b'{"object": "error", "message": "old form", "code": 400}'))
        old = await c.chat(LONG)
        assert old.body["error"]["message"] == "old form"


@pytest.mark.parametrize("status", [429, 503])
async def test_full_engine_is_passed_by_without_blame(cluster: Any, status: int) -> None:
    async with cluster(prefills=2, decodes=2, config={"breaker": {"failures": 1}}) as c:
        c.prefills[0].script(Status(status))
        c.decodes[0].script(Status(status))
        reply = await c.chat(LONG)
        assert reply.status == 200
        assert all(not state.breaker.ejected for state in c.registry.states())
    async with cluster() as c:
        c.decodes[0].script(Status(status), times=9)
        full = await c.chat(LONG)
        assert (full.status, full.body["error"]["code"]) == (503, "engines_full")
        assert int(full.headers["Retry-After"]) > 0


async def test_prefill_dies_at_random_times_and_no_client_sees_it(cluster: Any) -> None:
    """R8. Control: with ``Fail`` the same faults reach the clients."""
    rng = random.Random(8)
    async with cluster(prefills=2, config={"retries": {"burst": 1000}, "breaker": {"failures": 1000}}) as c:
        replies = []
        for at in range(500):
            if rng.random() < 0.3:
                rng.choice(c.prefills).script(rng.choice(BEFORE))
            replies.append(await c.chat([{"role": "user", "content": f"Subject {at}. " * 12}], stream=at % 2 == 0))
        assert {reply.status for reply in replies} == {200}
        retries = await c.metric("retries_total", role="Prefill")
        assert 0 < retries <= 500 * 0.3
        await c.until_idle()
    async with cluster(prefills=2, config={"onPrefillFailure": "Fail"}) as c:
        c.prefills[0].script(BEFORE[0])
        assert (await c.chat(LONG)).status == 502


async def test_prefill_process_dies_and_comes_back(cluster: Any) -> None:
    async with cluster(prefills=1) as c:
        await c.prefills[0].kill()
        reply = await c.chat(LONG)
        assert (reply.status, reply.receipt["arm"]) == (200, "DecodeOnly")
        await c.until(lambda: not c.registry.states()[0].healthy)
        reply = await c.chat(LONG)
        assert reply.receipt["why"] == "NoPrefill"
        await c.prefills[0].restart()
        await c.until(lambda: c.registry.states()[0].healthy)
        await c.until_introduced()
        assert (await c.chat(LONG)).receipt["arm"] == "PrefillDecode"


async def test_retries_are_bounded_by_a_budget(cluster: Any) -> None:
    config = {"retries": {"maxPerRequest": 2, "budgetPercent": 0, "burst": 3}, "breaker": {"failures": 1000}}
    async with cluster(prefills=3, config=config) as c:
        for engine in c.prefills:
            engine.script(Status(500), times=100)
        replies = [await c.chat(LONG) for _ in range(5)]
        assert {reply.status for reply in replies} == {200}, "decode alone when the budget is spent"
        assert await c.metric("retries_total", role="Prefill") == 3
        assert sum(len(c.legs(engine)) for engine in c.prefills) == 3 + 5


async def test_nothing_is_tried_again_once_decode_has_answered(cluster: Any) -> None:
    """The turn itself refuses to, whoever uses it and whatever goes wrong then."""
    body = {"model": "fake", "messages": LONG, "max_tokens": 2}
    request = parse_request(Endpoint.CHAT, body, (None, None), Limits())
    async with cluster(decodes=2) as c:
        given = TurnInput(request, "id", "tenant", "salt", chain_of(request))
        with pytest.raises(EngineFailedError):
            async with Turn(c.router.services, given, asyncio.get_running_loop().time() + 60).opened() as opened:
                raise EngineFailedError(opened.plan.decode.id.name, FailureReason.DISCONNECTED)
        assert sum(len(c.legs(engine)) for engine in c.decodes) == 1
        await c.until_idle()


# ---- nobody there, too many, too slow ----


async def test_all_engines_gone_is_a_quick_503(cluster: Any) -> None:
    """R10."""
    async with cluster() as c:
        await c.decodes[0].kill()
        first = await c.chat(LONG)
        assert first.status == 503, "also before a health check has noticed"
        await c.until(lambda: not c.registry.states()[1].healthy)
        began = time.monotonic()
        reply = await c.chat(LONG)
        assert time.monotonic() - began < 0.1
        assert (reply.status, reply.body["error"]["code"]) == (503, "no_engine")
        assert int(reply.headers["Retry-After"]) > 0
        assert (await c.get("/ready")).status == 503
        assert (await c.get("/health")).status == 200


async def test_full_queue_is_a_quick_429_and_a_long_wait_a_503(cluster: Any) -> None:
    limits = {"maxConcurrentRequests": 1, "maxQueuedRequests": 1, "queueTimeoutSeconds": 0.3}
    async with cluster(config={"limits": limits}) as c:
        c.decodes[0].script(HangBeforeHeaders())
        holding = asyncio.create_task(c.chat(LONG))
        await c.until(lambda: len(c.legs(c.decodes[0])) == 1)
        waiting = asyncio.create_task(c.chat(LONG))
        await c.until(lambda: c.router.services.admission.queued == 1)
        began = time.monotonic()
        refused = await c.chat(LONG)
        assert time.monotonic() - began < 0.1
        assert (refused.status, refused.body["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["Retry-After"]) > 0
        late = await waiting
        assert (late.status, late.body["error"]["code"]) == (503, "queue_timeout")
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await c.until_idle()


async def test_slow_legs_end_in_time(cluster: Any) -> None:
    timeouts = {"prefillSeconds": 0.2, "firstEventSeconds": 0.2}
    async with cluster(prefills=2, decodes=2, config={"timeouts": timeouts}) as c:
        c.prefills[0].script(HangBeforeHeaders())
        c.decodes[0].script(HangBeforeHeaders())
        reply = await c.chat(LONG, stream=True)
        assert reply.status == 200
        assert (reply.receipt["prefill"]["engine"], reply.receipt["decode"]["engine"]) == ("p1", "d1")
        await c.until(lambda: c.legs(c.prefills[0])[0].aborted_at is not None)
        await c.until(lambda: c.legs(c.decodes[0])[0].aborted_at is not None)


@pytest.mark.parametrize("stream", [False, True])
async def test_request_has_a_deadline(cluster: Any, stream: bool) -> None:
    async with cluster(config={"limits": {"requestTimeoutSeconds": 2.0}}) as c:
        c.decodes[0].script(HangMidStream(2) if stream else HangBeforeHeaders())
        reply = await c.chat(LONG, stream=stream)
        if stream:
            assert reply.events[-1]["error"]["code"] == "deadline_exceeded"
            assert not reply.done
        else:
            assert (reply.status, reply.body["error"]["code"]) == (504, "deadline_exceeded")
        await c.until_idle()


async def test_engine_that_hangs_is_blamed_for_the_time_of_a_request_and_one_that_answers_others_is_not(
    cluster: Any,
) -> None:
    config = {"limits": {"requestTimeoutSeconds": 1.0}, "breaker": {"failures": 1, "baseSeconds": 60}}
    async with cluster(decodes=2, config=config) as c:
        for others in (True, False):
            for engine in c.decodes:
                engine.script(SlowChunks(0.1), when=lambda body: body.get("stream"))
                engine.script(HangBeforeHeaders(), when=lambda body: not body.get("stream"))
            streams = []
            if others:
                streams = [
                    asyncio.create_task(
                        c.chat([{"role": "user", "content": f"{at} " * 90}], stream=True, max_tokens=64)
                    )
                    for at in range(2)
                ]
                await c.until(lambda: all(len(c.legs(engine)) == 1 for engine in c.decodes))
            reply = await c.chat(LONG)
            assert (reply.status, reply.body["error"]["code"]) == (504, "deadline_exceeded")
            await asyncio.gather(*streams)
            await c.until_idle()
            assert any(state.breaker.ejected for state in c.registry.states()) is not others


async def test_engine_that_had_no_time_is_not_blamed_for_having_said_nothing(cluster: Any) -> None:
    """Prefill took nearly all that the request has."""
    config = {"limits": {"requestTimeoutSeconds": 0.6}, "breaker": {"failures": 1}, "retries": {"maxPerRequest": 0}}
    config["timeouts"] = {"prefillSeconds": 0.4}
    async with cluster(decodes=2, config=config) as c:
        for engine in c.engines:
            engine.script(HangBeforeHeaders())
        reply = await c.chat(LONG)
        assert reply.status == 504
        await c.until_idle()
        assert not any(state.breaker.ejected for state in c.registry.states())


# ---- the breaker, from outside ----


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "ejects"), [(400, False), (404, False), (413, False), (422, False), (500, True)])
async def test_poison_requests_do_not_count_against_breakers(
    cluster: Any, status: int, ejects: bool, stream: bool
) -> None:
    """What engines refuse as the client's own fault ejects nobody; 500 is the control."""
    async with cluster(decodes=2, config={"breaker": {"failures": 1}, "runOnDecodeBelowTokens": 0}) as c:
        for engine in c.engines:
            engine.script(Status(status, {"error": {"message": "poison", "type": "BadRequestError"}}), times=4)
        replies = [await c.chat([{"role": "user", "content": f"{at} " * 90}], stream=stream) for at in range(4)]
        assert any(state.breaker.ejected for state in c.registry.states()) is ejects
        if not ejects:
            assert {reply.status for reply in replies} == {status}


async def test_breaker_ejects_half_at_most_probes_once_and_recovers(cluster: Any) -> None:
    """R14."""
    config = {"breaker": {"failures": 2, "baseSeconds": 1.0}, "retries": {"burst": 1000}}
    async with cluster(prefills=2, config=config) as c:
        for engine in c.prefills:
            engine.script(Status(500), times=1000)
        for _ in range(8):
            assert (await c.chat(LONG)).status == 200
        assert sum(state.breaker.ejected for state in c.registry.states()) == 1, "never more than half"
        for engine in c.prefills:
            engine.script_queue.__init__()  # well again
        out = next(state for state in c.registry.states() if state.breaker.ejected)
        sick = next(engine for engine in c.prefills if engine.settings.name == out.engine.id.name)
        await c.until(lambda: out.breaker.admits)
        sick.script(HangBeforeHeaders())
        before = len(c.legs(sick))
        tasks = [asyncio.create_task(c.chat([{"role": "user", "content": f"{at} " * 50}])) for at in range(20)]
        await c.until(lambda: sum(task.done() for task in tasks) >= 19)
        assert len(c.legs(sick)) == before + 1, "half-open lets exactly one through"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await c.until(lambda: out.breaker.admits)
        for at in range(6):
            await c.chat([{"role": "user", "content": f"again {at} " * 50}])
        assert not out.breaker.ejected
        await c.until_idle()


async def test_probe_that_is_a_whole_answer_keeps_a_healthy_engine_out_for_a_moment_only(cluster: Any) -> None:
    """The control is time: before it, nobody else is let in."""
    async with cluster(decodes=2, config={"breaker": {"failures": 1, "baseSeconds": 1.0}}) as c:
        c.decodes[0].script(Status(500))
        await c.chat(LONG)
        out = next(state for state in c.registry.states() if state.breaker.ejected)
        await c.until(lambda: out.breaker.admits)
        c.decodes[0].script(HangBeforeHeaders())
        before = len(c.legs(c.decodes[0]))
        probe = asyncio.create_task(c.chat([{"role": "user", "content": "probe " * 50}]))
        await c.until(lambda: len(c.legs(c.decodes[0])) == before + 1)
        assert not out.breaker.admits
        await c.until(lambda: out.breaker.admits, seconds=3)
        await asyncio.gather(*(c.chat([{"role": "user", "content": f"{at} " * 50}]) for at in range(6)))
        assert not out.breaker.ejected and not probe.done()
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        await c.until_idle()
        assert not out.breaker.ejected


async def test_probe_has_proved_what_it_should_when_its_answer_begins(cluster: Any) -> None:
    """However long the answer: others need not wait for its end."""
    config = {"breaker": {"failures": 1, "baseSeconds": 0.1}}
    async with cluster(decodes=2, config=config) as c:
        c.decodes[0].script(Status(500))
        for at in range(2):
            await c.chat([{"role": "user", "content": f"{at} " * 50}])
        out = next(state for state in c.registry.states() if state.breaker.ejected)
        await c.until(lambda: out.breaker.admits)
        for engine in c.decodes:
            engine.script(HangMidStream(2))
        tasks = [
            asyncio.create_task(c.chat([{"role": "user", "content": f"{at} " * 50}], stream=True)) for at in (8, 9)
        ]
        await c.until(lambda: out.in_flight == 1 and not out.breaker.ejected)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await c.until_idle()
