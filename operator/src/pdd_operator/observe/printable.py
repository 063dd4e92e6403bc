"""Text of strangers, so that a terminal shows it and does not obey it. Pure."""

from __future__ import annotations

from typing import Final

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
_IN_JSON: Final = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def printable(text: str) -> str:
    """Control characters (C0 but tab and newline, DEL, C1) as ``\\x1b``: in them terminals take orders."""
    return text.translate(_CONTROLS)


def printable_json(text: str) -> str:
    """Still the same JSON. Of C0 the encoder has taken care; DEL and C1 it leaves as they are."""
    return text.translate(_IN_JSON)
