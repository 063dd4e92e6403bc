"""The CRD itself: bounded and described throughout, equal to the types in Python and to the facts of accelerators, and good to work with."""

from __future__ import annotations

import re
from typing import Any

import yaml
from crd import REPOSITORY, base, crd, manifest, merged, rules_of, schema_of, walk
from crd_server import CrdServer

from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_operator.api.accelerators import CPU, INSTANCE_TYPES, Platform
from pdd_operator.api.parse import parse_deployment
from pdd_operator.api.v1alpha1 import PDDeployment

SPEC = schema_of(crd())["properties"]["spec"]
SCHEMAS = dict(walk(schema_of(crd())))


def _bounds_missing(schema: dict[str, Any]) -> list[str]:
    wanted: dict[str, list[str]] = {
        "string": [] if "enum" in schema or schema.get("format") == "date-time" else ["maxLength"],
        "integer": ["minimum"],
        "array": ["maxItems", "x-kubernetes-list-type", "items"],
        "object": ["maxProperties"] if "additionalProperties" in schema else [],
    }
    missing = [key for key in wanted.get(schema["type"], []) if key not in schema]
    if schema.get("x-kubernetes-list-type") == "map" and "x-kubernetes-list-map-keys" not in schema:
        missing.append("x-kubernetes-list-map-keys")
    return missing


def test_every_field_is_bounded() -> None:
    for path, schema in SCHEMAS.items():
        if path[:1] in (("spec",), ("status",)):
            assert not _bounds_missing(schema), path
            if path[0] == "spec" and schema["type"] == "integer":
                assert "maximum" in schema, path


def test_every_field_is_described() -> None:
    for path, schema in SCHEMAS.items():
        if path[:1] in (("spec",), ("status",)) and path[-1] not in ("[]", "{}"):
            assert len(schema.get("description", "")) > 5, path


def test_nothing_is_passed_on_unknown() -> None:
    """A field that nobody typed is refused when the object is written, not when a StatefulSet is."""
    assert not [path for path, schema in SCHEMAS.items() if "x-kubernetes-preserve-unknown-fields" in schema]


def test_roles_and_pods_are_the_same_lines() -> None:
    prefill, decode, router = (SPEC["properties"][name]["properties"] for name in ("prefill", "decode", "router"))
    assert prefill == decode
    assert (
        SPEC["properties"]["prefill"]["x-kubernetes-validations"]
        == SPEC["properties"]["decode"]["x-kubernetes-validations"]
    )
    assert prefill["podTemplate"] == router["podTemplate"]


# ---- the same in Python ---------------------------------------------------------------------------------------------

_BOUNDS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "multipleOf": "multipleOf",
    "minLength": "minLength",
    "maxLength": "maxLength",
    "pattern": "pattern",
    "minItems": "minItems",
    "maxItems": "maxItems",
    "maxProperties": "maxProperties",
}
_ONLY_IN_THE_CRD = {("accelerator", "instanceType")}
"""A closed list there; in Python a rule says it, from the table of accelerators."""


