"""Bodies of /v1/chat/completions and /v1/completions, checked and typed, with vLLM's errors. Pure.

Only what the router uses is understood; unknown fields are ignored as vLLM ignores them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdd_e2e.fake_engine.errors import schema_error, too_long, unknown_model, value_error
from pdd_e2e.fake_engine.settings import EngineSettings
from pdd_e2e.fake_engine.tokens import VOCABULARY, encode, render_chat

_MAX_SALT = 128
_NOT_IN_SALT = "@/\\\0"
_COMPLETION_TOKENS = 16  # vLLM's default for /v1/completions


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request for generation. `logprobs` is the number of rivals to show, or None for no log-probabilities."""

    chat: bool
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    salt: str | None = None
    tools: tuple[str, ...] = ()
    kv_transfer_params: Mapping[str, Any] = field(default_factory=dict)


def parse_job(body: object, settings: EngineSettings, *, chat: bool) -> Job:
    """The request in a decoded JSON body. Raises `RequestError` with vLLM's status, type and param."""
    if not isinstance(body, dict):
        raise schema_error("body", "Input should be a valid dictionary")
    fields = _Fields(body)
    prompts = _chat_prompts(fields) if chat else _completion_prompts(fields)
    model = fields.of("model", str, None)
    if model is not None and model != settings.model:
        raise unknown_model(model)
    longest = max(len(prompt) for prompt in prompts)
    if longest > settings.context_tokens:
        raise too_long(longest, settings.context_tokens)
    stream = bool(fields.of("stream", bool, False))
    options = _stream_options(fields, stream)
    job = Job(
        chat=chat,
        prompts=prompts,
        max_tokens=_max_tokens(fields, settings.context_tokens - longest, chat=chat),
        n=_default(fields.of("n", int, None), 1),
        temperature=_default(fields.of("temperature", float, None), 1.0),
        seed=fields.of("seed", int, None),
        min_tokens=_default(fields.of("min_tokens", int, None), 0),
        ignore_eos=bool(fields.of("ignore_eos", bool, False)),
        stop=_stop(fields),
        logprobs=_logprobs(fields, chat=chat),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        return_token_ids=bool(fields.of("return_token_ids", bool, False)),
        salt=_salt(fields),
        tools=_tools(fields) if chat else (),
        kv_transfer_params=fields.of("kv_transfer_params", dict, None) or {},
    )
    _check_values(job)
    return job


