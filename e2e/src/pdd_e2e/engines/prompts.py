"""Prompts of token ids, different at each call and the same in each run of the same tests."""

import itertools
import random

_seeds = itertools.count()
_ORDINARY = range(1_000, 40_000)  # words and their pieces, no control tokens


def token_ids(count: int) -> list[int]:
    """So many ids."""
    source = random.Random(next(_seeds))  # noqa: S311  -- nothing secret
    return [source.choice(_ORDINARY) for _ in range(count)]
