"""What goes to engines and what comes back: legs, parameters, receipts, errors, events."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pdd_router.config import CacheIsolation, ConfigError, Limits, OnPrefillFailure
from pdd_router.endpoints.engine import ClaimAddress, EngineId
from pdd_router.errors import (
    EngineBusyError,
    EngineFailedError,
    EngineRejectedError,
    FailureReason,
    UnauthorizedError,
    UpstreamFailedError,
)
from pdd_router.flow.attempts import Progress, after_decode_failure, after_prefill_failure, end_of
from pdd_router.flow.budget import RetryBudget
from pdd_router.flow.kv_params import parse_decode_handle, parse_prefill_handle, parse_receipt, with_keep
from pdd_router.flow.legs import decode_body, prefill_body
from pdd_router.flow.relay import event_for_client
from pdd_router.openai.errors import parse_engine_error
from pdd_router.openai.request import Endpoint, parse_request
from pdd_router.openai.sse import Event
from pdd_router.tenancy import Salts, parse_api_keys, parse_salt_secret, tenant_hash
from pdd_router.upstream import check_answer

RECEIPT = {
    "version": 1, "outcome": "Read", "reason": None, "owner": {"host": "h", "port": 6600}, "prompt_tokens": 10,
    "local_tokens": 2, "read_tokens": 6, "read_bytes": 600, "answer_ms": 1.5, "read_ms": 2.5, "connected": [],
}  # fmt: skip


def test_legs_are_copies() -> None:
    body: dict[str, Any] = {"model": "m", "prompt": "x", "n": 3, "stream": True, "logprobs": 1, "max_tokens": 9}
    request = parse_request(Endpoint.COMPLETIONS, body, (None, None), Limits())
    before = json.dumps(request.body)
    prefill_body(request, salt="s", params={"claim": {}})
    decode_body(request, salt="s", params={"claim": {}})
    assert json.dumps(request.body) == before


@pytest.mark.parametrize(
    ("endpoint", "given", "name"),
    [
        (Endpoint.CHAT, {"max_completion_tokens": 9}, "max_completion_tokens"),
        (Endpoint.CHAT, {"max_tokens": 9}, "max_tokens"),
        (Endpoint.CHAT, {}, "max_tokens"),
        (Endpoint.COMPLETIONS, {"max_completion_tokens": 9}, "max_tokens"),
        (Endpoint.COMPLETIONS, {"max_completion_tokens": None, "max_tokens": 9}, "max_tokens"),
    ],
)
def test_prefill_computes_one_token_by_the_name_that_its_endpoint_knows(
    endpoint: Endpoint, given: dict[str, Any], name: str
) -> None:
    body: dict[str, Any] = {"model": "m", "prompt": "x", "messages": [{"role": "user", "content": "x"}], **given}
    del body["messages" if endpoint is Endpoint.COMPLETIONS else "prompt"]
    leg = prefill_body(parse_request(endpoint, body, (None, None), Limits()), salt="s", params=None)
    assert {key: value for key, value in leg.items() if key.startswith("max_")} == {name: 1}


def test_salt_and_parameters_are_the_routers_whatever_was_there() -> None:
    request = parse_request(Endpoint.COMPLETIONS, {"model": "m", "prompt": "x"}, (None, None), Limits())
    forged = replace(request, body={**request.body, "cache_salt": "chosen", "kv_transfer_params": {"x": 1}})
    for leg in (prefill_body, decode_body):
        body = leg(forged, salt="ours", params={"claim": {}})
        assert (body["cache_salt"], body["kv_transfer_params"]) == ("ours", {"claim": {}})


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2}, {"version": "1"}, {"outcome": None}, {"outcome": 5}, {"outcome": ""}, {"outcome": "a b"},
        {"outcome": "x" * 99},
    ],
)  # fmt: skip
def test_unreadable_receipt_is_no_receipt(changes: dict[str, Any]) -> None:
    assert parse_receipt({"claim": {**RECEIPT, **changes}}) is None


@pytest.mark.parametrize("params", [None, 5, "x", [], {}, {"claim": None}, {"claim": []}])
def test_absent_receipt(params: Any) -> None:
    assert parse_receipt(params) is None


def test_receipt_with_odd_parts_keeps_the_rest() -> None:
    good = parse_receipt({"claim": RECEIPT})
    assert good is not None
    assert (good.owner, good.read_tokens, good.local_tokens) == (ClaimAddress("h", 6600), 6, 2)
    odd = parse_receipt(
        {
            "claim": {
                **RECEIPT,
                "owner": "x",
                "reason": "<script>",
                "read_tokens": -1,
                "read_bytes": True,
                "connected": [1],
            }
        }
    )
    assert odd is not None
    assert (odd.owner, odd.reason, odd.read_tokens, odd.read_bytes, odd.connected) == (None, None, 0, 0, ())


def test_handles_are_only_taken_for_what_they_are() -> None:
    prefill = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1]]}
    decode = {"do_remote_prefill": False, "do_remote_decode": True, "proof": "ab"}
    assert parse_prefill_handle(prefill) is prefill
    assert parse_decode_handle(decode) is decode
    for wrong in (None, {}, [], decode, {"do_remote_prefill": 1}):
        assert parse_prefill_handle(wrong) is None
    for wrong in (None, {}, prefill, {**decode, "proof": ""}, {**decode, "proof": None}, {"do_remote_decode": True}):
        assert parse_decode_handle(wrong) is None
    assert with_keep(prefill) == {**prefill, "retain": {"version": 1, "keep": True}}
    assert "retain" not in prefill


def event(value: Any) -> tuple[Event, Any]:
    raw = b"data: " + json.dumps(value).encode() + b"\n\n"
    return Event(raw, json.dumps(value)), value


def test_parameters_are_taken_out_of_events_and_nothing_else_is_touched() -> None:
    plain, value = event({"id": "1", "choices": [{"delta": {"content": "ä\u2028"}}]})
    assert event_for_client(plain, value, 7) is plain.raw
    with_choice, value = event({"id": "1", "choices": [{"index": 0}], "kv_transfer_params": {"claim": {}}})
    assert sent(event_for_client(with_choice, value, None)) == {"id": "1", "choices": [{"index": 0}]}
    with_usage, value = event({"choices": [], "usage": {"a": 1}, "kv_transfer_params": None})
    assert sent(event_for_client(with_usage, value, 7)) == {"choices": [], "usage": {"a": 1}}
    only, value = event({"id": "1", "object": "x", "choices": [], "kv_transfer_params": {"claim": {}}})
    assert event_for_client(only, value, None) is None


def test_cached_tokens_are_those_of_the_turn_where_an_engine_gives_any() -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": None}}
    told, value = event({"choices": [], "usage": usage})
    assert event_for_client(told, value, None) is told.raw
    assert event_for_client(told, value, 8) is told.raw
    details = {"cached_tokens": 0, "audio_tokens": None}
    expected = {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": details}}
    assert sent(event_for_client(told, value, 0)) == expected
    silent, value = event({"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": None}})
    assert event_for_client(silent, value, 8) is silent.raw


def sent(raw: bytes | None) -> Any:
    return json.loads((raw or b"")[6:])


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"error": {"message": "x", "code": 500}}, EngineFailedError),
        ({"error": "x"}, EngineFailedError),
        ({"error": {"message": "x", "code": 429}}, EngineFailedError),
        ({"error": {"message": "x", "code": 400}}, EngineRejectedError),
        ({"choices": [{"finish_reason": "stop"}, {"finish_reason": "error"}]}, EngineFailedError),
    ],
)
def test_failures_dressed_as_answers(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_answer("e", value)
    check_answer("e", {"choices": [{"finish_reason": "stop"}], "error": None})


def test_engine_errors_of_any_form_become_openai_errors() -> None:
    for body in (None, [], "x", {}, {"detail": "x"}, {"error": 5}):
        error = parse_engine_error(422, body)["error"]
        assert isinstance(error, dict)
        assert (error["code"], error["type"]) == (422, "invalid_request_error")
    kept = {"message": "m", "type": "BadRequestError", "param": "p", "code": 400}
    assert parse_engine_error(400, {"error": kept}) == {"error": kept}


def test_what_a_failure_leads_to() -> None:
    failed, engine = EngineFailedError("e", FailureReason.STATUS), EngineId("e", "http://e")
    progress = after_prefill_failure(Progress(), engine, failed, OnPrefillFailure.RETRY, may_retry=True)
    assert (progress.retries, progress.attempt.give_up_prefill) == (1, False)
    progress = after_prefill_failure(progress, engine, failed, OnPrefillFailure.RETRY, may_retry=False)
    assert (progress.retries, progress.attempt.give_up_prefill) == (1, True)
    progress = after_prefill_failure(Progress(), engine, failed, OnPrefillFailure.AGGREGATE, may_retry=True)
    assert (progress.retries, progress.attempt.give_up_prefill) == (0, True)
    with pytest.raises(UpstreamFailedError):
        after_prefill_failure(Progress(), engine, failed, OnPrefillFailure.FAIL, may_retry=True)
    assert engine in after_decode_failure(Progress(), engine, failed, may_retry=True).attempt.excluded
    with pytest.raises(UpstreamFailedError):
        after_decode_failure(Progress(), engine, failed, may_retry=False)
    assert end_of(failed).status == 502
    assert end_of(EngineFailedError("e", FailureReason.CONNECT)).status == 503
    assert end_of(EngineBusyError("e", "full")).status == 503


def test_budget_is_a_share_of_requests_and_a_little_more() -> None:
    budget = RetryBudget(percent=20, burst=2)
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]
    for _ in range(5):
        budget.deposit()
    assert [budget.withdraw() for _ in range(2)] == [True, False]
    for _ in range(1000):
        budget.deposit()
    assert sum(budget.withdraw() for _ in range(10)) == 2
    none = RetryBudget(percent=0, burst=0)
    none.deposit()
    assert not none.withdraw()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: b",
        "{}",
        "12345678: bob",
        "key-of-bob: 5",
        "key-of-bob: ''",
        "'key of bob': bob",
        "a: [",
        "- x",
        '"key-of-bob\\ud800": bob',
        'key-of-bob: "\\ud800"',
    ],
)
def test_bad_key_files(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_api_keys(text)
    assert "key-of-bob" not in str(refused.value)


def test_keys() -> None:
    keys = parse_api_keys("key-of-bob: bob\nkey-of-eve: eve")
    assert keys.tenant_of("Bearer key-of-eve") == "eve"
    assert "key-of-bob" not in repr(vars(keys))
    for wrong in (None, "", "Bearer", "Bearer key-of-bo", "Bearer key-of-bobb", "Bearer \udcff", "Basic key-of-bob"):
        with pytest.raises(UnauthorizedError):
            keys.tenant_of(wrong)


def test_salts() -> None:
    secret = parse_salt_secret("s" * 32 + "\n")
    own, shared = Salts(secret, CacheIsolation.PER_TENANT), Salts(secret, CacheIsolation.SHARED)
    assert own.salt_of("a") != own.salt_of("b")
    assert shared.salt_of("a") == shared.salt_of("b") != own.salt_of("shared")
    assert own.salt_of("a") != Salts(b"t" * 32, CacheIsolation.PER_TENANT).salt_of("a")
    assert own.salt_of("a").replace("-", "").replace("_", "").isalnum()
    assert tenant_hash(secret, "a") not in own.salt_of("a")
    with pytest.raises(ConfigError):
        parse_salt_secret("short")
