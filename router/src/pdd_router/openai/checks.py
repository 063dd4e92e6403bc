"""Type and range checks of one field, each naming the field it refuses. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pdd_router.errors import BadRequestError


def check_string(
    body: Mapping[str, object], name: str, *, max_chars: int, required: bool = False, at: str | None = None
) -> str | None:
    """``at``: the path to say instead of ``name``."""
    path = at or name
    value = body.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, str) or (required and not value):
        raise BadRequestError(f"`{path}` must be a {'non-empty ' if required else ''}string", param=path)
    if len(value) > max_chars:
        raise BadRequestError(f"`{path}` must not be longer than {max_chars} characters", param=path, code="too_long")
    return value


def check_int(body: Mapping[str, object], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequestError(f"`{name}` must be an integer", param=name)
    if not low <= value <= high:
        raise BadRequestError(f"`{name}` must be from {low} to {high}", param=name, code="out_of_range")
    return value


def check_number(body: Mapping[str, object], name: str) -> None:
    value = body.get(name)
    if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
        raise BadRequestError(f"`{name}` must be a number", param=name)


def check_bool(body: Mapping[str, object], name: str) -> None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequestError(f"`{name}` must be true or false", param=name)


def check_object(body: Mapping[str, object], name: str) -> dict[str, object] | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadRequestError(f"`{name}` must be an object", param=name)
    return value


def check_list(body: Mapping[str, object], name: str, *, max_items: int) -> list[object] | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadRequestError(f"`{name}` must be a list", param=name)
    if len(value) > max_items:
        raise BadRequestError(f"`{name}` must not have more than {max_items} entries", param=name, code="too_many")
    return value


def check_strings(body: Mapping[str, object], name: str, *, max_items: int, max_chars: int) -> None:
    """A string or a list of strings."""
    value = body.get(name)
    if isinstance(value, str):
        check_string(body, name, max_chars=max_chars)
        return
    for at, item in enumerate(check_list(body, name, max_items=max_items) or ()):
        check_string({name: item}, name, max_chars=max_chars, required=True, at=f"{name}[{at}]")
