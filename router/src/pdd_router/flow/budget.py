"""How much may be retried: a share of all requests, so that a sick fleet is not beaten with retries. Pure."""

from __future__ import annotations


class RetryBudget:
    """Every request pays in ``percent`` hundredths of a retry, up to ``burst``; every retry takes one out."""

    def __init__(self, *, percent: int, burst: int) -> None:
        self._percent = percent
        self._burst_cents = burst * 100
        self._cents = self._burst_cents

    def deposit(self) -> None:
        self._cents = min(max(self._burst_cents, 100), self._cents + self._percent)

    def withdraw(self) -> bool:
        """True where one more retry is in order."""
        if self._cents < 100:
            return False
        self._cents -= 100
        return True
