"""Reasons are part of the API: each is one word, has a meaning, is documented with what to do, and is produced by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pdd_operator.observe.reasons import ConditionType, EventReason, Reason

ROOT = Path(__file__).parents[4]
DOCUMENT = (ROOT / "docs/conditions.md").read_text(encoding="utf-8")
ALL = (*ConditionType, *Reason, *EventReason)


@pytest.mark.parametrize("word", ALL, ids=lambda word: f"{type(word).__name__}.{word}")
def test_is_a_word_with_a_meaning(word: ConditionType | Reason | EventReason) -> None:
    assert re.fullmatch(r"([A-Z][a-z]+)+|EFA", word.value)
    assert word.name.replace("_", "") == word.value.upper()
    assert re.fullmatch(r"[A-Z].{10,118}\.", word.meaning)


def section(title: str) -> str:
    return re.split(r"^## ", DOCUMENT.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("title", "words"), [("Conditions", ConditionType), ("Reasons", Reason), ("Events", EventReason)]
)
def test_the_document_has_each_with_its_meaning_and_no_other(
    title: str, words: type[ConditionType] | type[Reason] | type[EventReason]
) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section(title), flags=re.MULTILINE))
    assert rows == {word.value: word.meaning for word in words}


def test_the_document_says_of_each_reason_what_to_do() -> None:
    for title in ("Conditions", "Reasons", "Events"):
        for row in re.findall(r"^\| `.*$", section(title), flags=re.MULTILINE):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
            assert len(cells) == 3, row
            assert all(cells), row


_OF_RECONCILE = (
    EventReason.CLAIM_KEY_REPLACED,
    EventReason.TENANT_SALT_REPLACED,
    EventReason.SECRET_FOUND,
    EventReason.LEFT_TO_ANOTHER,
)


def test_what_reconcile_tells_by_itself_is_produced_by_its_tests() -> None:
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / "operator/tests/integration").glob("test_*.py"))
    texts = "".join(tests)
    assert all(word.value in texts for word in _OF_RECONCILE)
