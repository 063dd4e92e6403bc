"""Puts a request's final `kv_transfer_params` into one more chunk before `data: [DONE]`, on vLLM 0.32 only.

vLLM 0.33 does so itself. The generators of chat and completions streams are wrapped as a whole: what they are given to
iterate over is watched, what they yield is passed on untouched. Runs in the API server, on its event loop: must never
wait, never hold a stream back and never touch a request that has no parameters.
"""

import functools
import inspect
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from types import ModuleType
from typing import Any, Final

from pdd_connector.after_import import call_after_import

_DONE: Final = "data: [DONE]"
_WRAPPED: Final = "_pdd_streams_kv_transfer_params"

StreamGenerator = Callable[..., AsyncGenerator[str, None]]


# Module, class, method and the `object` of its chunks.
STREAMS: Final = (
    (
        "vllm.entrypoints.openai.chat_completion.serving",
        "OpenAIServingChat",
        "chat_completion_stream_generator",
        "chat.completion.chunk",
    ),
    (
        "vllm.entrypoints.openai.completion.serving",
        "OpenAIServingCompletion",
        "completion_stream_generator",
        "text_completion",
    ),
)


def install() -> None:
    """Wrap both stream generators as soon as their modules are imported; again is no harm."""
    for module, owner, method, chunk_object in STREAMS:
        call_after_import(module, functools.partial(_wrap_method, owner, method, chunk_object))


def _wrap_method(owner_name: str, method_name: str, chunk_object: str, module: ModuleType) -> None:
    owner = getattr(module, owner_name)
    original = getattr(owner, method_name)
    if not hasattr(original, _WRAPPED):
        setattr(owner, method_name, wrap_stream_generator(original, chunk_object))


def wrap_stream_generator(original: StreamGenerator, chunk_object: str) -> StreamGenerator:
    """A generator that yields what `original` yields and, before the end mark, the parameters that it was given.

    `original` takes `result_generator`, `request_id` and `model_name` among its parameters.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    async def generator(*args: Any, **kwargs: Any) -> AsyncGenerator[str, None]:
        bound = signature.bind(*args, **kwargs)
        watched = _Watched(bound.arguments["result_generator"])
        bound.arguments["result_generator"] = watched
        created = bound.arguments.get("created_time", int(time.time()))
        async with aclosing(original(*bound.args, **bound.kwargs)) as stream:
            async for chunk in stream:
                if watched.params is not None and chunk.startswith(_DONE):
                    yield _chunk(bound.arguments, chunk_object, created, watched.params)
                yield chunk

    setattr(generator, _WRAPPED, True)
    return generator


def _chunk(arguments: dict[str, Any], chunk_object: str, created: int, params: dict[str, Any]) -> str:
    body = {
        "id": arguments["request_id"],
        "object": chunk_object,
        "created": created,
        "model": arguments["model_name"],
        "choices": [],
        "kv_transfer_params": params,
    }
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"


class _Watched:
    """Passes on what an engine's generator yields and keeps the parameters that came with it.

    With several choices or prompts each has its own; as in an answer that is not streamed, those of the first choice of
    the first prompt count, or of whichever came first where that one has none.
    """

    def __init__(self, inner: AsyncIterator[Any]) -> None:
        self._inner = inner
        self._of_first = False
        self.params: dict[str, Any] | None = None

    def __aiter__(self) -> "_Watched":
        return self

    async def __anext__(self) -> Any:
        item = await anext(self._inner)
        prompt, output = item if isinstance(item, tuple) else (0, item)
        params = getattr(output, "kv_transfer_params", None)
        if params and not self._of_first:
            is_first = prompt == 0 and any(choice.index == 0 for choice in output.outputs)
            if is_first or self.params is None:
                self.params, self._of_first = params, is_first
        return item
