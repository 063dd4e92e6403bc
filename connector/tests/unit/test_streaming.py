"""The chunk with `kv_transfer_params` that vLLM 0.32 leaves out of its streams."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pdd_connector.streaming import wrap_stream_generator

HANDLE = {"remote_request_id": "r", "remote_block_ids": [[1, 2]]}


@dataclass
class _Choice:
    index: int = 0


@dataclass
class _Output:
    kv_transfer_params: dict[str, Any] | None = None
    outputs: list[_Choice] = field(default_factory=lambda: [_Choice()])


class _Serving:
    """A stream generator in the shape of vLLM's: one chunk per output, then the end mark."""

    closed = False

    async def stream(
        self, request: str, result_generator: AsyncIterator[Any], request_id: str, model_name: str
    ) -> AsyncGenerator[str, None]:
        try:
            async for item in result_generator:
                if item == "fail":
                    yield 'data: {"error": "x"}\n\n'
                    break
                yield f'data: {{"id": "{request_id}", "choices": [{{}}]}}\n\n'
            yield "data: [DONE]\n\n"
        finally:
            self.closed = True


class _Source:
    """The engine's generator: yields what it was given."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)

    def __aiter__(self) -> "_Source":
        return self

    async def __anext__(self) -> Any:
        if not self.items:
            raise StopAsyncIteration
        return self.items.pop(0)


_wrapped = wrap_stream_generator(_Serving.stream, "chat.completion.chunk")


async def _chunks(*items: Any) -> list[str]:
    return [chunk async for chunk in _wrapped(_Serving(), "q", _Source(*items), "req-1", model_name="m")]


def _extra(chunks: list[str]) -> list[dict[str, Any]]:
    bodies = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks if "[DONE]" not in chunk]
    return [body for body in bodies if "kv_transfer_params" in body]


async def test_params_come_in_one_more_chunk_right_before_the_end() -> None:
    chunks = await _chunks(_Output(), _Output(HANDLE))
    assert len(chunks) == 4
    assert chunks[-1] == "data: [DONE]\n\n"
    assert chunks[-2].endswith("\n\n")
    body = json.loads(chunks[-2].removeprefix("data: "))
    assert body.pop("created") > 0
    assert body == {
        "id": "req-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [],
        "kv_transfer_params": HANDLE,
    }


async def test_without_params_the_stream_is_untouched() -> None:
    plain = [chunk async for chunk in _Serving().stream("q", _Source(_Output(), _Output({})), "req-1", "m")]
    assert await _chunks(_Output(), _Output({})) == plain


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        # n=2: the second choice finishes first; the first one's count.
        ([_Output({"of": 1}, [_Choice(1)]), _Output({"of": 0}, [_Choice(0)])], {"of": 0}),
        ([_Output({"of": 0}, [_Choice(0)]), _Output({"of": 1}, [_Choice(1)])], {"of": 0}),
        # Several prompts: as in an answer that is not streamed, the first one's.
        ([(1, _Output({"of": 1})), (0, _Output({"of": 0}))], {"of": 0}),
        ([(0, _Output({"of": 0})), (1, _Output({"of": 1}))], {"of": 0}),
        ([(0, _Output(None)), (2, _Output({"of": 2})), (1, _Output({"of": 1}))], {"of": 2}),
    ],
)
async def test_several_choices_or_prompts_give_one_chunk(items: list[Any], expected: dict[str, Any]) -> None:
    extra = _extra(await _chunks(*items))
    assert [body["kv_transfer_params"] for body in extra] == [expected]


async def test_a_stream_that_fails_before_its_end_has_none() -> None:
    assert _extra(await _chunks(_Output(), "fail")) == []


async def test_a_client_that_leaves_closes_what_is_below() -> None:
    serving = _Serving()
    stream = _wrapped(serving, "q", _Source(_Output(), _Output(HANDLE)), "req-1", model_name="m")
    await anext(stream)
    await stream.aclose()
    assert serving.closed