def _resolved(model: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in model:
        (model,) = [part for part in model["anyOf"] if part.get("type") != "null"]
    if "$ref" in model:
        return {**definitions[model["$ref"].rpartition("/")[2]], **{k: v for k, v in model.items() if k != "$ref"}}
    return model


def _compare(path: tuple[str, ...], schema: dict[str, Any], model: dict[str, Any], definitions: dict[str, Any]) -> None:
    model = _resolved(model, definitions)
    assert schema["type"] == model["type"], path
    for ours, theirs in _BOUNDS.items():
        assert schema.get(ours) == model.get(theirs), (path, ours)
    if path[-2:] not in _ONLY_IN_THE_CRD:
        assert schema.get("enum") == model.get("enum", [model["const"]] if "const" in model else None), path
    properties = schema.get("properties", {})
    assert set(properties) == set(model.get("properties", {})), path
    assert set(schema.get("required", ())) == set(model.get("required", ())), path
    for name, part in properties.items():
        theirs = model["properties"][name]
        wanted = theirs.get("default")
        if isinstance(wanted, dict):  # a model's default has the defaults of its fields in it
            wanted = {"huggingFace": {}} if name == "source" else {}
        assert part.get("default") == wanted, (*path, name)
        _compare((*path, name), part, theirs, definitions)
    if "items" in schema:
        _compare((*path, "[]"), schema["items"], model["items"], definitions)
    if "additionalProperties" in schema:
        _compare((*path, "{}"), schema["additionalProperties"], model["additionalProperties"], definitions)


def test_types_in_python_say_the_same() -> None:
    whole = PDDeployment.model_json_schema(by_alias=True)
    _compare(("spec",), SPEC, whole["properties"]["spec"], whole["$defs"])


# ---- the facts of accelerators --------------------------------------------------------------------------------------


def _table(field: str) -> dict[str, int]:
    """The numbers by instance type in the rule about this field."""
    (text,) = {
        rule["rule"]
        for _, rule in rules_of(crd())
        if rule.get("fieldPath") == field and "'p5.48xlarge':" in rule["rule"]
    }
    return {name: int(number) for name, number in re.findall(r"'([\w.-]+)': (\d+)", text)}


def test_tables_in_rules_are_those_of_the_accelerators() -> None:
    assert _table(".accelerator.count") == {name: row.accelerators for name, row in INSTANCE_TYPES.items()}
    assert _table(".accelerator.efaDevices") == {name: row.efa_devices for name, row in INSTANCE_TYPES.items()}
    assert SPEC["properties"]["prefill"]["properties"]["accelerator"]["properties"]["instanceType"]["enum"] == list(
        INSTANCE_TYPES
    )
    (without,) = [rule["rule"] for _, rule in rules_of(crd()) if rule.get("fieldPath") == ".transport.backend"]
    assert set(re.findall(r"'(\w+\.\w+)'", without)) == {
        name for name, row in INSTANCE_TYPES.items() if row.efa_devices == 0
    }


def test_beginnings_of_names_tell_platforms_apart() -> None:
    """The rules go by `trn` and `inf`, by `trn2` and `trn1`."""
    for name, row in INSTANCE_TYPES.items():
        assert (row.platform is Platform.NEURON) is name.startswith(("trn", "inf"))
        assert (row.refused is not None) is name.startswith(("trn1", "inf2"))
        assert row.cores_per_accelerator == (4 if name.startswith("trn2") else row.cores_per_accelerator)
    assert CPU.cores_per_accelerator == 8


def test_shares_of_efa_devices() -> None:
    assert [INSTANCE_TYPES["p5en.48xlarge"].efa_share(count) for count in (1, 4, 8)] == [2, 8, 16]
    assert INSTANCE_TYPES["p4d.24xlarge"].efa_share(1) == 1
    assert INSTANCE_TYPES["inf2.xlarge"].efa_share(1) == 0


# ---- at work --------------------------------------------------------------------------------------------------------


def test_kubectl_explains(server: CrdServer, control_plane: LocalControlPlane) -> None:
    text = control_plane.kubectl("explain", "pdd.spec.kvTransfer")
    assert "How engines get KV cache that another engine holds" in text
    assert "enum: Claim, Retain" in text


def test_columns_and_scale(server: CrdServer, control_plane: LocalControlPlane) -> None:
    namespace = ("--namespace", server.namespace)
    control_plane.kubectl(
        "create", *namespace, "--filename", "-", stdin=yaml.safe_dump(manifest("columns", base("gpu")))
    )
    roles = {"replicas": 3, "readyReplicas": 2, "selector": "pdserve.io/deployment=columns"}
    condition = {"type": "Ready", "status": "False", "reason": "InsufficientReplicas", "message": "2 of 3"}
    condition |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"prefill": roles, "decode": roles | {"readyReplicas": 1}, "router": roles, "conditions": [condition]}
    server.api.patch(f"{server.path}/columns/status", {"status": status})
    header, row = control_plane.kubectl("get", "pdd", "columns", *namespace, "--output", "wide").splitlines()
    assert header.split()[:6] == ["NAME", "MODEL", "PREFILL", "DECODE", "ROUTER", "READY"]
    assert row.split()[:7] == ["columns", "Qwen/Qwen3-32B", "2", "1", "2", "False", "InsufficientReplicas"]

    control_plane.kubectl("scale", "pdd/columns", *namespace, "--replicas", "5")
    assert server.api.get(f"{server.path}/columns")["spec"]["decode"]["replicas"] == 5
    assert server.api.get(f"{server.path}/columns/scale")["status"] == {"replicas": 3, "selector": roles["selector"]}
    server.api.delete(f"{server.path}/columns")


