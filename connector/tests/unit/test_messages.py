"""The claim channel's coding: what is sent comes back, anything else is refused, nothing is ever executed."""

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd_connector.claims.messages import (
    MAX_HASHES,
    MAX_MESSAGE_BYTES,
    Ask,
    Grant,
    Hello,
    MalformedMessageError,
    Refuse,
    RefuseReason,
    Release,
    ToOwner,
    ToReader,
    Welcome,
    decode_for_owner,
    decode_for_reader,
    encode,
)

ID = b"i" * 16
ASK = Ask(id=ID, reader="r", host="h", port=1, group="g", hashes=[b"h" * 32])


@pytest.mark.parametrize(
    "message", [ASK, Hello(id=ID, reader="r", host="h", port=1, group="g"), Release(reader="r", claim_id="c")]
)
def test_owners_messages_come_back(message: ToOwner) -> None:
    assert decode_for_owner(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Welcome(id=ID, engine_id="e", role="Decode", host="h", port=1, tp_size=8),
        Grant(id=ID, engine_id="e", blocks=[1, 2], claim_id="c", hold_seconds=15),
        Refuse(id=b"", reason=RefuseReason.GROUP, message="m"),
    ],
)
def test_readers_messages_come_back(message: ToReader) -> None:
    assert decode_for_reader(encode(message)) == message


def test_the_longest_question_fits_into_a_message() -> None:
    longest = msgspec.structs.replace(ASK, hashes=[b"h" * 32] * MAX_HASHES)
    assert len(encode(longest)) < MAX_MESSAGE_BYTES
    assert decode_for_owner(encode(longest)) == longest


def tampered(**changes: object) -> bytes:
    return msgspec.msgpack.encode({**msgspec.to_builtins(ASK, builtin_types=(bytes,)), **changes})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81" * 4000,
        pickle.dumps({"type": "ask"}),
        tampered(hashes=[]),
        tampered(hashes=[b"short"]),
        tampered(hashes=[b"h" * 32] * (MAX_HASHES + 1)),
        tampered(hashes=["text" * 8]),
        tampered(id=b"short"),
        tampered(port=0),
        tampered(port=65536),
        tampered(port="1"),
        tampered(reader=""),
        tampered(reader="r" * 257),
        tampered(type="grant"),
        tampered(type=None),
    ],
)
def test_anything_else_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_for_owner(data)


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_decode_or_be_refused(data: bytes) -> None:
    for decode in (decode_for_owner, decode_for_reader):
        try:
            decode(data)
        except MalformedMessageError:
            continue
