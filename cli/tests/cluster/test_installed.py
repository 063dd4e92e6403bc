"""A cluster with the chart: status of real objects, and the doctor after installing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ran import Done
from rendering import ROOT

from pdd_cli.render.text import name_of
from pdd_e2e.control_plane.fake_kubelet import FakeKubelet
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.control_plane.pod_scripts import Runs
from pdd_e2e.operators.deployments import cpu_deployment
from pdd_e2e.operators.install import RELEASE, chart_objects
from pdd_e2e.operators.process import OperatorProcess
from pdd_operator.api.labels import Component, object_labels
from pdd_operator.drift import first_drift

Pdd = Callable[..., Done]
OPERATOR = f"{RELEASE}-pdd-operator"
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


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_watching_ends_by_ctrl_c(control_plane: LocalControlPlane, namespace: str) -> None:
    make(control_plane, namespace, condition("Ready", "True", "AllAvailable", "Well."))
    command = [sys.executable, "-m", "pdd_cli", "status", "chat", "-n", namespace, "--watch", "-o", "json"]
    command += ["--kubeconfig", str(control_plane.kubeconfig)]
    with subprocess.Popen(  # as a terminal starts it: whoever runs these tests in the background has it ignore Ctrl-C
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_heed_ctrl_c
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["ready"] is True
        changed = condition("Ready", "False", "NodeLost", "Gone.")
        path = f"/apis/pdserve.io/v1alpha1/namespaces/{namespace}/pddeployments/chat/status"
        control_plane.api.patch(path, {"status": {"conditions": [changed]}})
        assert json.loads(process.stdout.readline())["ready"] is False
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 130
        assert process.stderr.read() == b""


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
    name = OPERATOR
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


OURS = {"app.kubernetes.io/part-of": "pdserve"}
PASSED = {"preflight": json.dumps({"transport": "Socket", "reason": "Socket", "message": "sockets"})}


@pytest.fixture
def operator(control_plane: LocalControlPlane, chart: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator's process, with the rights and the lease of the chart."""
    with OperatorProcess(
        control_plane.kubeconfig_for(service_account=(chart, OPERATOR)),
        tmp_path / "operator.log",
        namespace=chart,
        lease_name=OPERATOR,
        settings={"PDD_OPERATOR_WATCH_NAMESPACES": chart, **_shown_settings(chart)},
    ) as process:
        yield process


def _shown_settings(namespace: str) -> dict[str, str]:
    """The chart's images and labels: the settings that show in objects."""
    (deployment,) = (item for item in chart_objects(namespace) if item["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    shown = ("PDD_OPERATOR_IMAGE_", "PDD_OPERATOR_POD_LABELS")
    return {item["name"]: item["value"] for item in container["env"] if item["name"].startswith(shown)}


def test_from_apply_to_ready_as_the_commands_see_it(
    ask: Pdd,
    pdd: Pdd,
    control_plane: LocalControlPlane,
    chart: str,
    fake_kubelet: FakeKubelet,
    operator: OperatorProcess,
    tmp_path: Path,
) -> None:
    """What `pdd render` shows is what the operator makes; what `pdd status` says is what the operator found."""
    fake_kubelet.script(OURS, Runs(init_messages=PASSED))
    operator.wait_until_leader()
    there = ("-n", chart)
    control_plane.kubectl(*there, "apply", "-f", str(ROOT / "docs" / "samples" / "cpu-sockets.yaml"))
    control_plane.kubectl(*there, "wait", "--for=condition=Ready", "pdd/tiny", "--timeout=40s")

    done = ask("status", "tiny", *there)
    assert done.code == 0, done.out
    assert "prefill 1 of 1 ready" in done.out
    assert "→" not in done.out.split("ReuseActive")[0]  # nothing to be done

    live = {
        name: json.loads(control_plane.kubectl(*there, "get", name, "-o", "json"))
        for name in _names(pdd, control_plane, chart, tmp_path)
    }
    rendered = list(yaml.safe_load_all(_render(pdd, control_plane, chart, tmp_path).out))
    assert len(rendered) == len(live) - 2  # Secrets are comments
    for manifest in rendered:
        assert first_drift(manifest, live[name_of(manifest)]) is None

    checks = json.loads(ask("doctor", *there, "--accelerator", "CPU", "-o", "json").out)["checks"]
    (lease,) = (item for item in checks if item["subject"] == f"lease {chart}/{OPERATOR}")
    assert lease["level"] == "Pass"


def _render(pdd: Pdd, plane: LocalControlPlane, namespace: str, folder: Path, *flags: str) -> Done:
    """With the chart's settings, from the object as the cluster has it."""
    (folder / "chart.yaml").write_text(yaml.safe_dump_all(chart_objects(namespace)))
    stdin = plane.kubectl("-n", namespace, "get", "pdd", "-o", "yaml")
    done = pdd("render", "-f", "-", "--chart-output", str(folder / "chart.yaml"), *flags, stdin=stdin)
    assert (done.code, done.err) == (0, "")
    return done


def _names(pdd: Pdd, plane: LocalControlPlane, namespace: str, folder: Path) -> list[str]:
    return _render(pdd, plane, namespace, folder, "-o", "name").out.splitlines()
