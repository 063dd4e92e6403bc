"""What a rule says, and what the API server says of every list and map of a kind. Lowest of this package."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

_QUALIFIED_NAME: Final = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_MAX_PREFIX: Final = 253


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong: the path of the field from the object's root, as the API server writes it, and what it must be."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def check_unique(field: str, keys: Sequence[Any]) -> Iterator[Problem]:
    """What the API server says of a list that is a set or a map."""
    for index, key in enumerate(keys):
        if key in keys[:index]:
            yield Problem(f"{field}[{index}]", f'must not repeat "{key}": every item must be another')


def check_image(field: str, image: str | None) -> Iterator[Problem]:
    """A reference as container runtimes take it, as far as a person mistypes it."""
    if image is not None and re.search(r"\s", image, re.ASCII):
        yield Problem(
            field,
            "`image` must be one reference without spaces, for example `registry.example/vllm:0.32.0`, or with a digest "
            "`registry.example/vllm@sha256:…`",
        )


def check_keys(field: str, keys: Iterable[str]) -> Iterator[Problem]:
    """Keys of labels and annotations."""
    if not all(_is_qualified_name(key) for key in keys):
        yield Problem(
            field,
            f"`{field.rpartition('.')[2]}` must have qualified names as keys: `NAME` or `DOMAIN/NAME`, with at most 63 characters in "
            "`NAME`",
        )


def _is_qualified_name(key: str) -> bool:
    return bool(_QUALIFIED_NAME.fullmatch(key)) and len(key.rpartition("/")[0]) <= _MAX_PREFIX
