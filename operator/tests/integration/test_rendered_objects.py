"""Rendered objects on a real API server: it takes all of them, keeps them as they are, and admits exactly the pods that it should."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import render_cases as cases

from pdd_e2e.control_plane.errors import ApiError
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_operator.api.objects import Manifest
from pdd_operator.drift import first_drift
from pdd_operator.kube.kinds import CHILD_KINDS

PLURALS = {kind.kind: kind.plural for kind in CHILD_KINDS if not kind.optional}
RESTRICTED = "pdd-restricted"


def in_namespace(manifest: Manifest, namespace: str) -> Manifest:
    """Without its owner, which is not there and would have it collected, and without pods."""
    moved = copy.deepcopy(manifest)
    moved["metadata"]["namespace"] = namespace
    del moved["metadata"]["ownerReferences"]
    if "replicas" in moved.get("spec", {}):
        moved["spec"]["replicas"] = 0
    for subject in moved.get("subjects", []):
        subject["namespace"] = namespace
    return moved


def path_of(manifest: Manifest) -> str:
    version, meta = manifest["apiVersion"], manifest["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{meta['namespace']}/{PLURALS[manifest['kind']]}/{meta['name']}"


@pytest.mark.parametrize("name", cases.SAMPLE_NAMES)
def test_the_api_server_takes_every_object_and_keeps_it(
    control_plane: LocalControlPlane, namespace: str, name: str
) -> None:
    """What it dropped or changed would be seen as drift for ever; applying again must change nothing."""
    manifests = [in_namespace(item, namespace) for item in cases.rendered(cases.sample(name)).manifests]
    for manifest in manifests:
        if manifest["kind"] not in PLURALS:
            continue
        path = path_of(manifest)
        live = control_plane.api.patch(path, manifest, "apply", fieldManager="pdd-operator", force="true")
        assert first_drift(manifest, live) is None, path
        again = control_plane.api.patch(path, manifest, "apply", fieldManager="pdd-operator", force="true")
        # Where controllers write status beside us, the version of the specification must stay.
        version = "generation" if "generation" in live["metadata"] else "resourceVersion"
        assert again["metadata"][version] == live["metadata"][version], path


@pytest.fixture(scope="module")
def restricted(control_plane: LocalControlPlane) -> Iterator[str]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RESTRICTED, "labels": labels}}
    control_plane.api.create("/api/v1/namespaces", body)
    yield RESTRICTED
    control_plane.api.delete(f"/api/v1/namespaces/{RESTRICTED}")


def try_pod(control_plane: LocalControlPlane, namespace: str, spec: dict[str, Any]) -> str:
    """What the API server has against the pod, nothing where it admits it. Nothing is created."""
    given = {
        key: value
        for key, value in spec.items()
        if key not in {"serviceAccountName", "priorityClassName", "runtimeClassName"}
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": given}
    try:
        control_plane.api.create(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", cases.SAMPLE_NAMES)
def test_pods_are_admitted_where_restricted_is_enforced_but_for_efa(
    control_plane: LocalControlPlane, restricted: str, name: str
) -> None:
    transport = cases.sample(name).spec.transport
    for manifest, pod in cases.pod_specs(cases.rendered(cases.sample(name))):
        refusal = try_pod(control_plane, restricted, pod)
        if manifest["kind"] == "Deployment" or transport.backend.value == "Socket":
            assert refusal == ""
        elif transport.privileges.value == "Privileged":
            assert "privileged" in refusal
            assert "capabilities" not in refusal
        else:
            assert 'must not include "IPC_LOCK"' in refusal
            assert refusal.count("must") == 1


def test_the_profile_is_really_enforced(control_plane: LocalControlPlane, restricted: str) -> None:
    plain = {"containers": [{"name": "a", "image": "registry.example.com/a:1"}]}
    assert "violates PodSecurity" in try_pod(control_plane, restricted, plain)
