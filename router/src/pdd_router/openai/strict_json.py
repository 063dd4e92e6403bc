"""JSON as a client may send it: RFC 8259, nothing more. Pure.

Python's parser is lenient where engines are not, or where two parsers would disagree about what was said: duplicate
keys, NaN, numbers that overflow, lone surrogates, nesting without end. All of these are refused here.
"""

from __future__ import annotations

import json
import math
import re
from sys import getsizeof
from typing import NoReturn

from pdd_router.errors import BadRequestError

JsonObject = dict[str, object]

# One that never ends goes to the end: looked for from each of its quotes again, it would cost the square of its length.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def parse_object(raw: bytes, *, max_depth: int, max_values: int) -> JsonObject:
    """The body's object. Raises BadRequestError with OpenAI's wording of what is wrong."""
    if _may_hold_more(raw, max_values) and _may_hold_more(_STRING.sub(b"", raw), max_values):
        raise BadRequestError(f"The request body must not hold more than {max_values} values", code="too_many")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequestError("The request body must be UTF-8", code="invalid_utf8") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_bounded_int,
        )
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError:
        raise BadRequestError("The request body must be valid JSON", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequestError("The request body must be a JSON object", code="invalid_json")
    if _is_deeper(value, max_depth):
        raise _too_deep(max_depth)
    if ("\\ud" in text or "\\uD" in text) and _has_lone_surrogate(value):
        raise BadRequestError("Strings must not contain lone surrogates", code="invalid_utf8")
    return value


def memory_of(value: JsonObject) -> int:
    """Bytes that it takes in memory: of small objects 30 times those of their JSON, of a text with an emoji in it four times,
    of other texts about the same."""
    total = getsizeof(value)
    level: list[JsonObject | list[object]] = [value]
    while level:
        inside: list[object] = []
        for item in level:
            inside += item  # a list's items or an object's keys
            if isinstance(item, dict):
                inside += item.values()
        total += sum(map(getsizeof, inside))
        level = [child for child in inside if isinstance(child, dict | list)]
    return total


def _may_hold_more(raw: bytes, max_values: int) -> bool:
    """Each value follows a comma, is the first inside a bracket or is one: so marks are as many as values, or up to twice.
    In strings they mean nothing, but taking the strings out costs more than counting: only where that may matter."""
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{") > max_values


def _too_deep(max_depth: int) -> BadRequestError:
    return BadRequestError(f"The request body must not be nested deeper than {max_depth} levels", code="too_deep")


def _unique(pairs: list[tuple[str, object]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadRequestError("The request body must not repeat a key", param=key[:64], code="duplicate_key")
            seen.add(key)
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequestError(f"Numbers must be finite, not {name}", code="invalid_number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadRequestError("Numbers must be finite", code="invalid_number")
    return value


def _bounded_int(text: str) -> int:
    value = int(text) if len(text) <= 20 else None
    if value is None or not -(2**63) <= value < 2**64:
        raise BadRequestError("Integers must fit 64 bits", code="invalid_number")
    return value


def _is_deeper(value: object, max_depth: int) -> bool:
    level: list[object] = [value]
    for _ in range(max_depth):
        children: list[object] = []
        for item in level:
            if isinstance(item, dict):
                children.extend(item.values())
            elif isinstance(item, list):
                children.extend(item)
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
