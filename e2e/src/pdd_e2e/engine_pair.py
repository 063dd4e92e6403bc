"""A black-box client for a pair of engines, fake or real: what the contract suite drives.

Speaks HTTP only, knows docs/protocol.md and vLLM's OpenAI surface, and nothing of how an engine is made. Must not import
the fake or the connector.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EngineCard:
    """Where an engine is and how it is set: one entry of the file that PDD_CONTRACT_ENGINES names."""

    role: str
    url: str
    claim_host: str
    claim_port: int
    model: str
    block_size: int
    mechanism: str = "Claim"
    threshold_tokens: int = 0

    @classmethod
    def read_all(cls, path: Path) -> tuple[Self, ...]:
        """Every entry of a file; unknown or missing keys raise `TypeError`."""
        return tuple(cls(**entry) for entry in json.loads(path.read_text()))

    def address(self) -> Json:
        """Its claim channel as `owners` names it."""
        return {"host": self.claim_host, "port": self.claim_port}


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that was not streamed."""

    status: int
    body: Json

    @property
    def text(self) -> str:
        """Text of the first choice."""
        choice = self.body["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])

    @property
    def token_ids(self) -> list[int]:
        """Generated tokens of the first choice (needs `return_token_ids`)."""
        return list(self.body["choices"][0]["token_ids"])

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return int(self.body["usage"]["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed by this request."""
        return int(self.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    @property
    def params(self) -> Json | None:
        """`kv_transfer_params` of the answer."""
        params: Json | None = self.body.get("kv_transfer_params")
        return params

    @property
    def receipt(self) -> Json:
        """The claim's receipt."""
        if self.params is None:
            raise AssertionError("the answer carries no kv_transfer_params")
        receipt: Json = self.params["claim"]
        return receipt

    def logprobs(self) -> list[float]:
        """Log-probability of every generated token of the first choice."""
        logprobs = self.body["choices"][0]["logprobs"]
        if "token_logprobs" in logprobs:
            return list(logprobs["token_logprobs"])
        return [item["logprob"] for item in logprobs["content"]]


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer: its chunks in order, and whether `[DONE]` came last."""

    status: int
    chunks: list[Json]
    done: bool
    content_type: str

    @property
    def text(self) -> str:
        """Text of choice 0, joined."""
        parts = []
        for chunk in self.chunks:
            for choice in chunk.get("choices", ()):
                if choice["index"] == 0:
                    parts.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
        return "".join(parts)

    @property
    def finish_reasons(self) -> list[str]:
        """Every finish reason that was sent."""
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices", ())]
        return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]

    @property
    def usage(self) -> Json:
        """Usage of the chunk that carries one."""
        return next(dict(chunk["usage"]) for chunk in reversed(self.chunks) if chunk.get("usage"))

    @property
    def params(self) -> Json | None:
        """`kv_transfer_params` of the last chunk."""
        params: Json | None = self.chunks[-1].get("kv_transfer_params")
        return params


@dataclass(slots=True)
class Engine:
    """One engine as a client sees it."""

    card: EngineCard
    session: aiohttp.ClientSession

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text."""
        async with self.session.get(self.card.url + path) as response:
            return response.status, await response.text()

    async def post_raw(self, path: str, data: bytes, content_type: str = "application/json") -> Whole:
        """Send bytes; the answer must be JSON."""
        headers = {"Content-Type": content_type}
        async with self.session.post(self.card.url + path, data=data, headers=headers) as response:
            return Whole(response.status, json.loads(await response.read()))

    async def post(self, path: str, body: Mapping[str, Any]) -> Whole:
        """Send a JSON body, get the whole answer."""
        return await self.post_raw(path, json.dumps(body).encode())

    async def stream(self, path: str, body: Mapping[str, Any]) -> Streamed:
        """Send a JSON body with `stream: true`, get every chunk."""
        chunks: list[Json] = []
        done = False
        async with self.session.post(self.card.url + path, json={**body, "stream": True}) as response:
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    done = True
                else:
                    chunks.append(json.loads(data))
            return Streamed(response.status, chunks, done, response.headers["Content-Type"])

    def completion_body(self, prompt: Sequence[int] | str, max_tokens: int = 1, **fields: Any) -> Json:
        """Body for /v1/completions: greedy, of exactly `max_tokens` tokens."""
        prompt = prompt if isinstance(prompt, str) else list(prompt)
        return {
            "model": self.card.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **fields,
        }

    def chat_body(self, messages: Sequence[Mapping[str, Any]], max_tokens: int = 1, **fields: Any) -> Json:
        """Body for /v1/chat/completions: greedy, of exactly `max_tokens` tokens."""
        return {
            "model": self.card.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **fields,
        }

    async def complete(self, prompt: Sequence[int] | str, max_tokens: int = 1, **fields: Any) -> Whole:
        """A completion that must succeed."""
        answer = await self.post("/v1/completions", self.completion_body(prompt, max_tokens, **fields))
        if answer.status != 200:
            raise AssertionError(f"status {answer.status}: {answer.body}")
        return answer

    async def chat(self, messages: Sequence[Mapping[str, Any]], max_tokens: int = 1, **fields: Any) -> Whole:
        """A chat completion that must succeed."""
        answer = await self.post("/v1/chat/completions", self.chat_body(messages, max_tokens, **fields))
        if answer.status != 200:
            raise AssertionError(f"status {answer.status}: {answer.body}")
        return answer

    async def metric(self, name: str) -> float:
        """Sum of a series over its labels; raises `KeyError` if it is not exposed."""
        _, text = await self.get("/metrics")
        values = [
            float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((name + "{", name + " "))
        ]
        if not values:
            raise KeyError(name)
        return sum(values)

    async def wait_for_metric(self, name: str, value: float, timeout_seconds: float) -> None:
        """Poll until a series has this value; `AssertionError` with the last one when it does not in time."""
        deadline = time.monotonic() + timeout_seconds
        while (last := await self.metric(name)) != value:
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} of {self.card.url} is {last}, not {value}, after {timeout_seconds} s")
            await asyncio.sleep(0.05)


@dataclass(slots=True)
class Pair:
    """A prefill and a decode engine that know each other's claim channels."""

    prefill: Engine
    decode: Engine
    block_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.block_size = self.prefill.card.block_size

    async def wait_idle(self, timeout_seconds: float = 20.0) -> None:
        """Until no engine holds a block for anybody."""
        for engine in (self.prefill, self.decode):
            await engine.wait_for_metric("vllm:kv_cache_usage_perc", 0.0, timeout_seconds)
            await engine.wait_for_metric("vllm:num_requests_running", 0.0, timeout_seconds)
            await engine.wait_for_metric("vllm:num_requests_waiting", 0.0, timeout_seconds)


def claim_from(*owners: Engine | Json, **fields: Any) -> Json:
    """`kv_transfer_params` as a field: a claim on these owners (engines or addresses)."""
    addresses = [owner.card.address() if isinstance(owner, Engine) else owner for owner in owners]
    return {"kv_transfer_params": {"claim": {"version": 1, "owners": addresses, **fields}}}


def shared_tokens(common: int, block_size: int, prompt: int) -> int:
    """Tokens that may be reused where `common` leading tokens are held in full: whole blocks, the last token computed."""
    return min(common, prompt - 1) // block_size * block_size
