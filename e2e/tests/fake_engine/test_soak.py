"""Many requests at once, with claims, faults, small caches and clients that leave: right tokens or an error, nothing held."""

import asyncio
import random
from typing import Any

import aiohttp

from pdd_e2e.engine_pair import claim_from
from pdd_e2e.fake_engine import BrokenRead, FinishError, LateAnswer, RefuseClaim, ResetAfterEvents, SlowRead, Status
from pdd_e2e.fake_engine.claims import Reason

FAULTS = (Status(503), FinishError(1), ResetAfterEvents(2))
CLAIM_FAULTS = (BrokenRead(), LateAnswer(0.05), SlowRead(0.05), RefuseClaim(Reason.STOPPING))
TOKENS = 4
REQUESTS = 400


async def test_soak(start: Any, introduce: Any) -> None:
    source = random.Random(7)
    engines = [
        await start(
            f"e{index}",
            cache_blocks=40,
            answer_timeout_seconds=0.03,
            read_timeout_seconds=0.03,
            seconds_per_output_token=0.001,
        )
        for index in range(3)
    ]
    await introduce(*engines)
    trunks = [[source.randrange(300, 500) for _ in range(90)] for _ in range(6)]
    lone = await start("lone", cache_blocks=4000)
    prompts = [[*trunk[: source.randrange(20, 90)], *trunk[:9]] for trunk in trunks for _ in range(6)]
    expected = [(await lone.http.complete(prompt, TOKENS)).token_ids for prompt in prompts]
    outcomes: set[str] = set()

    async def one(number: int) -> None:
        which, (reader, owner) = source.randrange(len(prompts)), source.sample(engines, 2)
        if number % 7 == 0:
            reader.inside.script(source.choice(FAULTS))
        if number % 5 == 0:
            owner.inside.script(source.choice(CLAIM_FAULTS))
        body = reader.http.completion_body(prompts[which], TOKENS, **claim_from(owner.http))
        try:
            async with asyncio.timeout(source.choice((0.002, 0.02, 5, 5))):
                if number % 2:
                    answer = await reader.http.stream("/v1/completions", body)
                    tokens = [t for chunk in answer.chunks for c in chunk.get("choices", ()) for t in c["token_ids"]]
                else:
                    whole = await reader.http.post("/v1/completions", body)
                    tokens = whole.token_ids if whole.status == 200 else []
                    if tokens:
                        outcomes.add(whole.receipt["outcome"])
        except (TimeoutError, aiohttp.ClientError):
            return
        assert tokens == expected[which][: len(tokens)]

    for first in range(0, REQUESTS, 8):
        await asyncio.gather(*(one(number) for number in range(first, first + 8)))
    for engine in engines:
        engine.inside.script_queue.clear()
        await engine.inside.core.pulse.wait_until(lambda engine=engine: engine.inside.held_blocks == 0)
    assert {"Read", "Local", "Empty", "Failed", "Late"} <= outcomes, "the soak meets what it is for"
