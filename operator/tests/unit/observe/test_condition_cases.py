"""Every reason of a condition, from what a cluster shows."""

from __future__ import annotations

import pytest
from condition_case import Case
from condition_cases import CASES

from pdd_operator.observe.conditions import MAX_MESSAGE_CHARACTERS
from pdd_operator.observe.reasons import ConditionType, Reason


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.name}")
def test_says(case: Case) -> None:
    condition = case.condition()
    assert (condition["status"], condition["reason"]) == (case.status, case.reason), condition["message"]
    for part in case.contains:
        assert part in condition["message"]


def test_every_reason_has_a_case() -> None:
    assert set(Reason) - {case.reason for case in CASES} == set()
    assert set(ConditionType) - {case.kind for case in CASES} == set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.name}")
def test_all_conditions_are_there_whole_and_the_status_stays_as_it_is(case: Case) -> None:
    status = case.compute()
    assert [condition["type"] for condition in status["conditions"]] == list(ConditionType)
    for condition in status["conditions"]:
        assert condition["observedGeneration"] == 3
        assert condition["lastTransitionTime"]
        assert 0 < len(condition["message"]) <= MAX_MESSAGE_CHARACTERS
    # Looking once more, with what was written before, changes nothing.
    again = Case(**{name: getattr(case, name) for name in case.__dataclass_fields__} | {"before": status})
    assert again.compute() == status
