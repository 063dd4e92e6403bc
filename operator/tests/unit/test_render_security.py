"""Checks in the manner of kube-linter over every sample, and the one list of exceptions."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import render_cases as cases

from pdd_operator.api.labels import Component
from pdd_operator.api.objects import Manifest

RESTRICTED_VOLUMES = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "image", "name"}
SECRET_NAME = re.compile(r"KEY|TOKEN|PASSWORD|SECRET|SALT")


def problems(manifest: Manifest, pod: dict[str, Any]) -> list[str]:
    """What the profile "restricted" and common sense have against the pods of an object."""
    found = [f"pod: {key}" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    if pod["securityContext"].get("runAsNonRoot") is not True:
        found.append("pod: runAsNonRoot")
    if pod["securityContext"].get("seccompProfile") != {"type": "RuntimeDefault"}:
        found.append("pod: seccompProfile")
    is_router = manifest["metadata"]["labels"].get("pdserve.io/role") == Component.ROUTER
    if pod.get("automountServiceAccountToken") is not is_router:
        found.append("pod: automountServiceAccountToken")
    found += [f"volume {item['name']}" for item in pod["volumes"] if not set(item) <= RESTRICTED_VOLUMES]
    for container in cases.containers(pod):
        found += [f"{container['name']}: {problem}" for problem in container_problems(container)]
    return found


def container_problems(container: dict[str, Any]) -> list[str]:
    context, resources = container["securityContext"], container["resources"]
    checks = {
        "privileged": context.get("privileged") is not False,
        "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is not False,
        "capabilities": context.get("capabilities") != {"drop": ["ALL"]},
        "readOnlyRootFilesystem": context.get("readOnlyRootFilesystem") is not True,
        "runAsUser": context.get("runAsUser") != 65532,
        "runAsNonRoot": context.get("runAsNonRoot") is not True,
        "seccompProfile": context.get("seccompProfile") != {"type": "RuntimeDefault"},
        "image tag": not re.search(r":[^/:]+$|@sha256:", container["image"]) or container["image"].endswith(":latest"),
        "requests": not {"cpu", "memory"} <= set(resources.get("requests", {})),
        "hostPort": any("hostPort" in port for port in container.get("ports", [])),
        "secret inline": any(SECRET_NAME.search(item["name"]) and "value" in item for item in container.get("env", [])),
    }
    return [name for name, wrong in checks.items() if wrong]


def exceptions(name: str) -> set[str]:
    """The whole list of what engines on EFA may have beyond the profile."""
    spec = cases.sample(name).spec
    if spec.transport.backend.value != "EFA":
        return set()
    if spec.transport.privileges.value == "Privileged":
        return {
            f"{part}: {what}"
            for part in ("preflight", "engine")
            for what in ("privileged", "allowPrivilegeEscalation", "runAsUser", "runAsNonRoot")
        }
    return {f"{part}: capabilities" for part in ("preflight", "engine")}


@pytest.mark.parametrize("name", cases.SAMPLE_NAMES)
def test_pods_are_restricted_but_for_exactly_what_efa_needs(name: str) -> None:
    for manifest, pod in cases.pod_specs(cases.rendered(cases.sample(name))):
        expected = exceptions(name) if manifest["kind"] == "StatefulSet" else set()
        assert set(problems(manifest, pod)) == expected, manifest["metadata"]["name"]


def test_the_capability_is_the_one_that_locks_memory() -> None:
    for manifest, pod in cases.pod_specs(cases.rendered(cases.deployment())):
        for container in cases.containers(pod):
            added = container["securityContext"]["capabilities"].get("add", [])
            touches = manifest["kind"] == "StatefulSet" and container["name"] in {"preflight", "engine"}
            assert added == (["IPC_LOCK"] if touches else [])


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(pod: dict[str, Any]) -> None:
        *parents, leaf = path.split(".")
        target: Any = pod
        for part in parents:
            target = target[int(part)] if part.isdigit() else target[part]
        target[leaf] = value

    return change


MUTATIONS = {
    "pod: hostNetwork": _set("hostNetwork", True),
    "pod: runAsNonRoot": _set("securityContext.runAsNonRoot", False),
    "pod: seccompProfile": _set("securityContext.seccompProfile", None),
    "pod: automountServiceAccountToken": _set("automountServiceAccountToken", True),
    "volume pdd-run": lambda pod: next(v for v in pod["volumes"] if v["name"] == "pdd-run").update(hostPath={}),
    "engine: privileged": _set("containers.0.securityContext.privileged", True),
    "engine: capabilities": _set("containers.0.securityContext.capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
    "engine: readOnlyRootFilesystem": _set("containers.0.securityContext.readOnlyRootFilesystem", False),
    "engine: runAsUser": _set("containers.0.securityContext.runAsUser", 0),
    "engine: image tag": _set("containers.0.image", "registry.example.com/vllm:latest"),
    "connector: image tag": _set("initContainers.0.image", "registry.example.com:5000/connector"),
    "engine: requests": _set("containers.0.resources", {}),
    "engine: hostPort": _set("containers.0.ports", [{"hostPort": 1}]),
    "engine: secret inline": _set("containers.0.env", [{"name": "PDD_CLAIM_KEY", "value": "x"}]),
}


@pytest.mark.parametrize("problem", MUTATIONS)
def test_the_checks_see_what_they_are_for(problem: str) -> None:
    manifest, pod = next(
        item for item in cases.pod_specs(cases.rendered(cases.sample("cpu"))) if item[0]["kind"] == "StatefulSet"
    )
    broken = copy.deepcopy(pod)
    MUTATIONS[problem](broken)
    assert problems(manifest, pod) == []
    assert problem in problems(manifest, broken)


@pytest.mark.parametrize("name", cases.SAMPLE_NAMES)
def test_no_right_is_given_beyond_watching_pods(name: str) -> None:
    result = cases.rendered(cases.sample(name))
    rules = [rule for item in result.manifests if item["kind"] in {"Role", "ClusterRole"} for rule in item["rules"]]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    accounts = [item for item in result.manifests if item["kind"] == "ServiceAccount"]
    assert all(item["automountServiceAccountToken"] is False for item in accounts)


@pytest.mark.parametrize("name", cases.SAMPLE_NAMES)
def test_secrets_are_mounted_for_reading_by_key_only(name: str) -> None:
    for _, pod in cases.pod_specs(cases.rendered(cases.sample(name))):
        mounts = {mount["name"]: mount for item in cases.containers(pod) for mount in item["volumeMounts"]}
        for volume in pod["volumes"]:
            if "secret" in volume:
                assert len(volume["secret"]["items"]) == 1
                assert volume["secret"]["defaultMode"] == 0o440
                assert mounts[volume["name"]]["readOnly"] is True
