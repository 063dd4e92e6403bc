"""From an object, as the API server or a file has it, to a PDDeployment. The only way in; pure.

Judges what the API server would (schema and rules), in the same way: null is the same as absent, nothing is converted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from pdd_operator.api.labels import API_VERSION, KIND
from pdd_operator.api.rules import Problem, check_spec
from pdd_operator.api.v1alpha1 import PDDeployment

_TYPES: Final = {
    "missing": "must be set",
    "extra_forbidden": "must not be set: there is no such field",
    "enum": "must be one of {expected}",
    "literal_error": "must be one of {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "must be an integer of 64 bits",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "tuple_type": "must be a list",
}


class InvalidSpecError(ValueError):
    """The object is refused. ``problems`` has every reason; the text one line for each, with the field and what it must be."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems: Final = problems


def parse_deployment(manifest: Mapping[str, Any]) -> PDDeployment:
    """The typed object with all defaults. Raises InvalidSpecError."""
    problems = tuple(
        Problem(key, f'`{key}` must be "{wanted}", not "{manifest.get(key)!s:.80}"')
        for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND))
        if manifest.get(key) != wanted
    )
    if problems:
        raise InvalidSpecError(problems)
    # By way of JSON, because there pydantic's strict mode takes lists and words of enumerations, and still converts nothing.
    text = json.dumps(_without_nulls(manifest), default=str)
    try:
        deployment = PDDeployment.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidSpecError(_problems_of(error)) from error
    problems = check_spec(deployment.metadata.name, deployment.spec)
    if problems:
        raise InvalidSpecError(problems)
    return deployment


def _without_nulls(value: Any) -> Any:
    """The API server drops fields that are null before it fills in defaults."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def _problems_of(error: ValidationError) -> tuple[Problem, ...]:
    return tuple(
        Problem(
            _path(item["loc"]), f"`{_last_name(item['loc'])}` {_must(item['type'], item.get('ctx', {}), item['msg'])}"
        )
        for item in error.errors(include_url=False)
    )


def _must(kind: str, context: Mapping[str, Any], message: str) -> str:
    return _TYPES[kind].format_map(context) if kind in _TYPES else f"must be valid: {message}"


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _last_name(location: tuple[int | str, ...]) -> str:
    return next((part for part in reversed(location) if isinstance(part, str)), "object")
