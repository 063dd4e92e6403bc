"""The owner's side of claims: what is granted, for how long, and when it is let go.

Grants at once, only full blocks whose computing or receiving has finished, within its group and its limits. Knows no
HTTP and does not wait: the fabric brings questions, the clock is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from pdd_e2e.fake_engine.blocks import Block, BlockPool
from pdd_e2e.fake_engine.claims import Address, Grant, Reason, Refusal
from pdd_e2e.fake_engine.fabric import Ask
from pdd_e2e.fake_engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class _Hold:
    reader: str
    reader_address: Address
    blocks: tuple[Block, ...]
    until: float


class ClaimOwner:
    """Grants of one engine incarnation."""

    def __init__(
        self, pool: BlockPool, settings: EngineSettings, address: Address, engine_id: str, clock: Callable[[], float]
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._address = address
        self._engine_id = engine_id
        self._clock = clock
        self._holds: dict[str, _Hold] = {}
        self._ids = count(1)

    @property
    def held_blocks(self) -> int:
        """Blocks that grants hold now, a block of two grants twice."""
        return sum(len(hold.blocks) for hold in self._holds.values())

    def answer(self, ask: Ask) -> Grant | Refusal:
        """Decide on a question now."""
        self.expire()
        if ask.group != self._settings.group:
            return Refusal(self._address, Reason.GROUP)
        self.replaced(ask.reader, ask.reader_address)
        if sum(hold.reader == ask.reader for hold in self._holds.values()) >= self._settings.max_claims_per_reader:
            return Refusal(self._address, Reason.READER_FULL)
        room = int(self._settings.max_held_share * self._pool.size) - self.held_blocks
        if room <= 0:
            return Refusal(self._address, Reason.OWNER_FULL)
        return self._grant(ask, self._pool.longest_run(ask.hashes, computed_only=True)[:room])

    def _grant(self, ask: Ask, run: list[Block]) -> Grant:
        claim_id = f"claim-{self._engine_id}-{next(self._ids)}"
        if run:
            self._pool.touch(run)
            until = self._clock() + self._settings.hold_seconds
            self._holds[claim_id] = _Hold(ask.reader, ask.reader_address, tuple(run), until)
        return Grant(
            self._address, self._engine_id, claim_id, tuple(block.id for block in run), self._settings.hold_seconds
        )

    def release(self, claim_id: str) -> None:
        """Completion notice, or the reader's `release`; ids that are not held are ignored."""
        hold = self._holds.pop(claim_id, None)
        if hold is not None:
            self._pool.release(hold.blocks)

    def replaced(self, reader: str, reader_address: Address) -> None:
        """A reader says hello or asks: what its predecessor at the same address held is let go."""
        for claim_id, hold in list(self._holds.items()):
            if hold.reader_address == reader_address and hold.reader != reader:
                self.release(claim_id)

    def expire(self) -> None:
        """Let go what has been held for longer than `hold_seconds`."""
        now = self._clock()
        for claim_id, hold in list(self._holds.items()):
            if hold.until <= now:
                self.release(claim_id)
