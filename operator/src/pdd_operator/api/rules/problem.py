"""What a rule says. Lowest of this package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong: the path of the field from the object's root, as the API server writes it, and what it must be."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"
