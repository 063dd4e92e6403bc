"""Characters → tokens, learned from the engines' usage numbers. Pure but for its own state.

Only steers thresholds and load; nothing correct depends on it.
"""

from __future__ import annotations

INITIAL_CHARS_PER_TOKEN = 4.0
_WEIGHT = 0.1
_LOWEST, _HIGHEST = 0.5, 16.0


class TokenEstimator:
    """Exponentially weighted characters per token, one per model. A template's own tokens are part of the ratio."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def ratio(self, model: str) -> float:
        return self._ratios.get(model, INITIAL_CHARS_PER_TOKEN)

    def tokens(self, model: str, chars: int) -> int:
        return round(chars / self.ratio(model))

    def learn(self, model: str, chars: int, tokens: int) -> None:
        """One prompt's size in both units; nonsense is ignored, outliers are bounded."""
        if chars <= 0 or tokens <= 0:
            return
        seen = min(_HIGHEST, max(_LOWEST, chars / tokens))
        self._ratios[model] = (1 - _WEIGHT) * self.ratio(model) + _WEIGHT * seen
