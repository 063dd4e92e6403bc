"""The owner's side: answers readers' messages, beside the engine's running step.

Runs on the channel's thread. Everything that touches the block pool happens under the engine's lock, which the engine thread holds only while it
schedules or takes in a step's output; so an answer waits for neither a step nor a batch.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pdd_connector.claims.in_flight import InFlightSteps
from pdd_connector.claims.ledger import Claim, ClaimLedger, longest_run
from pdd_connector.claims.messages import (
    PROTOCOL_VERSION,
    Ask,
    Grant,
    Hello,
    Refuse,
    RefuseReason,
    Release,
    ToOwner,
    ToReader,
    Welcome,
)
from pdd_connector.settings import promised_seconds

_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
CLAIM_PREFIX = "pdd-claim-"  # tells a claim's completion notice from those of the base connector


class Block(Protocol):
    """vLLM's KVCacheBlock, as far as it is used here."""

    block_id: int


class BlockPool(Protocol):
    """vLLM's BlockPool, as far as it is used here. Not thread-safe."""

    blocks: Sequence[Any]

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: list[int]) -> list[Any] | None: ...
    def touch(self, blocks: Sequence[Any]) -> None: ...
    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None: ...


@dataclass(frozen=True)
class Identity:
    """What an engine says of itself on the channel. `host` and `port`: its NIXL side channel."""

    engine_id: str
    role: str
    host: str
    port: int
    tp_size: int
    group: str  # hash of what does not change while it runs
    weights: Callable[[], str] = lambda: ""  # version of the weights it has just now

    @property
    def whole_group(self) -> str:
        """What a peer must have in common with this engine now."""
        return f"{self.group}/{self.weights()}"


class OwnerRecorder(Protocol):
    """Where an owner's numbers go."""

    def claim_granted(self, blocks: int, seconds: float) -> None: ...
    def claim_refused_by_us(self, reason: str) -> None: ...
    def claims_released(self, by: str, count: int = 1) -> None: ...
    def held(self, claims: int, blocks: int) -> None: ...


def means_its_own_machine(host: str) -> bool:
    """Whether a side channel's host leads every machine to itself, so that nobody else reaches this one by it."""
    name = host.lower().rstrip(".")
    if name in _LOCAL_NAMES or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    plain = getattr(address, "ipv4_mapped", None) or address
    return bool(plain.is_loopback or plain.is_unspecified)


class ClaimOwner:
    """Grants, holds and lets go. `unavailable` says why nothing may be granted at all just now (stopping, asleep), or None."""

    def __init__(
        self,
        identity: Identity,
        ledger: ClaimLedger,
        in_flight: InFlightSteps,
        pool: BlockPool,
        lock: AbstractContextManager[Any],
        unavailable: Callable[[], RefuseReason | None],
        wake: Callable[[], None],
        registration: Callable[[], int],
        recorder: OwnerRecorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._ledger = ledger
        self._in_flight = in_flight
        self._pool = pool
        self._lock = lock
        self._unavailable = unavailable
        self._wake = wake
        self._registration = registration
        self._recorder = recorder
        self._clock = clock

    def handle(self, message: ToOwner) -> ToReader | None:
        """The answer to a reader's message; None where none is due."""
        if isinstance(message, Release):
            self._end("release", lambda: self._ledger.release(message.claim_id, message.reader))
            return None
        refusal = self._refusal(message)
        if refusal is not None:
            self._recorder.claim_refused_by_us(refusal.reason.value)
            return refusal
        if isinstance(message, Hello):
            me = self._identity
            return Welcome(
                id=message.id, engine_id=me.engine_id, role=me.role, host=me.host, port=me.port, tp_size=me.tp_size
            )
        return self._grant(message)

    def tick(self) -> None:
        """Let go of what was held for too long."""
        self._end("timer", lambda: self._ledger.expire(self._clock()))

    def read_by_rank(self, claim_id: str, rank: int) -> None:
        """A worker saw the reader's completion notices."""
        self._end("reader", lambda: self._ledger.read_by_rank(claim_id, rank))

    def close(self) -> None:
        """Let go of everything: this engine stops."""
        self._end("shutdown", self._ledger.close)

    @property
    def holding(self) -> bool:
        """Whether claims are held, so that the engine must keep stepping for its workers' notices."""
        return self._ledger.held_claims > 0

    def _refusal(self, message: Hello | Ask) -> Refuse | None:
        reason, text = None, ""
        if message.version != PROTOCOL_VERSION:
            reason, text = RefuseReason.VERSION, f"`version` must be {PROTOCOL_VERSION}"
        elif means_its_own_machine(message.host) and not means_its_own_machine(self._identity.host):
            reason, text = (
                RefuseReason.PLACE,
                "`VLLM_NIXL_SIDE_CHANNEL_HOST` of the reader must be an address that others reach it by",
            )
        elif message.group != self._identity.whole_group:
            reason, text = (
                RefuseReason.GROUP,
                "this engine is of another revision group: version, model, revision, dtype or block size differ",
            )
        else:
            reason = self._unavailable()
            text = f"this engine grants nothing now: {reason}"
        return Refuse(id=message.id, reason=reason, message=text) if reason is not None else None

    def _grant(self, ask: Ask) -> Grant | Refuse:
        start = self._clock()
        with self._lock:
            # Asked again under the lock: an engine that is about to sleep must not find its cache lent.
            room = self._unavailable() or self._ledger.room_for(ask.reader)
            if isinstance(room, RefuseReason):
                self._recorder.claim_refused_by_us(room.value)
                return Refuse(id=ask.id, reason=room, message=f"nothing more may be lent now: {room}")
            run = longest_run(ask.hashes, self._lookup, self._in_flight, room)
            claim_id = ""
            if run:
                claim_id = CLAIM_PREFIX + secrets.token_hex(16)
                self._pool.touch([self._pool.blocks[block] for block in run])
                self._ledger.open(claim_id, ask.reader, run, start)
            self._recorder.held(self._ledger.held_claims, self._ledger.held_blocks)
        hold = promised_seconds(self._ledger.hold_seconds) if run else 0.0
        if run:
            self._wake()
        self._recorder.claim_granted(len(run), self._clock() - start)
        return Grant(
            id=ask.id,
            engine_id=self._identity.engine_id,
            blocks=run,
            claim_id=claim_id,
            hold_seconds=hold,
            registration=self._registration(),
        )

    def _lookup(self, block_hash: bytes) -> int | None:
        found: list[Block] | None = self._pool.get_cached_block(block_hash, [0])
        return found[0].block_id if found else None

    def _end(self, by: str, end: Callable[[], Claim | list[Claim] | None]) -> None:
        with self._lock:
            ended = end()
            claims = ended if isinstance(ended, list) else [ended] if ended is not None else []
            for claim in claims:
                # Reversed, so that of a chain the tail is evicted before what it hangs on.
                self._pool.free_blocks([self._pool.blocks[block] for block in reversed(claim.blocks)])
            if claims:
                self._recorder.claims_released(by, len(claims))
                self._recorder.held(self._ledger.held_claims, self._ledger.held_blocks)
