"""A cluster with the chart: status of real objects, and the doctor after installing."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from ran import Done

from pdd_e2e.control_plane.fake_kubelet import FakeKubelet
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.operators.deployments import cpu_deployment
from pdd_e2e.operators.install import RELEASE
from pdd_operator.api.labels import Component, object_labels

Pdd = Callable[..., Done]
READY = {
    "observedGeneration": 1,
    "revision": "c0ffee",
    "endpoint": "http://chat-router.there.svc:8000/v1",
    "prefill": {"replicas": 1, "readyReplicas": 1, "selector": "a=b"},
    "groups": [{"revision": "c0ffee", "prefillReady": 1, "decodeReady": 1, "current": True, "wasAvailable": True}],
}

pytestmark = pytest.mark.usefixtures("definition")


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {
        "type": kind, "status": status, "reason": reason, "message": message,
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip


def make(plane: LocalControlPlane, namespace: str, *conditions: dict[str, Any]) -> None:
    path = f"/apis/pdserve.io/v1alpha1/namespaces/{namespace}/pddeployments"
    made = plane.api.create(path, cpu_deployment("chat"))
    plane.api.patch(f"{path}/chat/status", {"status": READY | {"conditions": list(conditions)}})
    labels = object_labels("chat", made["metadata"]["uid"], Component.PREFILL, "c0ffee")
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-prefill-c0ffee-0", "labels": labels},
        "spec": {"containers": [{"name": "engine", "image": "registry.example/engine:1"}]},
    }  # fmt: skip
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)


def test_ready(ask: Pdd, control_plane: LocalControlPlane, namespace: str) -> None:
    make(
        control_plane,
        namespace,
        condition("Ready", "True", "AllAvailable", "Prefill, decode and router are available."),
        condition("ReuseActive", "True", "BytesMoved", "4.1 GiB read from decode, 91 %"),
    )
    done = ask("status", "chat", "-n", namespace)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"✓ {namespace}/chat is ready")
    assert "4.1 GiB read from decode, 91 %" in done.out
    assert "! chat-prefill-c0ffee-0" in done.out
    assert "waits for the scheduler" in done.out
    kubectl = f"kubectl --kubeconfig {control_plane.kubeconfig} --namespace {namespace} port-forward service/chat-router 8000:8000 &"
    assert kubectl in done.out
    data = json.loads(ask("status", "chat", "-n", namespace, "-o", "json").out)
    assert (data["ready"], data["revision"]) == (True, "c0ffee")


def test_not_ready_says_what_to_do(ask: Pdd, control_plane: LocalControlPlane, namespace: str) -> None:
    make(control_plane, namespace, condition("Ready", "False", "ImagePullFailed", "Image x cannot be pulled."))
    done = ask("status", "chat", "-n", namespace)
    assert (done.code, done.err) == (3, "")
    assert "Image x cannot be pulled." in done.out
    assert "→ Correct the image or `imagePullSecretNames` that the message names." in done.out
    done = ask("status", "chat", "-n", namespace, "-o", "json")
    assert (done.code, json.loads(done.out)["ready"]) == (3, False)


def test_not_there(ask: Pdd, namespace: str) -> None:
    done = ask("status", "nobody", "-n", namespace)
    assert (done.code, done.out) == (4, "")
    assert f"There is no PDDeployment nobody in namespace {namespace}." in done.err


def test_somebody_without_rights(pdd: Pdd, control_plane: LocalControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.kubeconfig_for(user="nobody-in-particular", namespace=namespace)
    done = pdd("status", "chat", "--kubeconfig", str(kubeconfig))
    assert (done.code, done.out) == (1, "")
    assert "does not let you" in done.err
    assert f'in the namespace "{namespace}"' in done.err


@pytest.mark.usefixtures("fake_kubelet")
def test_doctor_sees_the_chart_come_up(
    ask: Pdd, control_plane: LocalControlPlane, chart: str, fake_kubelet: FakeKubelet
) -> None:
    name = f"{RELEASE}-pdd-operator"
    control_plane.kubectl("--namespace", chart, "rollout", "status", f"deployment/{name}", "--timeout=30s")

    def checks() -> dict[str, dict[str, str]]:
        done = ask("doctor", "-n", chart, "--accelerator", "CPU", "-o", "json")
        return {item["subject"]: item for item in json.loads(done.out)["checks"]}

    found = checks()
    assert found["definition of PDDeployment"]["level"] == "Pass"
    assert found[f"operator {chart}/{name}"] == {
        "level": "Pass", "subject": f"operator {chart}/{name}", "seen": "2 of 2 pods ready, version 0.1.0", "todo": "",
    }  # fmt: skip
    assert found[f"lease {chart}/{name}"]["level"] == "Fail"  # pods without processes take none
    assert "right to install the chart" not in found
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease = {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": now},
    }  # fmt: skip
    control_plane.api.create(f"/apis/coordination.k8s.io/v1/namespaces/{chart}/leases", lease)
    assert checks()[f"lease {chart}/{name}"]["seen"] == "held by one"
