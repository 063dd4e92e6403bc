"""What each engine holds in its prefix cache, by the rules of prefix caching alone: the oracle for what a claim must read. Pure.

Whole blocks of what an engine computed for a salt, as long as its cache was not emptied. Right only where nothing is evicted.
"""

from collections.abc import Sequence

BLOCK = 32


def whole_blocks(tokens: int) -> int:
    """Tokens in whole blocks."""
    return tokens // BLOCK * BLOCK


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    length = min(len(one), len(other))
    return next((place for place in range(length) if one[place] != other[place]), length)


class Holdings:
    """Sequences by engine and salt."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], list[tuple[int, ...]]] = {}

    def copy(self) -> "Holdings":
        """As they are now, whatever is computed later."""
        copied = Holdings()
        copied._held = {key: list(held) for key, held in self._held.items()}
        return copied

    def computed(self, engine: str, salt: str, prompt: Sequence[int], generated: Sequence[int]) -> None:
        """An engine served this. The last generated token was sampled and not computed."""
        self._held.setdefault((engine, salt), []).append((*prompt, *generated[:-1]))

    def emptied(self, engine: str) -> None:
        """Its cache was emptied, or it is a new process."""
        for key in [key for key in self._held if key[0] == engine]:
            del self._held[key]

    def tokens(self, engine: str, salt: str, prompt: Sequence[int]) -> int:
        """How much of a prompt the engine can reuse: whole blocks, and one token is left to compute."""
        longest = max((common_prefix(held, prompt) for held in self._held.get((engine, salt), ())), default=0)
        return whole_blocks(min(longest, len(prompt) - 1))
