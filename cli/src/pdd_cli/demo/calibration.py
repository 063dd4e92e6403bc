"""Chooses how long the conversation gets, from a few measured prefills of this machine. Pure.

The claim of the demo does not depend on the sizes; they only decide whether a person sees it: too short and everything is quick, too
long and one waits.
"""

from dataclasses import dataclass

MIN_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Probe:
    """One prefill of a prompt that no cache held."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Seconds for n tokens: linear * n + quadratic * n²."""

    linear: float
    quadratic: float

    def seconds(self, tokens: int) -> float:
        return self.linear * tokens + self.quadratic * tokens * tokens


def fit(probes: list[Probe]) -> PrefillCost:
    """Least squares with neither part below zero (noise would make one so). Raises ValueError without two different probes."""
    if len({probe.tokens for probe in probes}) < 2:
        raise ValueError("two probes of different length are needed")
    n2 = sum(p.tokens**2 for p in probes)
    n3 = sum(p.tokens**3 for p in probes)
    n4 = sum(p.tokens**4 for p in probes)
    t1 = sum(p.tokens * p.seconds for p in probes)
    t2 = sum(p.tokens**2 * p.seconds for p in probes)
    determinant = n2 * n4 - n3 * n3
    linear = (t1 * n4 - t2 * n3) / determinant
    quadratic = (n2 * t2 - n3 * t1) / determinant
    if quadratic < 0:
        return PrefillCost(t1 / n2, 0.0)
    if linear < 0:
        return PrefillCost(0.0, t2 / n4)
    return PrefillCost(linear, quadratic)


def longest_prompt(cost: PrefillCost, target_seconds: float, limit_tokens: int) -> int:
    """The prompt length whose prefill takes `target_seconds`, within MIN_TOKENS and `limit_tokens`."""
    low, high = MIN_TOKENS, max(MIN_TOKENS, limit_tokens)
    while low < high:
        middle = (low + high + 1) // 2
        if cost.seconds(middle) <= target_seconds:
            low = middle
        else:
            high = middle - 1
    return low
