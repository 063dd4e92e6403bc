"""Kubernetes quantities (``500m``, ``1.5``, ``12Gi``) as exact numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

_UNITS: Final[Mapping[str, Decimal]] = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}
"""Those that the schema lets a user write and that the API server stores for them."""


def parse_quantity(value: Any) -> Decimal | None:
    """Of a text or whole number; None for what is no quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    number = text.rstrip("KMGTikm")
    unit = _UNITS.get(text[len(number) :])
    try:
        return None if unit is None else Decimal(number) * unit
    except InvalidOperation:
        return None


def quantity_of(text: str) -> Decimal:
    """Of a text that the schema has let through. Raises ValueError for any other."""
    quantity = parse_quantity(text)
    if quantity is None:
        raise ValueError(f"{text!r} is no quantity")
    return quantity