class _Fields:
    """Typed look-ups in a body; names the field when its type is wrong."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body

    def of(self, name: str, kind: type, default: Any) -> Any:
        value = self.body.get(name, default)
        if value is None:
            return default
        if kind is float and type(value) is int:
            return float(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise schema_error(f"body.{name}", f"Input should be a valid {kind.__name__}")
        return value


def _default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _chat_prompts(fields: _Fields) -> tuple[tuple[int, ...], ...]:
    messages = fields.body.get("messages")
    if messages is None:
        raise schema_error("body.messages", "Field required")
    if not isinstance(messages, list):
        raise value_error(None, f"'{type(messages).__name__}' object is not iterable")
    for index, message in enumerate(messages):
        _check_message(message, f"body.messages.{index}")
    if not messages:
        raise value_error(None, "list index out of range")
    tools = fields.of("tools", list, None)
    generation_prompt = bool(fields.of("add_generation_prompt", bool, True))
    return (tuple(render_chat(messages, tools, generation_prompt=generation_prompt)),)


def _check_message(message: object, where: str) -> None:
    if not isinstance(message, Mapping):
        raise schema_error(where, "Input should be a valid dictionary")
    if not isinstance(message.get("role"), str):
        raise schema_error(f"{where}.role", "Input should be a valid string")
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    for index, part in enumerate(parts):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise schema_error(f"{where}.content.{index}", "Input should be a text part")
    if content is not None and not isinstance(content, str | list):
        raise schema_error(f"{where}.content", "Input should be a valid string")
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not all(
            isinstance(function.get(key), str) for key in ("name", "arguments")
        ):
            raise schema_error(f"{where}.tool_calls.{index}.function", "Input should be a function call")


def _completion_prompts(fields: _Fields) -> tuple[tuple[int, ...], ...]:
    prompt = fields.body.get("prompt")
    if prompt is None or prompt in ("", []):
        raise value_error("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
    if isinstance(prompt, str):
        return (tuple(encode(prompt)),)
    if _is_ids(prompt):
        return (_checked_ids(prompt),)
    if isinstance(prompt, list) and all(isinstance(item, str) and item for item in prompt):
        return tuple(tuple(encode(item)) for item in prompt)
    if isinstance(prompt, list) and all(_is_ids(item) for item in prompt):
        return tuple(_checked_ids(item) for item in prompt)
    raise schema_error("body.prompt", "Input should be a valid string")


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _checked_ids(ids: Sequence[int]) -> tuple[int, ...]:
    for token in ids:
        if not 0 <= token < VOCABULARY:
            raise value_error(None, f"Token id {token} is out of vocabulary")
    return tuple(ids)


def _max_tokens(fields: _Fields, room: int, *, chat: bool) -> int:
    wanted = fields.of("max_tokens", int, None)
    if chat:
        wanted = _default(fields.of("max_completion_tokens", int, None), wanted)
    else:
        wanted = _default(wanted, _COMPLETION_TOKENS)
    return room if wanted is None else min(wanted, room)


def _stream_options(fields: _Fields, stream: bool) -> Mapping[str, Any]:
    options: Mapping[str, Any] = fields.of("stream_options", dict, None) or {}
    if options and not stream:
        raise value_error("stream_options", "Stream options can only be defined when `stream=True`.")
    return options


def _stop(fields: _Fields) -> tuple[str, ...]:
    stop = fields.body.get("stop")
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(item, str) for item in stops):
        raise schema_error("body.stop", "Input should be a valid string")
    if "" in stops:
        raise value_error(None, "stop cannot contain an empty string.")
    return tuple(stops)


def _logprobs(fields: _Fields, *, chat: bool) -> int | None:
    name = "top_logprobs" if chat else "logprobs"
    rivals = fields.body.get(name)
    if rivals is not None and (isinstance(rivals, bool) or not isinstance(rivals, int | float)):
        raise value_error(name, f"`{name}` must be an integer.")
    if rivals is not None and rivals < 0 and rivals != -1:
        raise value_error(name, f"`{name}` must be a positive value or -1.")
    if chat:
        wanted = fields.of("logprobs", bool, False)
        if rivals and not wanted:
            raise value_error(name, "when using `top_logprobs`, `logprobs` must be set to true.")
        return int(rivals or 0) if wanted else None
    return None if rivals is None else int(rivals)


def _salt(fields: _Fields) -> str | None:
    salt = fields.body.get("cache_salt")
    if salt is None:
        return None
    if not isinstance(salt, str) or not salt:
        raise value_error("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
    if len(salt) > _MAX_SALT or any(character in _NOT_IN_SALT for character in salt):
        message = f"Parameter 'cache_salt' must be at most {_MAX_SALT} characters and must not contain '@', '/', '\\', or NUL."
        raise value_error("cache_salt", message)
    return salt


def _tools(fields: _Fields) -> tuple[str, ...]:
    tools = fields.of("tools", list, None)
    if tools == []:
        raise value_error("tools", "`tools` must not be an empty array. Either provide one or omit the field.")
    names: list[str] = []
    for index, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise schema_error(f"body.tools.{index}.function", "Field required")
        names.append(function["name"])
    choice = fields.body.get("tool_choice")
    if choice not in (None, "none") and not names:
        raise value_error("tool_choice", "When using `tool_choice`, `tools` must be set.")
    return () if choice == "none" else tuple(names)


def _check_values(job: Job) -> None:
    if job.n < 1:
        raise value_error(None, f"n must be at least 1, got {job.n}.")
    if job.max_tokens < 1:
        raise value_error("max_tokens", f"max_tokens must be at least 1, got {job.max_tokens}.")
    if not 0 <= job.temperature <= 2:
        raise value_error("temperature", f"temperature must be in [0, 2], got {job.temperature}.")
    if job.min_tokens < 0 or job.min_tokens > job.max_tokens:
        raise value_error(None, f"min_tokens must be from 0 to max_tokens={job.max_tokens}, got {job.min_tokens}.")
    if job.temperature == 0 and job.n > 1:
        raise value_error(None, f"n must be 1 when using greedy sampling, got {job.n}.")
