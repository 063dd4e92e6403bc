"""Hundreds of PDDeployments on a real API server: all valid ones accepted as Python has them, all spoiled ones refused, naming the field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crd import examples, manifest
from crd_faults import Fault, full, key_faults, schema_faults
from crd_server import CrdServer
from crd_specs import names, specs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdd_operator.api.parse import InvalidSpecError, parse_deployment

_SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _python_refuses(spec: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    try:
        parse_deployment(manifest("example", spec))
    except InvalidSpecError as error:
        return tuple((problem.field, problem.message) for problem in error.problems)
    return ()


def _names(causes: Iterable[tuple[str, str]], field: str) -> bool:
    """By the field of a cause or an item of it, or by the text where the API server could not decode the object."""
    return any(
        named == field or named.startswith(f"{field}[") or (not named and f'"{field}"' in text)
        for named, text in causes
    )


def _field_of_unknown(fault: Fault) -> str:
    return f"{fault.field}.unheardOf" if fault.title.endswith("unknown field") else fault.field


def test_what_faults_are_made_of_is_valid(server: CrdServer) -> None:
    assert server.judge(manifest("example", full())).accepted
    assert not _python_refuses(full())


def test_every_fault_is_refused_and_named(server: CrdServer) -> None:
    """Hundreds, each by the API server (nine of ten are promised), and by Python too."""
    broken = [Fault(example.rule, example.field, example.bad.spec) for example in examples() if not example.bad.before]
    faults = [*schema_faults(), *key_faults(), *broken[1:]]
    at_admission = 0
    for fault in faults:
        field = _field_of_unknown(fault)
        causes = server.judge(manifest("example", fault.spec)).causes
        by_python = _python_refuses(fault.spec)
        assert by_python, f"{fault.title} is accepted by Python"
        assert all(" must " in f" {message}" for _, message in by_python), by_python
        at_admission += bool(causes)
        assert _names(causes or by_python, field), f"{fault.title}: {causes or by_python} do not name {field}"
    assert len(faults) >= 300
    assert at_admission == len(faults)


@settings(_SETTINGS, max_examples=300)
@given(name=names(), spec=specs())
def test_valid_ones_are_accepted_with_the_defaults_that_python_has(
    server: CrdServer, name: str, spec: dict[str, Any]
) -> None:
    verdict = server.judge(manifest(name, spec))
    assert verdict.stored is not None, verdict.causes
    deployment = parse_deployment(manifest(name, spec))
    assert verdict.stored["spec"] == deployment.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert parse_deployment(verdict.stored).spec == deployment.spec


_PARTS = [
    (part, value)
    for example in examples()
    for part, value in example.bad.spec.items()
    if value != example.good.spec.get(part)
]


@settings(_SETTINGS, max_examples=100)
@given(spec=specs(), spoiled=st.sampled_from(_PARTS))
def test_both_say_the_same_of_parts_put_together_at_random(
    server: CrdServer, spec: dict[str, Any], spoiled: tuple[str, Any]
) -> None:
    """A valid specification with a part of a bad example: refused by the same rules, or accepted by both."""
    mixed = {**spec, spoiled[0]: spoiled[1]}
    assert set(server.judge(manifest("example", mixed)).causes) == set(_python_refuses(mixed))
