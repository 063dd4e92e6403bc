"""Reading /metrics from engines that are well, slow, silent, huge or hostile. Real HTTP on loopback."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from observed_world import pod

from pdd_connector import recorder
from pdd_e2e.fake_engine import FakeEngine, FakeFabric
from pdd_operator import scrape
from pdd_operator.api.labels import Component
from pdd_operator.api.objects import Manifest
from pdd_operator.observe import reuse
from pdd_operator.scrape import UnreadableAnswerError, add_up, parse_counters, sample_engines

P, D, R = Component.PREFILL, Component.DECODE, Component.ROUTER
CLAIM_PREFILL = """\
# HELP vllm:pdd_read_bytes Bytes of KV read from other engines.
# TYPE vllm:pdd_read_bytes counter
vllm:pdd_read_bytes_total{engine="0",model_name="m",direction="DecodeToPrefill"} 1000.0
vllm:pdd_read_bytes_total{engine="1",model_name="m",direction="DecodeToPrefill"} 500.0
vllm:pdd_read_bytes_total{engine="0",model_name="m",direction="PrefillToPrefill"} 30.0
vllm:pdd_read_bytes_created{engine="0",model_name="m",direction="PrefillToPrefill"} 1.79e+09
vllm:pdd_read_tokens_total{engine="0",model_name="m",direction="DecodeToPrefill"} 900.0
vllm:pdd_claim_outcomes_total{engine="0",model_name="m",outcome="Read"} 5.0
vllm:pdd_claim_outcomes_total{engine="0",model_name="m",outcome="Empty"} 3.0
vllm:pdd_claim_outcomes_total{engine="0",model_name="m",outcome="Late"} 2.0
vllm:pdd_claim_outcomes_total{engine="0",model_name="m",outcome="Unconnected"} 1.0
vllm:pdd_claim_outcomes_total{engine="0",model_name="m",outcome="Local"} 70.0
vllm:pdd_claim_outcomes_total{engine="0",model_name="m",outcome="Introduced"} 80.0
vllm:pdd_claims_refused_total{engine="0",model_name="m",reason="Group"} 4.0
vllm:pdd_reads_failed_total{engine="0",model_name="m",reason="Timeout"} 6.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 2000.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 1530.0
"""
NIXL_PREFILL = """\
vllm:nixl_bytes_transferred_bucket{engine="0",model_name="m",le="+Inf"} 3.0
vllm:nixl_bytes_transferred_count{engine="0",model_name="m"} 3.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 700.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 64.0
vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="m"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
"""
RETAIN_DECODE = """\
vllm:pdd_retained_total{engine="0",model_name="m"} 9.0
vllm:pdd_retain_refused_total{engine="0",model_name="m",reason="Cap"} 4.0
vllm:pdd_retain_expired_total{engine="0",model_name="m"} 5.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 800.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 12345.0
"""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[int]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serves a handler at /metrics and gives the port."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> int:
        app = web.Application()
        app.router.add_get("/metrics", handler)
        app.router.add_get("/elsewhere", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


def engine(component: Component, **more: Any) -> Manifest:
    return pod(component, podIP="127.0.0.1", **more)


def text(body: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=body)

    return handler


def test_claims_are_those_of_prefill_and_bytes_are_told_by_direction() -> None:
    sample = add_up(
        [parse_counters(CLAIM_PREFILL)], [parse_counters(CLAIM_PREFILL)], frozenset(), datetime.now(UTC), asked=2
    )
    assert (sample.engines_read, sample.prefill_bytes_read, sample.decode_bytes_read) == (2, 1530.0, 1530.0)
    assert (sample.decode_to_prefill_bytes_read, sample.prefill_tokens_read) == (1500.0, 900.0)
    assert (sample.claims_asked, sample.claims_empty, sample.claims_late) == (11.0, 3.0, 2.0)
    assert (sample.claims_refused, sample.claims_unconnected, sample.reads_failed) == ({"Group": 4.0}, 1.0, 6.0)
    assert sample.prefill_prompt_tokens == 2000.0


def test_without_claims_nixl_s_counters_count() -> None:
    sample = add_up(
        [parse_counters(NIXL_PREFILL)], [parse_counters(RETAIN_DECODE)], frozenset(), datetime.now(UTC), asked=2
    )
    assert (sample.prefill_bytes_read, sample.decode_to_prefill_bytes_read, sample.decode_bytes_read) == (
        700.0,
        700.0,
        800.0,
    )
    assert (sample.prefill_tokens_read, sample.prefill_prompt_tokens) == (64.0, 100.0)
    assert (sample.claims_asked, sample.claims_late, sample.claims_refused) == (9.0, 7.0, {"Cap": 4.0})


async def test_adds_up_the_ready_engines_alone(serve: Serve) -> None:
    port = await serve(text(CLAIM_PREFILL))
    pods = (
        engine(P, ordinal=0),
        engine(P, ordinal=1),
        engine(P, ordinal=2, ready=False),
        engine(P, ordinal=3, terminating=True),
        engine(R),
        pod(P, ordinal=4),
    )
    sample = await sample_engines(pods, port)
    assert (sample.engines_asked, sample.engines_read, sample.decode_to_prefill_bytes_read) == (2, 2, 3000.0)
    assert sample.engines == {"uid-glm-prefill-c0ffee-0/0", "uid-glm-prefill-c0ffee-1/0"}


async def test_a_process_that_was_started_again_is_another_engine(serve: Serve) -> None:
    port = await serve(text(CLAIM_PREFILL))
    sample = await sample_engines((engine(P, container={"restartCount": 2}),), port)
    assert sample.engines == {"uid-glm-prefill-c0ffee-0/2"}


async def test_no_engines_no_calls() -> None:
    sample = await sample_engines(())
    assert (sample.engines_asked, sample.engines_read) == (0, 0)


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def trickle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"#\n")
        await asyncio.sleep(0.02)


async def flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * (1 << 16))


BOMB = zlib.compress(b"\0" * (16 << 20), 1)


async def bomb(request: web.Request) -> web.StreamResponse:
    return web.Response(body=BOMB, headers={"Content-Encoding": "deflate"})


async def redirect(request: web.Request) -> web.StreamResponse:
    if request.path == "/elsewhere":
        return web.Response(text=CLAIM_PREFILL)
    raise web.HTTPFound("/elsewhere")


async def failing(request: web.Request) -> web.StreamResponse:
    return web.Response(status=503, text=CLAIM_PREFILL)


async def cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100000"})
    await response.prepare(request)
    await response.write(CLAIM_PREFILL.encode())
    assert request.transport is not None
    request.transport.close()
    return response


async def large(request: web.Request) -> web.StreamResponse:
    return web.Response(text=CLAIM_PREFILL + "# padding\n" * 1000)


async def compressed(request: web.Request) -> web.StreamResponse:
    return web.Response(body=zlib.compress(CLAIM_PREFILL.encode()), headers={"Content-Encoding": "deflate"})


async def something_else(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>Welcome</html>")


async def not_text(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"vllm:prompt_tokens_total \xff\xfe")


@pytest.mark.parametrize(
    "bad",
    [hang, trickle, flood, bomb, redirect, failing, cut, not_text, large, compressed, something_else],
    ids=lambda bad: bad.__name__,
)
async def test_a_bad_engine_did_not_answer_and_the_others_are_read(
    serve: Serve, bad: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(scrape, "MAX_ANSWER_BYTES", 8000)
    turn = iter((bad, text(CLAIM_PREFILL)))

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/elsewhere":
            return await bad(request)
        return await next(turn)(request)

    port = await serve(handler)
    sample = await asyncio.wait_for(sample_engines((engine(P, ordinal=0), engine(P, ordinal=1)), port), 5)
    assert (sample.engines_read, sample.decode_to_prefill_bytes_read) == (1, 1500.0)


async def test_nobody_listens() -> None:
    sample = await sample_engines((engine(P),), 9)
    assert (sample.engines_asked, sample.engines_read) == (1, 0)


@pytest.mark.parametrize(
    "line",
    [
        'vllm:prompt_tokens_total{engine="0"} NaN',
        'vllm:prompt_tokens_total{engine="0"} +Inf',
        'vllm:prompt_tokens_total{engine="0"} -1',
        'vllm:prompt_tokens_total{engine="0"} 1e300',
        'vllm:prompt_tokens_total{engine="0"} many',
        'vllm:prompt_tokens_total{engine="0" 1',
        "vllm:prompt_tokens_total",
        'vllm:prompt_tokens_total{engine="' + "x" * scrape.MAX_LINE_CHARACTERS + '"} 1',
        "\n".join(['vllm:prompt_tokens_total{engine="0"} 1'] * (scrape.MAX_LINES + 1)),
    ],
)
def test_what_is_no_counter_is_refused(line: str) -> None:
    with pytest.raises(UnreadableAnswerError):
        parse_counters(CLAIM_PREFILL + line + "\n")


def test_other_lines_are_not_even_parsed() -> None:
    noise = "\n".join(["}{ no exposition", "vllm:other_total NaN", "x" * 100_000])
    assert parse_counters(f"{noise}\n{NIXL_PREFILL}") == parse_counters(NIXL_PREFILL)


@given(st.sampled_from(sorted(scrape._LABELS)), st.text())
def test_any_line_is_read_or_refused(name: str, rest: str) -> None:
    try:
        counters = parse_counters(name + rest)
    except UnreadableAnswerError:
        return
    assert all(value >= 0 for value in counters.values.values())


async def test_reads_a_fake_engine_that_has_answered_a_prompt() -> None:
    async with FakeEngine(fabric=FakeFabric(), role="Prefill", name="p") as fake:
        prompt = {"model": "fake", "prompt": "a b c d e f g h", "max_tokens": 1}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{fake.url}/v1/completions", json=prompt) as answer,
        ):
            assert answer.status == 200
        sample = await sample_engines((engine(P),), int(fake.url.rpartition(":")[2]))
    assert sample.engines_read == 1
    assert sample.prefill_prompt_tokens > 0


def test_names_labels_and_outcomes_are_the_connector_s() -> None:
    ours = {name.removeprefix("vllm:pdd_"): label for name, label in scrape._LABELS.items() if "pdd_" in name}
    known = {
        metric.name + ("_total" if metric.kind is recorder.Kind.COUNTER else ""): metric.label
        for metric in recorder.METRICS
    }
    assert ours.items() <= known.items()
    assert set(scrape._ASKED) <= set(recorder.BY_NAME["claim_outcomes"].values)
    assert "DecodeToPrefill" in recorder.BY_NAME["read_bytes"].values


def test_every_reason_of_a_refusal_is_explained() -> None:
    reasons = (*recorder.BY_NAME["claims_refused"].values, *recorder.BY_NAME["retain_refused"].values)
    assert set(reasons) <= set(reuse.REFUSALS)


def test_reasons_that_an_engine_invents_are_one_reason() -> None:
    """Kept as sent they would be held for every sample of the window, for as long as the object lives."""
    lines = [f'vllm:pdd_claims_refused_total{{reason="{number:0200}"}} 1' for number in range(400)]
    counters = parse_counters("\n".join([*lines, 'vllm:pdd_claims_refused_total{reason="Group"} 4', ""]))
    assert counters.by_label("vllm:pdd_claims_refused_total") == {"Other": 400.0, "Group": 4.0}


async def test_the_event_loop_goes_on_while_an_answer_is_parsed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, parsing, went_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    parse = parse_counters

    def slow(answer: str) -> scrape.Counters:
        loop.call_soon_threadsafe(parsing.set)
        assert went_on.wait(5), "the loop stood still"
        return parse(answer)

    monkeypatch.setattr(scrape, "parse_counters", slow)
    sampling = asyncio.create_task(sample_engines((engine(P),), await serve(text(CLAIM_PREFILL))))
    await asyncio.wait_for(parsing.wait(), 5)
    went_on.set()
    assert (await sampling).engines_read == 1


async def test_an_object_with_many_engines_that_hang_ends_in_time_and_keeps_what_it_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "DEADLINE_SECONDS", 0.5)
    turn = iter((text(CLAIM_PREFILL), *[hang] * 30))

    async def handler(request: web.Request) -> web.StreamResponse:
        return await next(turn)(request)

    port = await serve(handler)
    began = asyncio.get_running_loop().time()
    sample = await sample_engines(tuple(engine(P, ordinal=number) for number in range(30)), port)
    assert asyncio.get_running_loop().time() - began < 4
    assert sample.engines_read == 1
