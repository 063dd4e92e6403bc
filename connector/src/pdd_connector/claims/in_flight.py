"""Blocks that scheduled steps are still writing.

vLLM puts a block's hash into the prefix cache when the step that will compute it is scheduled. On one engine the order of the stream makes that
safe; a reader on another engine would read an empty block (HTTP 200, wrong tokens). So until a step's output is back, its blocks are not lent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class InFlightSteps:
    """Steps in the order they were scheduled; outputs come back in the same order. Membership: is a block written by any of them."""

    def __init__(self) -> None:
        self._steps: deque[frozenset[int]] = deque()
        self._written: Counter[int] = Counter()

    def scheduled(self, blocks: Iterable[int]) -> None:
        """A step that writes `blocks` was handed to the workers."""
        step = frozenset(blocks)
        self._steps.append(step)
        self._written.update(step)

    def finished(self) -> None:
        """The oldest step's output is back: what it wrote is written."""
        for block in self._steps.popleft():
            if self._written[block] == 1:
                del self._written[block]
            else:
                self._written[block] -= 1

    def __contains__(self, block: object) -> bool:
        return block in self._written

    def __len__(self) -> int:
        return len(self._steps)


def written_blocks(request_blocks: Sequence[T], first_token: int, block_size: int) -> Sequence[T]:
    """The blocks of a request that a step starting at `first_token` may write: that token's block and all behind it.

    More than the scheduled tokens need: speculative slots lie behind them, and too many only delays a grant by a step.
    """
    return request_blocks[first_token // block_size :]
