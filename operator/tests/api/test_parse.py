"""The way in without an API server: what is refused, with which words; what is filled in."""

from __future__ import annotations

from typing import Any

import pytest
from crd import base, manifest, merged

from pdd_operator.api.parse import InvalidSpecError, parse_deployment
from pdd_operator.api.rules import Problem


def problems(changes: dict[str, Any], **top: Any) -> tuple[Problem, ...]:
    with pytest.raises(InvalidSpecError) as caught:
        parse_deployment(manifest("example", merged(base("gpu"), changes)) | top)
    return caught.value.problems


def test_defaults() -> None:
    deployment = parse_deployment(manifest("example", base("gpu")))
    assert deployment.spec.engine.block_size == 64
    assert deployment.spec.router.replicas == 2
    assert deployment.metadata.namespace == "default"


def test_null_is_the_same_as_absent() -> None:
    spec = merged(base("gpu"), {"engine": {}})
    spec["engine"] = {"blockSize": None, "image": None}
    spec["router"] = None
    assert parse_deployment(manifest("example", spec)) == parse_deployment(manifest("example", base("gpu")))


def test_every_line_names_the_field_and_says_must() -> None:
    with pytest.raises(InvalidSpecError) as caught:
        spec = {"engine": {"blockSize": 17, "dtype": "int8"}, "prefill": {"replicas": "2"}, "unknown": 1}
        parse_deployment(manifest("example", merged(base("gpu"), spec)))
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "spec.engine.dtype",
        "spec.engine.blockSize",
        "spec.prefill.replicas",
        "spec.unknown",
    ]
    assert all(" must " in line for line in lines)


@pytest.mark.parametrize("value", ["2", 2.5, True, [2], {"x": 2}])
def test_nothing_is_converted(value: object) -> None:
    assert problems({"prefill": {"replicas": value}})[0].field.startswith("spec.prefill.replicas")


def test_names_of_python_are_not_names_of_fields() -> None:
    assert problems({"kv_transfer": {}})[0].field == "spec.kv_transfer"


def test_other_kinds() -> None:
    assert problems({}, kind="Deployment")[0] == Problem("kind", '`kind` must be "PDDeployment", not "Deployment"')
    assert problems({}, apiVersion="pdserve.io/v1")[0].field == "apiVersion"


@pytest.mark.parametrize("field", ["labels", "annotations", "nodeSelector"])
@pytest.mark.parametrize("key", ["", "a b", "x/", "/x", "a/b/c", "-a", "a" * 64, "A/b", "a" * 254 + "/b"])
def test_keys_of_maps(field: str, key: str) -> None:
    (problem,) = problems({"prefill": {"podTemplate": {field: {key: "x"}}}})
    assert problem.field == f"spec.prefill.podTemplate.{field}"
    assert f"`{field}` must have qualified names as keys" in problem.message


@pytest.mark.parametrize("key", ["a", "a/b", "topology.kubernetes.io/zone", "a" * 63, "A_b.C"])
def test_keys_that_are_qualified_names(key: str) -> None:
    parse_deployment(manifest("example", merged(base("gpu"), {"prefill": {"podTemplate": {"labels": {key: "x"}}}})))


def test_an_accelerator_that_is_not_known() -> None:
    (problem,) = problems({"prefill": {"accelerator": {"instanceType": "p9.48xlarge"}}})
    assert problem.field == "spec.prefill.accelerator.instanceType"
    assert "must be one of p4d.24xlarge," in problem.message
    assert "trn1" not in problem.message
