"""A client's request, checked: untrusted JSON → ``ClientRequest``. Pure.

Checks what could hurt an engine, a neighbour or the router, and what the router itself reads; everything else is the
engine's to judge and goes through untouched. Must not change what the prompt says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pdd_router.config import Limits
from pdd_router.errors import BadRequestError
from pdd_router.openai.checks import (
    check_bool,
    check_int,
    check_list,
    check_number,
    check_object,
    check_string,
    check_strings,
)
from pdd_router.openai.content import check_messages, check_prompt, without_media_ids
from pdd_router.openai.strict_json import JsonObject

# The router's own, or an engine's internals: never taken from a client.
OWNED_FIELDS = frozenset(
    {
        "kv_transfer_params", "ec_transfer_params", "cache_salt", "request_id", "priority", "session_id",
        "conversation_id", "prompt_cache_key", "data_parallel_rank",
    }
)  # fmt: skip
CONVERSATION_FIELDS = ("conversation_id", "session_id", "prompt_cache_key")
CONVERSATION_HEADERS = ("X-Session-ID", "X-Conversation-ID")


class Endpoint(StrEnum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """``body`` is without the fields that are not the client's to set; treat it as immutable: legs are copies.

    ``choices``: sequences an engine computes for each of ``prompts``. ``answers``: how many the client gets, of all prompts.
    """

    endpoint: Endpoint
    body: JsonObject
    model: str
    stream: bool
    conversation_id: str | None
    choices: int
    prompts: int
    answers: int
    one_engine_only: bool


def parse_request(
    endpoint: Endpoint, body: JsonObject, header_ids: tuple[str | None, ...], limits: Limits
) -> ClientRequest:
    """``header_ids``: values of CONVERSATION_HEADERS, in order. Raises BadRequestError naming the field."""
    model = check_string(body, "model", max_chars=256, required=True)
    if endpoint is Endpoint.CHAT:
        check_messages(body, limits)
        prompts = 1
    else:
        prompts = check_prompt(body, limits)
    _check_sampling(body, limits)
    _check_output(endpoint, body, limits)
    _check_tools(body, limits)
    choices = check_int(body, "n", 1, limits.max_choices) or 1
    best_of = check_int(body, "best_of", 1, limits.max_choices) or 1
    if prompts * max(choices, best_of) > limits.max_sequences:
        raise BadRequestError(
            f"`n` times the number of prompts must not exceed {limits.max_sequences}", param="n", code="too_many"
        )
    return ClientRequest(
        endpoint=endpoint,
        body=_without_owned(body),
        model=model or "",
        stream=body.get("stream") is True,
        conversation_id=_conversation_id(body, header_ids),
        choices=max(choices, best_of),
        prompts=prompts,
        answers=choices * prompts,
        one_engine_only=_needs_one_engine(endpoint, body),
    )


def _check_sampling(body: JsonObject, limits: Limits) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        check_int(body, name, 1, limits.max_tokens)
    check_int(body, "min_tokens", 0, limits.max_tokens)
    check_int(body, "seed", -(2**63), 2**63 - 1)
    for name in (
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "length_penalty",
    ):  # fmt: skip
        check_number(body, name)
    check_strings(body, "stop", max_items=limits.max_stop, max_chars=1024)
    check_list(body, "stop_token_ids", max_items=limits.max_stop)
    check_strings(body, "bad_words", max_items=1024, max_chars=1024)
    check_list(body, "allowed_token_ids", max_items=1_000_000)
    check_list(body, "logprob_token_ids", max_items=1024)
    bias = check_object(body, "logit_bias")
    if bias is not None and len(bias) > 1024:
        raise BadRequestError("`logit_bias` must not have more than 1024 entries", param="logit_bias", code="too_many")


def _check_output(endpoint: Endpoint, body: JsonObject, limits: Limits) -> None:
    for name in ("stream", "echo", "ignore_eos", "use_beam_search", "parallel_tool_calls", "return_token_ids"):
        check_bool(body, name)
    if check_object(body, "stream_options") is not None and body.get("stream") is not True:
        raise BadRequestError("`stream_options` must only be set with `stream`: true", param="stream_options")
    if endpoint is Endpoint.CHAT:
        check_bool(body, "logprobs")
        check_int(body, "top_logprobs", 0, limits.max_logprobs)
    else:
        check_int(body, "logprobs", 0, limits.max_logprobs)
        check_string(body, "suffix", max_chars=limits.max_body_bytes)
    check_int(body, "prompt_logprobs", 0, limits.max_logprobs)
    check_object(body, "response_format")
    check_string(body, "user", max_chars=1024)
    check_object(body, "chat_template_kwargs")


def _check_tools(body: JsonObject, limits: Limits) -> None:
    tools = check_list(body, "tools", max_items=limits.max_tools)
    for at, tool in enumerate(tools or ()):
        if not isinstance(tool, dict):
            raise BadRequestError(f"`tools[{at}]` must be an object", param=f"tools[{at}]")
    choice = body.get("tool_choice")
    if choice is not None and not isinstance(choice, str | dict):
        raise BadRequestError("`tool_choice` must be a string or an object", param="tool_choice")


def _conversation_id(body: JsonObject, header_ids: tuple[str | None, ...]) -> str | None:
    found: list[str] = []
    for name, value in zip(CONVERSATION_HEADERS, header_ids, strict=True):
        if value is None:
            continue
        if not value or len(value) > 256 or not value.isprintable():
            raise BadRequestError(f"Header `{name}` must be 1 to 256 printable characters", param=name)
        found.append(value)
    for name in CONVERSATION_FIELDS:
        value = check_string(body, name, max_chars=256)
        if value:
            found.append(value)
    return found[0] if found else None


def _without_owned(body: JsonObject) -> JsonObject:
    kept = {key: value for key, value in body.items() if key not in OWNED_FIELDS}
    extra = kept.get("vllm_xargs")
    if isinstance(extra, dict):
        # vLLM merges these into the same place that kv_transfer_params come from.
        kept["vllm_xargs"] = {key: value for key, value in extra.items() if key not in OWNED_FIELDS}
    elif extra is not None:
        raise BadRequestError("`vllm_xargs` must be an object", param="vllm_xargs")
    messages = kept.get("messages")
    if isinstance(messages, list):
        kept["messages"] = without_media_ids(messages)
    return kept


def _needs_one_engine(endpoint: Endpoint, body: JsonObject) -> bool:
    """Prompt log-probabilities need every prompt token computed where they are asked for; beams read nobody's KV."""
    if body.get("prompt_logprobs") is not None or body.get("use_beam_search") is True:
        return True
    return endpoint is Endpoint.COMPLETIONS and body.get("echo") is True and body.get("logprobs") is not None
