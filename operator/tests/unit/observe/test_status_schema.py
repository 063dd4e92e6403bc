"""Every status that may be computed fits the CRD: what does not fit is dropped or refused by the API server."""

from __future__ import annotations

from typing import Any

import crd
import pytest
from condition_case import Case
from condition_cases import CASES
from jsonschema import Draft202012Validator, ValidationError

from pdd_operator.observe.reasons import ConditionType


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of status, without room for what it does not name: the API server prunes that."""
    for _, part in crd.walk(schema):
        if "properties" in part:
            part["additionalProperties"] = False
    return schema


STATUS = strict(crd.schema_of(crd.crd())["properties"]["status"])
VALIDATOR = Draft202012Validator(STATUS, format_checker=Draft202012Validator.FORMAT_CHECKER)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.name}")
def test_fits(case: Case) -> None:
    VALIDATOR.validate(case.compute())


def test_control_what_does_not_fit_is_noticed() -> None:
    status = CASES[0].compute()
    for wrong in ({"phase": "Running"}, {"revision": 3}, {"groups": [{"prefillReady": 1}]}):
        with pytest.raises(ValidationError):
            VALIDATOR.validate(status | wrong)


def test_the_crd_names_every_condition() -> None:
    told = STATUS["properties"]["conditions"]["description"]
    assert all(kind.value in told for kind in ConditionType)
    assert "KVTransferReady" not in told
    assert len(ConditionType) <= STATUS["properties"]["conditions"]["maxItems"]


def test_columns_read_what_is_written() -> None:
    status = CASES[0].compute()
    for column in crd.crd()["spec"]["versions"][0]["additionalPrinterColumns"]:
        parts = column["jsonPath"].split(".")[1:]
        if parts[0] == "status" and "conditions" not in column["jsonPath"]:
            value: Any = status
            for part in parts[1:]:
                value = value[part]
