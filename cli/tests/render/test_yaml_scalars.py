"""What is written without quotes means what it means to kubectl; test_scalars.py in cluster/ asks kubectl for the same."""

from __future__ import annotations

import math

import pytest
from scalars import AS_TEXT, AS_VALUES

from pdd_cli.yaml_scalars import plain


@pytest.mark.parametrize("text", AS_TEXT)
def test_text(text: str) -> None:
    assert plain(text) == text


@pytest.mark.parametrize(("text", "value"), AS_VALUES.items())
def test_values(text: str, value: object) -> None:
    found = plain(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", [".inf", "+.Inf", "-.INF", ".NaN"])
def test_what_json_has_not_is_seen(text: str) -> None:
    found = plain(text)
    assert isinstance(found, float)
    assert not math.isfinite(found)