def _largest_placement() -> dict[str, Any]:
    """Every list of affinity, tolerations and spreading as long as it may be, of short texts: whole objects have 1.5 MB at most."""
    keys = [f"k{index}" for index in range(8)]
    labels = {f"k{index}": "x" for index in range(16)}
    of_nodes = {"matchExpressions": [{"key": key, "operator": "In", "values": ["x"] * 32} for key in keys]}
    selector = {"matchLabels": labels, **of_nodes}
    term = {"topologyKey": "zone", "labelSelector": selector, "namespaceSelector": selector, "matchLabelKeys": keys}
    of_pods = {
        "requiredDuringSchedulingIgnoredDuringExecution": [term] * 8,
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}] * 8,
    }
    nodes = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [of_nodes] * 8},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": of_nodes}] * 8,
    }
    spread = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector, "matchLabelKeys": keys}
    return {
        "affinity": {"nodeAffinity": nodes, "podAffinity": of_pods, "podAntiAffinity": of_pods},
        "tolerations": [{"key": "x" * 63, "value": "x" * 63}] * 32,
        "topologySpreadConstraints": [spread | {"topologyKey": f"x{index:062}"} for index in range(16)],
    }


def test_the_largest_object_is_within_the_cost_of_rules(server: CrdServer) -> None:
    """The API server refuses an object whose rules cost too much, however valid it is."""
    texts = {f"{index:063}": "x" * 63 for index in range(32)}
    files = {"items": [{"path": "x" * 1024, "fieldRef": {"fieldPath": "metadata.labels"}} for _ in range(8)]}
    volumes = [{"name": f"{index:063}", "projected": {"sources": [{"downwardAPI": files}] * 2}} for index in range(32)]
    mounts = [{"name": item["name"], "mountPath": "/" + item["name"] + "x" * 960} for item in volumes]
    template = {
        "volumes": volumes,
        "volumeMounts": mounts,
        "labels": texts,
        "annotations": texts,
        "nodeSelector": texts,
        **_largest_placement(),
    }
    spec = merged(
        base("gpu"),
        {
            "model": {"name": "m" * 126 + "/" + "m" * 126},
            "engine": {
                "extraArgs": [f"--hf-overrides={'x' * 2032}"] * 64,
                "env": [{"name": f"X{index:0127}", "value": "x" * 4096} for index in range(64)],
            },
            **{role: {"podTemplate": template} for role in ("prefill", "decode", "router")},
        },
    )
    verdict = server.judge(manifest("a" * 37, spec))
    assert verdict.accepted, verdict.causes


def test_samples_are_accepted(server: CrdServer) -> None:
    """Those that documents show and those whose objects are recorded."""
    folders = (REPOSITORY / "docs" / "samples", REPOSITORY / "operator" / "tests" / "snapshots" / "samples")
    files = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    found = [part for file in files for part in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    samples = [part for part in found if part["kind"] == "PDDeployment"]
    assert len(samples) > 20
    for sample in samples:
        metadata = {key: value for key, value in sample["metadata"].items() if key in ("name", "annotations")}
        verdict = server.judge(sample | {"metadata": metadata})
        assert verdict.accepted, (sample["metadata"]["name"], verdict.causes)
        parse_deployment(sample)
