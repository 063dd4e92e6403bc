"""What holds for every object that the CRD accepts."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import render_cases as cases
from hypothesis import HealthCheck, given, settings
from kubernetes_schemas import problems_of

from pdd_connector.kv_transfer_config.pair import check_pair
from pdd_operator.api.labels import INPUT_HASH
from pdd_operator.api.objects import Manifest, ref_of
from pdd_operator.api.rules import check_spec
from pdd_operator.api.v1alpha1 import PDDeployment
from pdd_operator.render.kv_transfer import backends_of
from pdd_operator.render.metadata import digest
from pdd_router.config import parse_config

# The machine that runs this may be busy: what is bounded is the number of examples.
pytestmark = pytest.mark.timeout(120)

often = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAME_LIMITS = {"StatefulSet": 52, "ConfigMap": 253}


@often
@given(cases.deployments())
def test_what_is_generated_is_what_the_crd_accepts(target: PDDeployment) -> None:
    assert check_spec(target.metadata.name, target.spec) == ()


@often
@given(cases.deployments())
def test_rendering_is_total_and_deterministic(target: PDDeployment) -> None:
    first = cases.rendered(target)
    assert cases.rendered(copy.deepcopy(target)) == first
    assert json.dumps(first.manifests) == json.dumps(cases.rendered(target).manifests)
    assert len({ref_of(manifest) for manifest in first.manifests}) == len(first.manifests)


@often
@given(cases.deployments())
def test_names_and_label_values_fit(target: PDDeployment) -> None:
    result = cases.rendered(target)
    for manifest in [*result.manifests, *(item.manifest for item in result.secrets)]:
        metadata = manifest["metadata"]
        assert len(metadata["name"]) <= NAME_LIMITS.get(manifest["kind"], 63)
        assert all(len(value) <= 63 for value in metadata["labels"].values())


@often
@given(cases.deployments())
def test_every_selector_matches_the_pods_that_it_is_meant_for(target: PDDeployment) -> None:
    result = cases.rendered(target)
    pods = {ref_of(item).name: item["spec"]["template"]["metadata"]["labels"] for item, _ in cases.pod_specs(result)}
    meant = {
        role: [name for name in pods if name.startswith(f"{target.metadata.name}-{role}")]
        for role in ("prefill", "decode", "router")
    }
    engines = [*meant["prefill"], *meant["decode"]]
    for manifest in result.manifests:
        selector = _selector(manifest)
        if selector is None:
            continue
        suffix = manifest["metadata"]["name"].removeprefix(f"{target.metadata.name}-").split("-")[0]
        wanted = engines if suffix == "engine" else meant[suffix]
        assert [name for name in pods if _matches(selector, pods[name])] == wanted, manifest["metadata"]["name"]


def _selector(manifest: Manifest) -> dict[str, Any] | None:
    spec = manifest.get("spec", {})
    if manifest["kind"] == "Service":
        return {"matchLabels": spec["selector"]}
    selector: dict[str, Any] | None = spec.get("selector") or spec.get("podSelector")
    return selector


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    exact = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return exact and all(
        item["operator"] == "In" and labels.get(item["key"]) in item["values"]
        for item in selector.get("matchExpressions", [])
    )


@often
@given(cases.deployments())
def test_every_object_is_owned_and_carries_its_own_hash(target: PDDeployment) -> None:
    for manifest in cases.rendered(target).manifests:
        metadata = manifest["metadata"]
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == [cases.UID]
        assert metadata["ownerReferences"][0]["controller"] is True
        annotations = {key: value for key, value in metadata["annotations"].items() if key != INPUT_HASH}
        bare = {key: value for key, value in metadata.items() if key != "annotations"}
        bare |= {"annotations": annotations} if annotations else {}
        assert metadata["annotations"][INPUT_HASH] == digest(manifest | {"metadata": bare})


@often
@given(cases.deployments())
def test_lists_that_are_merged_by_key_have_each_key_once(target: PDDeployment) -> None:
    for _, pod in cases.pod_specs(cases.rendered(target)):
        assert _once(pod["volumes"], "name")
        names = {volume["name"] for volume in pod["volumes"]}
        for container in cases.containers(pod):
            assert _once(container.get("env", []), "name")
            assert _once(container["volumeMounts"], "mountPath")
            assert {mount["name"] for mount in container["volumeMounts"]} <= names


def _once(items: list[dict[str, Any]], key: str) -> bool:
    values = [item[key] for item in items]
    return len(set(values)) == len(values)


@often
@given(cases.deployments())
def test_kubernetes_schemas_accept_it(target: PDDeployment) -> None:
    for manifest in cases.rendered(target).manifests:
        if manifest["kind"] not in {"PodMonitor", "GrafanaDashboard"}:
            assert problems_of(manifest) == []


@often
@given(cases.deployments())
def test_router_and_connector_accept_what_they_are_given(target: PDDeployment) -> None:
    result = cases.rendered(target)
    name = target.metadata.name
    parse_config(cases.find(result, "ConfigMap", f"{name}-router")["data"]["router.yaml"])
    files = cases.find(result, "ConfigMap", f"{name}-engine")["data"]
    for backend in backends_of(target.spec):
        prefill, decode = (json.loads(files[f"kv-transfer-{role}-{backend}.json"]) for role in ("prefill", "decode"))
        assert check_pair(prefill, decode, router_ttl_seconds=target.spec.router.conversation_ttl_seconds) == []


@often
@given(cases.deployments())
def test_engines_stop_after_everything_that_holds_them_up(target: PDDeployment) -> None:
    result = cases.rendered(target)
    spec = target.spec
    transfer = spec.kv_transfer
    pinned = transfer.claim.hold_seconds
    if transfer.mechanism.value == "Retain":
        pinned = max(transfer.retain.decoder_blocks_ttl_seconds, transfer.retain.lease_seconds)
    pod = cases.find(result, "StatefulSet", f"{target.metadata.name}-decode")["spec"]["template"]["spec"]
    drain = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    held_up = sum(float(drain[drain.index(flag) + 1]) for flag in ("--notice-seconds", "--timeout-seconds"))
    script = cases.find(result, "ConfigMap", f"{target.metadata.name}-engine")["data"]["start-decode.sh"]
    shutdown = int(script.split("--shutdown-timeout ")[1].split()[0])
    assert shutdown >= pinned
    assert pod["terminationGracePeriodSeconds"] > held_up + shutdown
