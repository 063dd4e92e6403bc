"""Drives a prefill engine (the reader) and a decode engine (the owner) over HTTP and measures. Knows nothing of claims but docs/protocol.md."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from pdd_cli.local.engine import Engine
from pdd_e2e.bench_claim.report import ClaimSample, Phase

HOST = "127.0.0.1"
FIRST_TOKEN, LAST_TOKEN = 1_000, 40_000  # plain text in any vocabulary of that size
SECONDS_BETWEEN_REQUESTS = 0.5


@dataclass
class Pair:
    """The reader and the owner, and prompts that the owner holds."""

    session: aiohttp.ClientSession
    reader: Engine
    owner: Engine
    prompt_tokens: int
    rng: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311  # prompts, not secrets

    async def introduce(self) -> None:
        """Connect the reader with the owner."""
        answer = await self._complete(self.reader, [1], introduce=True)
        if not answer["kv_transfer_params"]["claim"]["connected"]:
            raise RuntimeError("the reader could not be connected with the owner; see their logs")

    async def seed(self) -> list[int]:
        """A new prompt, computed by the owner."""
        prompt = [self.rng.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(self.prompt_tokens)]
        await self._complete(self.owner, prompt)
        return prompt

    async def claim(self, prompt: list[int]) -> ClaimSample:
        """Let the reader, which has forgotten everything, answer the prompt with a claim."""
        await self.reader.empty_prefix_cache(self.session)
        receipt = (await self._complete(self.reader, prompt, claim=True))["kv_transfer_params"]["claim"]
        return ClaimSample(receipt["outcome"], receipt["answer_ms"], receipt["read_ms"], receipt["read_tokens"])

    async def local(self, prompt: list[int]) -> None:
        """The same request, answered from the reader's own cache: what claiming is compared with."""
        await self._complete(self.reader, prompt)

    async def _complete(
        self, engine: Engine, prompt: list[int], *, claim: bool = False, introduce: bool = False
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": engine.spec.served_name, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        if claim or introduce:
            owners = [{"host": HOST, "port": self.owner.spec.claim_port}]
            body["kv_transfer_params"] = {"claim": {"version": 1, "owners": owners, "introduce": introduce}}
        async with self.session.post(f"{engine.url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            return dict(await answer.json())


class FullBatch:
    """Streams that keep the owner's batch full; counts their tokens."""

    def __init__(self, pair: Pair, streams: int) -> None:
        self._pair = pair
        self._streams = streams
        self.tokens = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FullBatch]:
        """Until the context ends. Entered when every stream has begun."""
        begun = [asyncio.Event() for _ in range(self._streams)]
        tasks = [asyncio.create_task(self._stream(event)) for event in begun]
        try:
            for event in begun:
                await event.wait()
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(self, begun: asyncio.Event) -> None:
        owner = self._pair.owner
        prompt = [self._pair.rng.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(16)]
        body = {
            "model": owner.spec.served_name,
            "prompt": prompt,
            "max_tokens": 2_000,
            "ignore_eos": True,
            "stream": True,
        }
        while True:
            async with self._pair.session.post(f"{owner.url}/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        self.tokens += 1
                        begun.set()


async def measure_phase(pair: Pair, batch: FullBatch, prompt: list[int], seconds: float, *, being_read: bool) -> Phase:
    """Decode at full batch while the reader answers the prompt again and again, by claims or from its own cache."""
    await pair.local(prompt)
    start, tokens, requests = time.perf_counter(), batch.tokens, 0
    while (now := time.perf_counter()) < start + seconds:
        await (pair.claim(prompt) if being_read else pair.local(prompt))
        requests += 1
        await asyncio.sleep(max(0.0, SECONDS_BETWEEN_REQUESTS - (time.perf_counter() - now)))
    return Phase(being_read, time.perf_counter() - start, batch.tokens - tokens, requests)
