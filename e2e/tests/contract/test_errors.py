"""Bad requests: status and body as vLLM gives them, for whole and streamed requests alike."""

from typing import Any

import pytest

from pdd_e2e.engine_pair import Pair, Whole

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def check_error(answer: Whole, status: int, kind: str, param: str | None) -> None:
    """The one form that every error has."""
    assert answer.status == status
    assert set(answer.body) == {"error"}
    error = answer.body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert (error["code"], error["type"], error["param"]) == (status, kind, param)


# (path, fields that replace the good ones, type, param)
BAD: dict[str, tuple[str, dict[str, Any], str, str | None]] = {
    "messages-missing": (CHAT, {"messages": None}, "Bad Request", "body.messages"),
    "messages-no-list": (CHAT, {"messages": 5}, "BadRequestError", None),
    "max-tokens-text": (CHAT, {"max_tokens": "many"}, "Bad Request", "body.max_tokens"),
    "max-tokens-zero": (CHAT, {"max_tokens": 0}, "BadRequestError", "max_tokens"),
    "max-tokens-negative": (CHAT, {"max_tokens": -4}, "BadRequestError", "max_tokens"),
    "temperature-high": (CHAT, {"temperature": 2.5}, "BadRequestError", "temperature"),
    "temperature-negative": (CHAT, {"temperature": -0.1}, "BadRequestError", "temperature"),
    "n-zero": (CHAT, {"n": 0}, "BadRequestError", None),
    "n-greedy": (CHAT, {"n": 2, "temperature": 0}, "BadRequestError", None),
    "stop-empty": (CHAT, {"stop": ""}, "BadRequestError", None),
    "tools-empty": (CHAT, {"tools": []}, "BadRequestError", "tools"),
    "tool-choice-alone": (CHAT, {"tool_choice": "auto"}, "BadRequestError", "tool_choice"),
    "top-logprobs-alone": (CHAT, {"top_logprobs": 3}, "BadRequestError", "top_logprobs"),
    "stream-options-alone": (CHAT, {"stream_options": {"include_usage": True}}, "BadRequestError", "stream_options"),
    "salt-empty": (CHAT, {"cache_salt": ""}, "BadRequestError", "cache_salt"),
    "salt-long": (CHAT, {"cache_salt": "s" * 129}, "BadRequestError", "cache_salt"),
    "salt-slash": (CHAT, {"cache_salt": "a/b"}, "BadRequestError", "cache_salt"),
    "params-no-object": (CHAT, {"kv_transfer_params": [1]}, "Bad Request", "body.kv_transfer_params"),
    "prompt-missing": (COMPLETIONS, {"prompt": None}, "BadRequestError", "prompt"),
    "prompt-empty": (COMPLETIONS, {"prompt": ""}, "BadRequestError", "prompt"),
    "logprobs-negative": (COMPLETIONS, {"logprobs": -2}, "BadRequestError", "logprobs"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_body(pair: Pair, name: str) -> None:
    path, fields, kind, param = BAD[name]
    good = {"model": pair.decode.card.model, "max_tokens": 1}
    good |= {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    body = {key: value for key, value in (good | fields).items() if value is not None}
    check_error(await pair.decode.post(path, body), 400, kind, param)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_unknown_model(pair: Pair, path: str) -> None:
    body = {"model": "no-such-model", "messages": HELLO, "prompt": "hello", "max_tokens": 1}
    check_error(await pair.decode.post(path, body), 404, "NotFoundError", "model")
    check_error(await pair.decode.post(path, body | {"stream": True}), 404, "NotFoundError", "model")


async def test_prompt_too_long(pair: Pair) -> None:
    body = pair.decode.completion_body([300] * 40_000)
    answer = await pair.decode.post(COMPLETIONS, body)
    assert answer.status == 400
    assert answer.body["error"]["type"] == "BadRequestError"
    assert "maximum context length" in answer.body["error"]["message"]


@pytest.mark.parametrize("data", [b"", b"{", b"[1, 2", b'{"model": }', b"\xff\xfe"])
async def test_body_that_is_no_json(pair: Pair, data: bytes) -> None:
    answer = await pair.decode.post_raw(CHAT, data)
    assert answer.status == 400
    assert answer.body["error"]["code"] == 400
    assert answer.body["error"]["type"] == "Bad Request"


async def test_body_that_is_no_object(pair: Pair) -> None:
    answer = await pair.decode.post_raw(CHAT, b"[]")
    assert answer.status == 400
    assert answer.body["error"]["type"] == "Bad Request"


async def test_wrong_content_type(pair: Pair) -> None:
    check_error(await pair.decode.post_raw(CHAT, b"{}", "text/plain"), 400, "Bad Request", None)


async def test_unknown_path_and_method(pair: Pair) -> None:
    unknown, wrong = await pair.decode.post("/v1/no/such/path", {}), await pair.decode.post("/v1/models", {})
    assert (unknown.status, unknown.body) == (404, {"detail": "Not Found"})
    assert (wrong.status, wrong.body) == (405, {"detail": "Method Not Allowed"})


async def test_errors_leave_nothing_behind(pair: Pair) -> None:
    body = pair.decode.chat_body(HELLO, 1, temperature=9)
    for _ in range(5):
        assert (await pair.decode.post(CHAT, body)).status == 400
    assert await pair.decode.metric("vllm:kv_cache_usage_perc") == 0.0
