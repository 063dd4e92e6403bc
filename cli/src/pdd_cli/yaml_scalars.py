"""Unquoted scalars of YAML as kubectl reads them, which is neither YAML 1.1 nor 1.2: `y` is true, `12:30` and dates are text, `1e3` is a number. Pure.

Source: what `kubectl annotate --local` of 1.37 answers; cli/tests/cluster/test_scalars.py asks it.
"""

from __future__ import annotations

import math
import re
from typing import Final

_TRUE: Final = ("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE")
_FALSE: Final = ("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE")
_WORDS: Final[dict[str, bool | float | None]] = {
    **dict.fromkeys(_TRUE, True),
    **dict.fromkeys(_FALSE, False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **{f"{sign}.{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_NUMBERS_BEGIN: Final = tuple("+-.0123456789")
_BASED: Final = re.compile(r"([-+]?)0(?:[xX](?P<x>[0-9a-fA-F]+)|[bB](?P<b>[01]+)|[oO]?(?P<o>[0-7]+))")
_BASES: Final = {"x": 16, "b": 2, "o": 8}
_DECIMAL: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LONGEST: Final = 20
"""Characters of a 64-bit number: what has more is not read as one, however long."""


def plain(text: str) -> str | int | float | bool | None:
    """What ``text`` without quotes means. Whole numbers are int where 64 bits hold them; those that JSON has not are float, too."""
    if text in _WORDS:
        return _WORDS[text]
    if not text.startswith(_NUMBERS_BEGIN):
        return text
    digits = text.replace("_", "")
    found: int | float | None = _whole(digits)
    if found is None and _FLOAT.fullmatch(digits) and math.isfinite(number := float(digits)):
        found = number
    if found is None:
        return text
    return int(found) if found == int(found) and -(2**63) <= found < 2**63 else float(found)


def _whole(digits: str) -> int | None:
    """None where it is not one, or not one of 64 bits, with a sign or without."""
    if based := _BASED.fullmatch(digits):
        kind = next(name for name in _BASES if based[name])
        number = int(based[1] + based[kind], _BASES[kind])
    elif _DECIMAL.fullmatch(digits) and len(digits) <= _LONGEST and not digits.lstrip("+-").startswith("0"):
        number = int(digits)
    else:
        return None
    return number if -(2**63) <= number < 2**64 else None
