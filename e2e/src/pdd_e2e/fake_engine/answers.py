"""Answer bodies and stream events in the shapes of vLLM 0.32's OpenAI server. Pure.

Which fields are null and which are left out is part of the shape: whole answers carry every field, stream chunks only
those that vLLM sets, usage chunks no nulls.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pdd_e2e.fake_engine.model import Candidate
from pdd_e2e.fake_engine.requests import Job
from pdd_e2e.fake_engine.text import Output
from pdd_e2e.fake_engine.tokens import split_output, token_text

Json = dict[str, Any]
FINGERPRINT = "vllm-0.32.0-fake"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every part of one answer has in common."""

    id: str
    model: str
    created: int

    @classmethod
    def new(cls, model: str, *, chat: bool, request_id: str | None = None) -> "Envelope":
        """A fresh envelope; `request_id` is the client's X-Request-Id, if any."""
        prefix = "chatcmpl" if chat else "cmpl"
        return cls(f"{prefix}-{request_id or uuid4().hex}", model, int(time.time()))

    def chunk(self, chat: bool, choices: list[Json]) -> Json:
        """A stream chunk."""
        kind = "chat.completion.chunk" if chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request; `cached_tokens` None leaves the details out."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None

    def as_json(self) -> Json:
        """With every field, as in whole answers."""
        details = None
        if self.cached_tokens is not None:
            details = {"cached_tokens": self.cached_tokens, "created_cache_tokens": None, "multimodal_tokens": None}
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        }


