"""What a request says about claims, and what the answer says back: `kv_transfer_params.claim` (docs/protocol.md, section 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from pdd_connector.claims.messages import PROTOCOL_VERSION, Host, Port, RefuseReason

MAX_OWNERS = 8


class Outcome(StrEnum):
    """How a request's question ended."""

    READ = "Read"
    LOCAL = "Local"
    EMPTY = "Empty"
    LATE = "Late"
    REFUSED = "Refused"
    UNCONNECTED = "Unconnected"
    FAILED = "Failed"
    INTRODUCED = "Introduced"


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine's claim channel."""

    host: Host
    port: Port


class ClaimParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom a request may ask, likeliest first."""

    version: int
    owners: Annotated[list[Address], msgspec.Meta(max_length=MAX_OWNERS)] = []
    introduce: bool = False


@dataclass(frozen=True)
class Refusal:
    """A question that cannot be asked."""

    reason: RefuseReason
    message: str


def parse_claim_params(params: Mapping[str, Any] | None) -> ClaimParams | Refusal | None:
    """The request's `claim` object; None where there is none, a Refusal where it is not what docs/protocol.md says."""
    raw = params.get("claim") if params else None
    if raw is None:
        return None
    if isinstance(raw, Mapping) and raw.get("version") != PROTOCOL_VERSION:
        return Refusal(RefuseReason.VERSION, f"`claim.version` must be {PROTOCOL_VERSION}")
    try:
        return msgspec.convert(raw, ClaimParams)
    except msgspec.ValidationError as error:
        return Refusal(RefuseReason.MALFORMED, f"`claim`: {error}")


@dataclass(frozen=True)
class Receipt:
    """What became of one request. Tokens count the prompt, `*_ms` are milliseconds."""

    outcome: Outcome
    reason: str | None
    owner: Address | None
    prompt_tokens: int
    local_tokens: int
    read_tokens: int = 0
    read_bytes: int = 0
    answer_ms: float | None = None
    read_ms: float | None = None
    connected: tuple[Address, ...] = ()

    def as_params(self) -> dict[str, Any]:
        """The receipt as it stands in an answer's `kv_transfer_params`."""
        return {"claim": {"version": PROTOCOL_VERSION, **msgspec.to_builtins(self)}}
