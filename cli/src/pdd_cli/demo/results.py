"""What was measured, as data: turns, legs, and the whole run."""

from dataclasses import dataclass
from enum import StrEnum

from pdd_cli.demo.receipt import Receipt


class Cache(StrEnum):
    """What prefill's own prefix cache held when a turn came."""

    EMPTIED = "emptied"  # before every turn: a P that lost the conversation, or never had it
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn as the client saw it, and the router's receipt for its prefill leg.

    `ttft_seconds` is from sending the request to the first piece of text; `cached_tokens` is what usage says that nobody computed.
    `read_seconds` and `counted_bytes` are what the prefill engines' own NIXL counters rose by.
    """

    number: int
    is_tool_result: bool
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_seconds: float
    seconds: float
    text: str
    receipt: Receipt
    read_seconds: float = 0.0
    counted_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class LegResult:
    """One conversation from the first turn to the last."""

    reuse: bool
    cache: Cache
    turns: tuple[TurnResult, ...]

    @property
    def title(self) -> str:
        return f"reuse {'on' if self.reuse else 'off'}, P's cache {self.cache}"

    @property
    def longest(self) -> TurnResult:
        return max(self.turns, key=lambda turn: turn.prompt_tokens)

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that the prefill engines computed, all turns."""
        return sum(turn.receipt.computed_tokens for turn in self.turns)

    @property
    def read_bytes(self) -> int:
        return sum(turn.receipt.read_bytes for turn in self.turns)

    @property
    def counted_bytes(self) -> float:
        """What NIXL counted into the prefill engines."""
        return sum(turn.counted_bytes for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same conversation with reuse off and on, under the same cache regime."""

    off: LegResult
    on: LegResult

    @property
    def cache(self) -> Cache:
        return self.off.cache


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was promised, and whether it held."""

    name: str
    held: bool
    detail: str