def event(body: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def whole_answer(
    job: Job, envelope: Envelope, outputs: Sequence[Sequence[Output]], usage: Usage, params: Json | None
) -> Json:
    """Body of an answer that is not streamed; `outputs` by choice."""
    make = _chat_choice if job.chat else _completion_choice
    choices = [make(job, index, choice) for index, choice in enumerate(outputs)]
    body: Json = {
        "id": envelope.id,
        "object": "chat.completion" if job.chat else "text_completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage.as_json(),
        "kv_transfer_params": params,
        "ec_transfer_params": None,
        "metrics": None,
    }
    if job.chat:
        ids = list(job.prompts[0]) if job.return_token_ids else None
        body |= {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
    return body


def _chat_choice(job: Job, index: int, outputs: Sequence[Output]) -> Json:
    reasoning, content, calls = split_output("".join(output.text for output in outputs))
    calls = calls if job.tools else []
    message: Json = {
        "role": "assistant",
        "content": None if calls and not content else content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": reasoning,
    }
    if calls:
        message["tool_calls"] = [_tool_call(name, arguments) for name, arguments in calls]
    return {
        "index": index,
        "message": message,
        "logprobs": _chat_logprobs(job, outputs),
        "finish_reason": "tool_calls" if calls else _finish_reason(outputs),
        "stop_reason": outputs[-1].stop_reason if outputs else None,
        "token_ids": [output.token.token for output in outputs] if job.return_token_ids else None,
        "routed_experts": None,
    }


def _finish_reason(outputs: Sequence[Output]) -> str | None:
    return outputs[-1].finish_reason if outputs else "abort"


def _tool_call(name: str, arguments: str) -> Json:
    return {
        "id": f"chatcmpl-tool-{uuid4().hex}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _completion_choice(job: Job, index: int, outputs: Sequence[Output]) -> Json:
    ids = job.return_token_ids
    return {
        "index": index,
        "text": "".join(output.text for output in outputs),
        "logprobs": _completion_logprobs(job, outputs, 0),
        "finish_reason": _finish_reason(outputs),
        "stop_reason": outputs[-1].stop_reason if outputs else None,
        "token_ids": [output.token.token for output in outputs] if ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": list(job.prompts[index // job.n]) if ids else None,
        "routed_experts": None,
    }


def _chat_logprobs(job: Job, outputs: Sequence[Output]) -> Json | None:
    if job.logprobs is None:
        return None
    content = []
    for output in outputs:
        rivals = output.rivals if job.logprobs == -1 else output.rivals[: job.logprobs]
        content.append(_logprob(output.token) | {"top_logprobs": [_logprob(rival) for rival in rivals]})
    return {"content": content}


def _logprob(candidate: Candidate) -> Json:
    text = token_text(candidate.token)
    return {"token": text, "logprob": candidate.logprob, "bytes": list(text.encode())}


def _completion_logprobs(job: Job, outputs: Sequence[Output], offset: int) -> Json | None:
    if job.logprobs is None:
        return None
    offsets: list[int] = []
    for output in outputs:
        offsets.append(offset)
        offset += len(token_text(output.token.token))
    tops = []
    for output in outputs:
        rivals = output.rivals if job.logprobs == -1 else output.rivals[: job.logprobs]
        tops.append({token_text(each.token): each.logprob for each in (output.token, *rivals)})
    return {
        "text_offset": offsets,
        "token_logprobs": [output.token.logprob for output in outputs],
        "tokens": [token_text(output.token.token) for output in outputs],
        "top_logprobs": tops,
    }


class ChunkWriter:
    """Stream chunks of one request, in vLLM's order: roles, deltas, usage, our parameters (the caller adds DONE)."""

    def __init__(self, job: Job, envelope: Envelope, *, tool_calls: bool) -> None:
        self._job = job
        self._envelope = envelope
        self._offsets: dict[int, int] = {}
        self._text: dict[int, str] = {}
        self._counts: dict[int, int] = {}
        self._parse = tool_calls

    def first(self) -> list[Json]:
        """Chat: one chunk with the role for every choice. Completions: nothing."""
        if not self._job.chat:
            return []
        ids = list(self._job.prompts[0]) if self._job.return_token_ids else None
        chunks = []
        for index in range(self._job.n):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            chunk = self._envelope.chunk(True, [choice])
            chunks.append(self._with_usage(chunk | {"prompt_token_ids": ids, "prompt_text": None}, index))
        return chunks

    def delta(self, index: int, output: Output) -> list[Json]:
        """The chunks for one token of one choice."""
        self._counts[index] = self._counts.get(index, 0) + 1
        make = self._chat_deltas if self._job.chat else self._completion_delta
        chunks = [self._envelope.chunk(self._job.chat, [choice]) for choice in make(index, output)]
        if output.finish_reason and not self._job.include_usage:
            chunks[-1]["system_fingerprint"] = FINGERPRINT
        return [self._with_usage(chunk, index) for chunk in chunks]

    def last(self, usage: Usage, params: Json | None) -> list[Json]:
        """What comes after the last delta: usage if asked for, then our parameters if there are any."""
        chunks = []
        if self._job.include_usage:
            chunk = self._envelope.chunk(self._job.chat, []) | {"usage": _without_nulls(usage.as_json())}
            chunks.append(chunk | {"system_fingerprint": FINGERPRINT})
        if params is not None:
            chunks.append(self._envelope.chunk(self._job.chat, []) | {"kv_transfer_params": params})
        return chunks

    def _with_usage(self, chunk: Json, index: int) -> Json:
        if not self._job.continuous_usage:
            return chunk
        usage = Usage(len(self._job.prompts[index // self._job.n]), self._counts.get(index, 0), None)
        return chunk | {"usage": _without_nulls(usage.as_json())}

    def _chat_deltas(self, index: int, output: Output) -> list[Json]:
        deltas: list[Json] = [{"content": output.text}]
        finish = output.finish_reason
        if self._parse:
            self._text[index] = self._text.get(index, "") + output.text
            if not finish:
                return []
            deltas, called = _parsed_deltas(self._text[index])
            finish = "tool_calls" if called and finish == "stop" else finish
        choices: list[Json] = [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}
            for delta in deltas
        ]
        choices[-1]["logprobs"] = _chat_logprobs(self._job, [output])
        choices[-1]["token_ids"] = [output.token.token] if self._job.return_token_ids else None
        if finish:
            choices[-1] |= {"finish_reason": finish, "stop_reason": output.stop_reason}
        return choices

    def _completion_delta(self, index: int, output: Output) -> list[Json]:
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + len(token_text(output.token.token))
        ids = self._job.return_token_ids
        first = ids and self._counts[index] == 1
        return [
            {
                "index": index,
                "text": output.text,
                "logprobs": _completion_logprobs(self._job, [output], offset),
                "finish_reason": output.finish_reason,
                "stop_reason": output.stop_reason,
                "prompt_token_ids": list(self._job.prompts[index // self._job.n]) if first else None,
                "token_ids": [output.token.token] if ids else None,
            }
        ]


def _parsed_deltas(text: str) -> tuple[list[Json], bool]:
    """Deltas of a text with reasoning or tool calls, as the parsers would send them; whether a tool is called."""
    reasoning, content, calls = split_output(text)
    deltas: list[Json] = []
    if reasoning:
        deltas.append({"reasoning": reasoning})
    if content:
        deltas.append({"content": content})
    for position, (name, arguments) in enumerate(calls):
        head = {"id": f"chatcmpl-tool-{uuid4().hex}", "type": "function", "index": position}
        deltas.append({"tool_calls": [head | {"function": {"name": name, "arguments": ""}}]})
        half = len(arguments) // 2
        for piece in (arguments[:half], arguments[half:]):
            deltas.append({"tool_calls": [{"index": position, "function": {"arguments": piece}}]})
    deltas.append({"content": ""} if not calls else {})
    return deltas, bool(calls)


def _without_nulls(body: Json) -> Json:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in body.items()
        if value is not None
    }
