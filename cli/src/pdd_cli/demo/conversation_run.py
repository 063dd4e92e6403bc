"""Holds one conversation through a router with the `openai` client, streaming, as any client would: no conversation id, no header of ours.

Knows no engines and no processes: a URL, a key, a script.
"""

import time
from dataclasses import dataclass
from typing import Any, cast

from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types import CompletionUsage

from pdd_cli.demo.conversation import Message, Turn, extend
from pdd_cli.demo.receipt import HEADER, parse_receipt
from pdd_cli.demo.results import TurnResult
from pdd_cli.errors import BrokenPromiseError


@dataclass(frozen=True, slots=True)
class Talk:
    """How the model is asked. Greedy always: replies are compared."""

    model: str
    max_tokens: int
    timeout_seconds: float = 300.0


def make_client(url: str, api_key: str, timeout_seconds: float = 300.0) -> AsyncOpenAI:
    """A client of the router at `url` (without /v1). It ignores proxies: everything is on loopback. Never retries: that would hide failures."""
    http = DefaultAsyncHttpxClient(trust_env=False, timeout=timeout_seconds)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0, http_client=http)


class Conversation:
    """One conversation that goes on. Each turn sends the whole history, with what the model really said."""

    def __init__(self, client: AsyncOpenAI, talk: Talk) -> None:
        self._client = client
        self._talk = talk
        self._history: list[Message] = []

    async def take(self, turn: Turn) -> TurnResult:
        """Send the next turn. Raises BrokenPromiseError where it fails or comes without text, usage or receipt."""
        messages = extend(self._history, turn)
        result = await _ask(self._client, messages, turn, self._talk)
        self._history = [*messages, {"role": "assistant", "content": result.text}]
        return result


async def _ask(client: AsyncOpenAI, messages: list[Message], turn: Turn, talk: Talk) -> TurnResult:
    pieces: list[str] = []
    first: float | None = None
    usage: CompletionUsage | None = None
    started = time.perf_counter()
    try:
        raw = await client.chat.completions.with_raw_response.create(
            model=talk.model,
            messages=cast("Any", messages),
            stream=True,
            stream_options={"include_usage": True},
            temperature=0,
            max_completion_tokens=talk.max_tokens,
        )
        async for chunk in raw.parse():
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                first = first or time.perf_counter()
                pieces.append(text)
            usage = chunk.usage or usage
    except APIError as problem:
        raise BrokenPromiseError(f"turn {turn.number} failed: {problem.message}") from problem
    ended = time.perf_counter()
    if first is None or usage is None:
        raise BrokenPromiseError(f"turn {turn.number} came without {'text' if first is None else 'usage'}")
    details = usage.prompt_tokens_details
    return TurnResult(
        number=turn.number,
        is_tool_result=turn.is_tool_result,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        ttft_seconds=first - started,
        seconds=ended - started,
        text="".join(pieces),
        receipt=parse_receipt(raw.headers.get(HEADER), turn.number),
    )
