"""Untrusted input: parsers are total, and events survive any chunking."""

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd_router.config import Limits
from pdd_router.errors import BadRequestError
from pdd_router.flow.kv_params import parse_receipt
from pdd_router.openai.request import OWNED_FIELDS, Endpoint, parse_request
from pdd_router.openai.sse import EventParser
from pdd_router.openai.strict_json import memory_of, parse_object
from pdd_router.policy.chain import chain_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=15,
)
FIELDS = [
    "model", "messages", "prompt", "stream", "n", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice",
    "logprobs", "logit_bias", "kv_transfer_params", "cache_salt", "conversation_id", "vllm_xargs", "stream_options",
    "temperature", "role", "content", "seed", "priority",
]  # fmt: skip
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])}, optional={"content": JSON, "tool_calls": JSON}
)
BODY = st.fixed_dictionaries(
    {},
    optional={
        **{name: JSON for name in FIELDS},
        "messages": st.lists(MESSAGE, max_size=4) | JSON,
        "model": st.just("m"),
    },
)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    try:
        value = parse_object(raw, max_depth=16, max_values=1000)
    except BadRequestError:
        return
    assert isinstance(value, dict)


@given(st.dictionaries(st.text(), JSON, max_size=6))
def test_every_plain_object_passes(value: dict[str, Any]) -> None:
    ints = [item for item in value.values() if isinstance(item, int)]
    if all(abs(item) < 10**18 for item in ints):
        try:
            assert parse_object(json.dumps(value, ensure_ascii=False).encode(), max_depth=64, max_values=1000) == value
        except BadRequestError as error:
            assert error.code == "invalid_number"


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(Endpoint)), BODY)
def test_any_object_is_a_request_or_refused(endpoint: Endpoint, body: dict[str, Any]) -> None:
    before = json.dumps(body)
    try:
        request = parse_request(endpoint, body, (None, None), Limits())
    except BadRequestError as error:
        assert 400 <= error.status < 500
        assert error.param is not None
        return
    finally:
        assert json.dumps(body) == before
    assert not request.body.keys() & OWNED_FIELDS
    chain = chain_of(request)
    assert all(a.chars <= b.chars <= chain.chars for a, b in zip(chain.links, chain.links[1:], strict=False))


@given(JSON)
def test_any_receipt_is_read_or_ignored(value: Any) -> None:
    for params in (
        value,
        {"claim": value},
        {"claim": {"version": 1, "outcome": "Read", "owner": value, "read_tokens": value}},
    ):
        parse_receipt(params)


PAYLOAD = st.text(
    alphabet=st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), min_size=1, max_size=20
)


ENDS = ("\n\n", "\r\n\r\n", "\r\r", "\n\r\n", "\r\n\n")


@given(
    st.lists(PAYLOAD, min_size=1, max_size=8),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(1, 7), max_size=60),
)
def test_events_survive_any_chunking(payloads: list[str], newline: str, sizes: list[int]) -> None:
    whole = "".join(f"data: {payload}{newline}{newline}" for payload in payloads).encode()
    parser, events, at = EventParser(10_000), [], 0
    for size in [*sizes, len(whole)]:
        events += parser.feed(whole[at : at + size])
        at += size
    assert b"".join(event.raw for event in events) == whole
    assert [event.data for event in events] == payloads
    assert not parser.pending


@given(
    st.lists(st.tuples(PAYLOAD, st.sampled_from(ENDS)), min_size=1, max_size=8),
    st.lists(st.integers(1, 7), max_size=60),
)
def test_events_may_end_differently(events: list[tuple[str, str]], sizes: list[int]) -> None:
    """A line ends with LF, CRLF or CR, each as it likes."""
    whole = "".join(f"data: {payload}{end}" for payload, end in events).encode()
    parser, found, at = EventParser(10_000), [], 0
    for size in [*sizes, len(whole)]:
        found += parser.feed(whole[at : at + size])
        at += size
    assert [event.data for event in found] == [payload for payload, _ in events]
    assert not parser.pending


def test_an_event_costs_what_it_is_long_not_what_is_behind_it() -> None:
    """Four times the events in one piece take about four times as long, not sixteen times: the piece is as long as a client was slow."""

    def seconds(number: int) -> float:
        piece = b'data: {"choices": [{"index": 0, "delta": {"content": "word"}}]}\n\n' * number
        took = []
        for _ in range(5):
            parser, began = EventParser(10_000), time.process_time()
            assert sum(1 for _ in parser.feed(piece)) == number
            took.append(time.process_time() - began)
        return min(took)

    assert seconds(6_000) < 9 * seconds(1_500)


@given(st.binary(max_size=200), st.lists(st.integers(1, 9), max_size=40))
def test_no_byte_is_lost_or_added(raw: bytes, sizes: list[int]) -> None:
    parser, out, at = EventParser(10_000), b"", 0
    for size in [*sizes, len(raw)]:
        out += b"".join(event.raw for event in parser.feed(raw[at : at + size]))
        at += size
    kept = raw.strip(b"\r\n")
    assert out.strip(b"\r\n") in raw
    assert parser.pending or len(out.strip()) <= len(kept)


def test_a_string_that_never_ends_costs_what_it_is_long() -> None:
    """Four times the quotes in it take about four times as long, not sixteen times: a body of megabytes would stop the router for hours."""

    def seconds(number: int) -> float:
        raw = b'{"a":"' + b"," * 9 + b'\\"' * number
        took = []
        for _ in range(5):
            began = time.process_time()
            with pytest.raises(BadRequestError):
                parse_object(raw, max_depth=8, max_values=8)
            took.append(time.process_time() - began)
        return min(took)

    assert seconds(8_000) < 9 * seconds(2_000)


def test_values_are_counted_but_not_what_looks_like_them_in_strings() -> None:
    for text, passes in (
        ('{"a": [1, 2, 3]}', True),  # commas, brackets and braces: 4
        ('{"a": [1, 2, 3, 4]}', False),
        ('{"a": [[], []]}', False),
        ('{"a": ",,,[[[{{{"}', True),
        (r'{"a": ",\",\\", "b": ",,,\\\"[["}', True),
        ('{"a": ",,,,,', False),  # not JSON in any case
    ):
        try:
            parse_object(text.encode(), max_depth=8, max_values=4)
        except BadRequestError as error:
            assert not passes
            assert error.code in ("too_many", "invalid_json")
        else:
            assert passes, text


@pytest.mark.parametrize(
    ("items", "times"),
    [
        ([{"a": 1}] * 20_000, 15),
        ([{f"k{at}": [1.5]} for at in range(20_000)], 15),
        ([[[]]] * 20_000, 15),
        ([300 + at for at in range(100_000)], 4),
        (["\U0001f600" + "a" * 500_000], 4),
        (["Prose, of no great weight. " * 20_000], 1),
    ],
)
def test_an_object_is_as_large_as_what_python_takes_for_it(items: list[Any], times: int) -> None:
    raw = json.dumps({"x": items}, ensure_ascii=False, separators=(",", ":")).encode()
    parse_object(raw, max_depth=8, max_values=1_000_000)
    tracemalloc.start()
    try:
        value = parse_object(raw, max_depth=8, max_values=1_000_000)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 < memory_of(value) / taken < 1.5
    assert times < 1.1 * memory_of(value) / len(raw) < 3 * times, "control: not what its JSON takes"
