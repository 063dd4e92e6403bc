"""Checks of what the model is given: messages and prompts. Pure.

A URL in a message would be fetched by an engine from inside the cluster, so only ``data:`` URLs pass.
"""

from __future__ import annotations

from pdd_router.config import Limits
from pdd_router.errors import BadRequestError
from pdd_router.openai.checks import check_list, check_string
from pdd_router.openai.strict_json import JsonObject

_MAX_TOKEN_ID = 2**31 - 1
_TEXT_TYPES = ("text", "input_text", "output_text", "refusal", "thinking")


def check_messages(body: JsonObject, limits: Limits) -> None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("`messages` must be a non-empty list", param="messages")
    check_list(body, "messages", max_items=limits.max_messages)
    for at, message in enumerate(messages):
        path = f"messages[{at}]"
        if not isinstance(message, dict):
            raise BadRequestError(f"`{path}` must be an object", param=path)
        check_string(message, "role", max_chars=64, required=True, at=f"{path}.role")
        _check_content(message.get("content"), f"{path}.content", limits)
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise BadRequestError(f"`{path}.tool_calls` must be a list of objects", param=f"{path}.tool_calls")


def _check_content(content: object, path: str, limits: Limits) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise BadRequestError(f"`{path}` must be a string or a list", param=path)
    if len(content) > limits.max_messages:
        raise BadRequestError(
            f"`{path}` must not have more than {limits.max_messages} parts", param=path, code="too_many"
        )
    for at, part in enumerate(content):
        if not isinstance(part, dict):
            raise BadRequestError(f"`{path}[{at}]` must be an object", param=f"{path}[{at}]")
        _check_media(part, f"{path}[{at}]")


def _check_media(part: JsonObject, path: str) -> None:
    """Whatever ``type`` says: vLLM drops it from a part that has a field of another kind, and goes by that field.

    Media that are null ask for what is cached under ``uuid``. Beside a text or other media, null is what is not there.
    """
    media = {key: value for key, value in part.items() if is_media(key)}
    if media and part.get("type") not in _TEXT_TYPES and all(value is None for value in media.values()):
        at = f"{path}.{next(iter(media))}"
        raise BadRequestError(f"`{at}` must hold the media, not null", param=at, code="null_media")
    for key, value in media.items():
        url = value.get("url") if isinstance(value, dict) else value
        if value is not None and _is_url(key) and not _is_data_url(url):
            raise BadRequestError(f"`{path}.{key}` must be a data: URL", param=f"{path}.{key}", code="remote_media")


def is_media(key: str) -> bool:
    """Whether a part's field holds what the model does not read as text."""
    return _is_url(key) or key.endswith(("_embeds", "_audio", "_pil"))


def _is_url(key: str) -> bool:
    return key == "url" or key.endswith(("_url", "image"))


def _is_data_url(url: object) -> bool:
    return isinstance(url, str) and url[:5].lower() == "data:"


def without_media_ids(messages: list[object]) -> list[object]:
    """vLLM caches media under a part's ``uuid``, for all tenants alike."""
    return [_without_ids(message) if isinstance(message, dict) else message for message in messages]


def _without_ids(message: JsonObject) -> JsonObject:
    parts = message.get("content")
    if not isinstance(parts, list) or not any(isinstance(part, dict) and "uuid" in part for part in parts):
        return message
    return {**message, "content": [_without_id(part) if isinstance(part, dict) else part for part in parts]}


def _without_id(part: JsonObject) -> JsonObject:
    return {key: value for key, value in part.items() if key != "uuid"}


def check_prompt(body: JsonObject, limits: Limits) -> int:
    """How many prompts there are."""
    if body.get("prompt_embeds") is not None:
        raise BadRequestError("`prompt_embeds` must not be set", param="prompt_embeds", code="unsupported")
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return 1
    if not isinstance(prompt, list) or not prompt:
        raise BadRequestError("`prompt` must be a string or a non-empty list", param="prompt")
    if _is_token_ids(prompt):
        return 1
    if len(prompt) > limits.max_sequences:
        raise BadRequestError(
            f"`prompt` must not hold more than {limits.max_sequences} prompts", param="prompt", code="too_many"
        )
    for at, item in enumerate(prompt):
        if not isinstance(item, str) and not (isinstance(item, list) and item and _is_token_ids(item)):
            raise BadRequestError(f"`prompt[{at}]` must be a string or a list of token ids", param=f"prompt[{at}]")
    if len({type(item) for item in prompt}) > 1:
        raise BadRequestError("`prompt` must hold either strings or lists of token ids", param="prompt")
    return len(prompt)


def _is_token_ids(items: list[object]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _MAX_TOKEN_ID for item in items)
