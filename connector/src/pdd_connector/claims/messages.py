"""Messages of the claim channel (docs/protocol.md, section 2) and their msgpack coding.

Everything that arrives here is untrusted: types, lengths and ranges are checked while decoding, and nothing is ever unpickled.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
# A hash is 32 bytes (sha256) and 2 bytes of framing: this many fit well into one message.
MAX_HASHES = 16_384

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Host = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9._:%-]+$")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=4_096)]
BlockId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
BlockHash = Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]
AskId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class RefuseReason(StrEnum):
    """Why an owner granted nothing although it may hold the blocks."""

    VERSION = "Version"
    GROUP = "Group"
    READER_FULL = "ReaderFull"
    OWNER_FULL = "OwnerFull"
    PLACE = "Place"
    STOPPING = "Stopping"
    ASLEEP = "Asleep"
    UNAUTHENTICATED = "Unauthenticated"
    MALFORMED = "Malformed"


class _Message(msgspec.Struct, tag_field="type", frozen=True, kw_only=True):
    version: int = PROTOCOL_VERSION


class Hello(_Message, tag="hello", frozen=True, kw_only=True):
    """A reader introduces itself. `host` and `port` are its NIXL side channel."""

    id: AskId
    reader: Name
    host: Host
    port: Port
    group: Name


class Welcome(_Message, tag="welcome", frozen=True, kw_only=True):
    """How the owner is reached over NIXL."""

    id: AskId
    engine_id: Name
    role: Name
    host: Host
    port: Port
    tp_size: Count


class Ask(_Message, tag="ask", frozen=True, kw_only=True):
    """Chained hashes of consecutive full blocks, from the first that the reader lacks."""

    id: AskId
    reader: Name
    host: Host
    port: Port
    group: Name
    hashes: Annotated[list[BlockHash], msgspec.Meta(min_length=1, max_length=MAX_HASHES)]


class Grant(_Message, tag="grant", frozen=True, kw_only=True):
    """Block ids of the longest run held, one per asked hash from the first on. No blocks: `claim_id` is empty, nothing is held."""

    id: AskId
    engine_id: Name
    blocks: Annotated[list[BlockId], msgspec.Meta(max_length=MAX_HASHES)]
    claim_id: Annotated[str, msgspec.Meta(max_length=128)]
    hold_seconds: Annotated[float, msgspec.Meta(ge=0, le=3_600)]
    registration: Annotated[int, msgspec.Meta(ge=0)] = 0  # of the owner's memory with NIXL; grows when it slept


class Refuse(_Message, tag="refuse", frozen=True, kw_only=True):
    """The owner will not answer, and why."""

    id: Annotated[bytes, msgspec.Meta(max_length=16)]
    reason: RefuseReason
    message: Annotated[str, msgspec.Meta(max_length=512)]


class Release(_Message, tag="release", frozen=True, kw_only=True):
    """The reader lets a claim go without reading it."""

    reader: Name
    claim_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


ToOwner = Hello | Ask | Release
ToReader = Welcome | Grant | Refuse


class _Head(msgspec.Struct):
    """What a message of any version begins with."""

    id: AskId = b""
    version: int = PROTOCOL_VERSION


def _head_of(data: bytes) -> _Head:
    try:
        return msgspec.msgpack.decode(data, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Head()


_encoder = msgspec.msgpack.Encoder()
_to_owner: msgspec.msgpack.Decoder[ToOwner] = msgspec.msgpack.Decoder(ToOwner)
_to_reader: msgspec.msgpack.Decoder[ToReader] = msgspec.msgpack.Decoder(ToReader)


class MalformedMessageError(ValueError):
    """Bytes on the claim channel that are no message of this protocol. `ask_id`: of the message, as far as it can be told; `reason`: Malformed, or
    Version for a message of another one."""

    def __init__(self, text: str, ask_id: bytes = b"", reason: RefuseReason = RefuseReason.MALFORMED) -> None:
        super().__init__(text)
        self.ask_id = ask_id
        self.reason = reason


def encode(message: ToOwner | ToReader) -> bytes:
    """One message as msgpack."""
    return _encoder.encode(message)


def decode_for_owner(data: bytes) -> ToOwner:
    """A reader's message; MalformedMessageError for anything else."""
    try:
        return _to_owner.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        head = _head_of(data)
        if head.version != PROTOCOL_VERSION:
            text = f"`version` must be {PROTOCOL_VERSION}"
            raise MalformedMessageError(text, head.id, RefuseReason.VERSION) from error
        raise MalformedMessageError(str(error), head.id) from error


def decode_for_reader(data: bytes) -> ToReader:
    """An owner's message; MalformedMessageError for anything else."""
    try:
        return _to_reader.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessageError(str(error)) from error
