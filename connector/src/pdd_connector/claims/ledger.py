"""An owner's book of the claims it has granted: who holds which blocks until when, and how much may be held at all.

Pure: times are handed in (seconds of one monotonic clock). Every way a claim can end returns it exactly once, so that whoever keeps the
references can drop each exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from pdd_connector.claims.messages import RefuseReason


@dataclass(frozen=True)
class LedgerLimits:
    """Bounds of what an owner lends."""

    hold_seconds: float
    max_claims_per_reader: int
    max_blocks: int


@dataclass
class Claim:
    """References on `blocks`, lent to `reader` until `deadline`."""

    claim_id: str
    reader: str
    blocks: tuple[int, ...]
    deadline: float
    ranks_done: set[int] = field(default_factory=set)


def longest_run(
    hashes: Sequence[bytes], lookup: Callable[[bytes], int | None], in_flight: Container[int], limit: int
) -> list[int]:
    """Ids of the blocks held for the longest prefix of `hashes`, at most `limit`.

    Stops at the first hash that is not held, and at the first block that a step in flight still writes: vLLM files a block under its hash
    when it is scheduled, before it is computed. A chain has no hash twice: whoever asks for one again wants to fill the owner's book.
    """
    run: dict[int, None] = {}
    for block_hash in hashes[:limit]:
        block = lookup(block_hash)
        if block is None or block in in_flight or block in run:
            break
        run[block] = None
    return list(run)


class ClaimLedger:
    """Claims granted and not yet ended. `ranks` is how many workers must report a claim read before it has ended."""

    def __init__(self, limits: LedgerLimits, ranks: int) -> None:
        self._limits = limits
        self._ranks = ranks
        self._claims: dict[str, Claim] = {}
        self._held_blocks = 0

    @property
    def hold_seconds(self) -> float:
        """How long a claim is held at most."""
        return self._limits.hold_seconds

    @property
    def held_claims(self) -> int:
        """Claims not yet ended."""
        return len(self._claims)

    @property
    def held_blocks(self) -> int:
        """References lent; a block lent twice counts twice."""
        return self._held_blocks

    def room_for(self, reader: str) -> int | RefuseReason:
        """How many blocks `reader` may be lent now, or why none."""
        if sum(claim.reader == reader for claim in self._claims.values()) >= self._limits.max_claims_per_reader:
            return RefuseReason.READER_FULL
        room = self._limits.max_blocks - self._held_blocks
        return room if room > 0 else RefuseReason.OWNER_FULL

    def open(self, claim_id: str, reader: str, blocks: Sequence[int], now: float) -> Claim:
        """Enter a claim; the caller holds one reference per block for it."""
        if claim_id in self._claims:
            raise ValueError(f"claim {claim_id} is open already")
        claim = Claim(claim_id, reader, tuple(blocks), now + self._limits.hold_seconds)
        self._claims[claim_id] = claim
        self._held_blocks += len(claim.blocks)
        return claim

    def read_by_rank(self, claim_id: str, rank: int) -> Claim | None:
        """A worker saw all notices it waits for. The claim, ended, once every worker has; None before, and for unknown ids."""
        claim = self._claims.get(claim_id)
        if claim is None:
            return None
        claim.ranks_done.add(rank)
        return self._end(claim_id) if len(claim.ranks_done) >= self._ranks else None

    def release(self, claim_id: str, reader: str) -> Claim | None:
        """The reader lets go. None where there is no such claim, or it is another reader's."""
        claim = self._claims.get(claim_id)
        return self._end(claim_id) if claim is not None and claim.reader == reader else None

    def expire(self, now: float) -> list[Claim]:
        """End what has been held for too long."""
        return self._end_all(lambda claim: now >= claim.deadline)

    def close(self) -> list[Claim]:
        """End everything: the owner stops."""
        return self._end_all(lambda _claim: True)

    def _end_all(self, which: Callable[[Claim], bool]) -> list[Claim]:
        ended = [claim for claim in self._claims.values() if which(claim)]
        for claim in ended:
            self._end(claim.claim_id)
        return ended

    def _end(self, claim_id: str) -> Claim:
        claim = self._claims.pop(claim_id)
        self._held_blocks -= len(claim.blocks)
        return claim
