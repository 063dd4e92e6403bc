"""A conversation as a user has it: the `openai` client, streamed, the history sent again with every question."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam

_TIMEOUT_SECONDS = 90.0
_SYSTEM = "You are a patient teacher. " + "Answer briefly and keep to what was asked, with names and years. " * 10
_MORE = "Tell it in your own words, with rivers, hills and the people who lived there. " * 18
QUESTIONS = tuple(
    f"{question} {_MORE}"
    for question in ("What is the capital of France?", "And of Germany?", "Which of them is larger?")
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. `cached_tokens`: of the prompt, computed by nobody for it. `receipt`: the router's account of where it was computed."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    seconds: float
    receipt: dict[str, Any]

    @property
    def read_tokens(self) -> int:
        """Prompt tokens that prefill read from decode instead of computing them."""
        return int((self.receipt.get("prefill") or {}).get("read_tokens") or 0)

    @property
    def engines(self) -> set[str]:
        """All that had a part in it: prefill, decode, and the one that prefill read from."""
        prefill, decode = self.receipt.get("prefill") or {}, self.receipt.get("decode") or {}
        return {str(name) for name in (prefill.get("engine"), prefill.get("owner"), decode.get("engine")) if name}


@dataclass(slots=True)
class Conversation:
    """With an `identity`, the router is told that turns belong together; without, it must see that by itself.

    `messages` that are given are somebody's history, which this conversation goes on with.
    """

    url: str
    topic: str
    identity: str | None = None
    answer_tokens: int = 80  # two whole blocks of 32 or one of 64, wherever it begins
    messages: list[ChatCompletionMessageParam] = field(default_factory=list)
    api_key: str = "none"

    def __post_init__(self) -> None:
        if not self.messages:
            self.messages.append({"role": "system", "content": f"{self.topic}. {_SYSTEM}"})

    def ask(self, question: str, *, on_first_chunk: Callable[[], object] = lambda: None) -> Turn:
        """Raises openai.OpenAIError; never waits longer than its time limit. The history is kept only if an answer came whole."""
        asked: ChatCompletionMessageParam = {"role": "user", "content": question}
        began = time.monotonic()
        with openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=self.api_key, timeout=_TIMEOUT_SECONDS, max_retries=0
        ) as client:
            answer = client.chat.completions.with_raw_response.create(
                model="smollm2",
                messages=[*self.messages, asked],
                stream=True,
                stream_options={"include_usage": True},
                max_tokens=self.answer_tokens,
                temperature=0,
                extra_body={"min_tokens": self.answer_tokens - 1},  # long enough to be worth reading back
                extra_headers={"X-Session-ID": self.identity} if self.identity else {},
            )
            stream = iter(answer.parse())
            first = next(stream, None)
            if first is None:
                raise openai.OpenAIError("the stream was empty")
            on_first_chunk()
            chunks = [first, *stream]
        usage = chunks[-1].usage
        if usage is None:
            raise openai.OpenAIError("the stream ended without usage")
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.messages += [asked, {"role": "assistant", "content": text}]
        details = usage.prompt_tokens_details
        cached = details.cached_tokens if details is not None else None
        receipt = json.loads(answer.headers["x-pdd-receipt"])
        seconds = time.monotonic() - began
        return Turn(text, usage.prompt_tokens, cached or 0, usage.completion_tokens, seconds, receipt)
