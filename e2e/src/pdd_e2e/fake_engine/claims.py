"""Claims as data: what the router orders, what an owner answers, what the receipt says. Pure.

Written from docs/protocol.md alone; nothing here may be shared with the real connector, or the contract suite would
compare the connector with itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

VERSION = 1
_CLAIM_KEYS = frozenset({"version", "owners", "introduce"})
_MAX_HOST = 256
MAX_OWNERS = 8


class Outcome(StrEnum):
    """How a claim ended."""

    READ = "Read"
    LOCAL = "Local"
    EMPTY = "Empty"
    LATE = "Late"
    REFUSED = "Refused"
    UNCONNECTED = "Unconnected"
    FAILED = "Failed"
    INTRODUCED = "Introduced"


class Reason(StrEnum):
    """Why a claim was refused or failed."""

    VERSION = "Version"
    GROUP = "Group"
    READER_FULL = "ReaderFull"
    OWNER_FULL = "OwnerFull"
    STOPPING = "Stopping"
    ASLEEP = "Asleep"
    UNAUTHENTICATED = "Unauthenticated"
    MALFORMED = "Malformed"
    TIMEOUT = "Timeout"
    TRANSFER = "Transfer"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where an engine's claim channel (or NIXL side channel) listens."""

    host: str
    port: int

    def as_json(self) -> dict[str, Any]:
        """Shape `{"host": str, "port": int}`."""
        return {"host": self.host, "port": self.port}


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """A valid `claim` object: whom to ask, likeliest first, or whom to be introduced to."""

    owners: tuple[Address, ...]
    introduce: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """An owner's blocks for the longest run of the hashes asked for (perhaps none), held until released or timed out."""

    owner: Address
    engine_id: str
    claim_id: str
    block_ids: tuple[int, ...]
    hold_seconds: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """An owner's no."""

    owner: Address
    reason: Reason


@dataclass(frozen=True, slots=True)
class Receipt:
    """What came of a claim: the object under `kv_transfer_params.claim` in the answer.

    `owner` is named only where something was read; `answer_ms` and `read_ms` are None where nothing was answered or read.
    """

    outcome: Outcome
    prompt_tokens: int
    reason: Reason | None = None
    owner: Address | None = None
    local_tokens: int = 0
    read_tokens: int = 0
    read_bytes: int = 0
    answer_ms: float | None = None
    read_ms: float | None = None
    connected: tuple[Address, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Shape: docs/protocol.md, "Receipt"."""
        return {
            "version": VERSION,
            "outcome": str(self.outcome),
            "reason": None if self.reason is None else str(self.reason),
            "owner": None if self.owner is None else self.owner.as_json(),
            "prompt_tokens": self.prompt_tokens,
            "local_tokens": self.local_tokens,
            "read_tokens": self.read_tokens,
            "read_bytes": self.read_bytes,
            "answer_ms": _rounded(self.answer_ms),
            "read_ms": _rounded(self.read_ms),
            "connected": [address.as_json() for address in self.connected],
        }


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 3)


def parse_claim(params: Mapping[str, Any] | None) -> ClaimOrder | Reason | None:
    """The claim in a request's `kv_transfer_params`: an order, the reason why it is refused, or None if there is none."""
    claim = params.get("claim") if params else None
    if claim is None:
        return None
    if not isinstance(claim, Mapping):
        return Reason.MALFORMED
    if claim.get("version") != VERSION:
        return Reason.VERSION
    introduce, owners = claim.get("introduce", False), claim.get("owners", [])
    if (
        not set(claim) <= _CLAIM_KEYS
        or not isinstance(introduce, bool)
        or not isinstance(owners, list)
        or len(owners) > MAX_OWNERS
    ):
        return Reason.MALFORMED
    addresses = [_parse_address(owner) for owner in owners]
    if any(address is None for address in addresses):
        return Reason.MALFORMED
    return ClaimOrder(tuple(address for address in addresses if address is not None), introduce)


def _parse_address(value: object) -> Address | None:
    if not isinstance(value, Mapping) or set(value) != {"host", "port"}:
        return None
    host, port = value["host"], value["port"]
    if not isinstance(host, str) or not 1 <= len(host) <= _MAX_HOST or type(port) is not int or not 1 <= port <= 65535:
        return None
    return Address(host, port)


Answer = Grant | Refusal | None
"""An owner's answer; None: the question could not be delivered, or another engine runs there now."""


def best_grant(answers: Sequence[Answer]) -> Grant | None:
    """The longest grant that has blocks; of equals the first, which is the likeliest."""
    useful = [answer for answer in answers if isinstance(answer, Grant) and answer.block_ids]
    return max(useful, key=lambda grant: len(grant.block_ids), default=None)


def nothing_granted(answers: Sequence[Answer]) -> tuple[Outcome, Reason | None]:
    """Outcome where no owner has a block: an empty grant says more than a refusal, a refusal more than no connection."""
    if not answers:
        return Outcome.LATE, None
    if any(isinstance(answer, Grant) for answer in answers):
        return Outcome.EMPTY, None
    refusal = next((answer for answer in answers if isinstance(answer, Refusal)), None)
    return (Outcome.UNCONNECTED, None) if refusal is None else (Outcome.REFUSED, refusal.reason)


def missing_blocks(prompt_tokens: int, local_blocks: int, block_size: int) -> int:
    """Full blocks that a prompt lacks and may use: the last token is always computed."""
    return max(0, (prompt_tokens - 1) // block_size - local_blocks)
