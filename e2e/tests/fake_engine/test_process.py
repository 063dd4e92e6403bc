"""The fake as a process: it says where it is, its engines reach each other, a signal ends it."""

import asyncio
import json
import signal
import sys

import aiohttp

from pdd_e2e.engine_pair import Engine, EngineCard, claim_from


async def test_two_engines_of_one_process_claim_from_each_other() -> None:
    arguments = ["--port", "0", "--role", "Prefill", "--port", "0", "--role", "Decode"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pdd_e2e.fake_engine", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        cards = [EngineCard(**json.loads(await process.stdout.readline())) for _ in range(2)]
        assert [card.role for card in cards] == ["Prefill", "Decode"]
        async with aiohttp.ClientSession() as session:
            prefill, decode = (Engine(card, session) for card in cards)
            await prefill.complete("hello", **claim_from(decode, introduce=True))
            prompt = [300 + position for position in range(50)]
            await decode.complete(prompt)
            answer = await prefill.complete(prompt, **claim_from(decode))
            assert answer.receipt["read_tokens"] == 48
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_ports_and_roles_must_pair_up() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pdd_e2e.fake_engine",
        "--port",
        "0",
        "--port",
        "0",
        "--role",
        "Decode",
        stderr=asyncio.subprocess.PIPE,
    )
    _, text = await process.communicate()
    assert process.returncode == 2
    assert b"same number of times" in text
