"""A reader's side of one question: whom it asked for what, which answer wins, when to give up, and what of a grant is of use.

Pure: answers and times are handed in. Blocks are counted from the start of the prompt; a question covers the full blocks from `first_block` on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd_connector.claims.messages import Grant, Refuse
from pdd_connector.claims.params import Address, Outcome


@dataclass(frozen=True)
class Unreachable:
    """No connection to the owner's claim channel."""


Answer = Grant | Refuse | Unreachable


def askable_blocks(prompt_tokens: int, hashes: int, block_size: int) -> int:
    """Full blocks of a prompt that may be read: at least one token is left to compute, because the next one is sampled from it."""
    return min((prompt_tokens - 1) // block_size, hashes)


def worth_asking(missing_blocks: int, block_size: int, threshold_tokens: int) -> bool:
    """Whether what is missing is at least a block and at least the threshold; less is computed sooner than read."""
    return missing_blocks > 0 and missing_blocks * block_size >= threshold_tokens


@dataclass(frozen=True)
class Wait:
    """No verdict yet."""


@dataclass(frozen=True)
class Take:
    """Read this grant."""

    owner: Address
    grant: Grant


@dataclass(frozen=True)
class GiveUp:
    """Compute."""

    outcome: Outcome
    reason: str | None = None


@dataclass
class Inquiry:
    """One question to several owners."""

    owners: tuple[Address, ...]
    first_block: int
    blocks: int
    asked_at: float
    deadline: float
    answers: dict[Address, Answer] = field(default_factory=dict)

    def awaits(self, owner: Address, at: float) -> bool:
        """Whether an answer that `owner` gave at that time counts: its first, and in time."""
        return owner in self.owners and owner not in self.answers and at <= self.deadline

    def verdict(self, now: float) -> Wait | Take | GiveUp:
        """What to do now. The longest grant wins, of equals the owner named first; a complete one ends the waiting."""
        best = max(
            ((owner, self.answers[owner]) for owner in self.owners if owner in self.answers),
            key=lambda entry: _granted(entry[1]),
            default=None,
        )
        waiting = len(self.answers) < len(self.owners) and now < self.deadline
        if waiting and (best is None or _granted(best[1]) < self.blocks):
            return Wait()
        if best is None:
            return GiveUp(Outcome.LATE)
        owner, answer = best
        if isinstance(answer, Grant) and answer.blocks:
            return Take(owner, answer)
        return self._why_nothing()

    def losers(self, winner: Address | None) -> list[tuple[Address, Grant]]:
        """Grants that hold blocks and are not read: to be let go."""
        return [
            (owner, answer)
            for owner, answer in self.answers.items()
            if isinstance(answer, Grant) and answer.claim_id and owner != winner
        ]

    def _why_nothing(self) -> GiveUp:
        answers = list(self.answers.values())
        refusals = [answer for answer in answers if isinstance(answer, Refuse)]
        if any(isinstance(answer, Grant) for answer in answers):
            return GiveUp(Outcome.EMPTY)
        if refusals:
            return GiveUp(Outcome.REFUSED, refusals[0].reason.value)
        return GiveUp(Outcome.UNCONNECTED)


def _granted(answer: Answer) -> int:
    return len(answer.blocks) if isinstance(answer, Grant) else -1


@dataclass(frozen=True)
class Portion:
    """Of a grant, the blocks to read: `skip` of them are local by now."""

    skip: int
    blocks: int


def usable_portion(
    inquiry: Inquiry, grant: Grant, local_blocks: int, threshold_tokens: int, block_size: int
) -> Portion | None:
    """What of a grant continues what is local now; None where it does not, or is not worth a read.

    The local prefix may have grown since the question (part of the grant is not needed) or shrunk by eviction (there is a gap, nothing fits).
    """
    skip = local_blocks - inquiry.first_block
    left = len(grant.blocks[: inquiry.blocks]) - skip
    if skip < 0 or not worth_asking(left, block_size, threshold_tokens):
        return None
    return Portion(skip, left)
