"""A cluster without the chart, and clusters that cannot be asked."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from doctor_world import P5EN, daemon_set, node_object
from ran import Done
from rendering import DOCUMENTED, ROOT, SAMPLES, sample

from pdd_cli.cluster.installing import INSTALL
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_operator.api.accelerators import INSTANCE_TYPES

Pdd = Callable[..., Done]
JUDGED = (
    "autoscaled",
    "privileged",
    "load-balancer",
    "model-image",
    "trn2-retain",
    "a-37-character-name-that-is-the-limit",
)
IMAGES = [part for name in ("cpu", "neuron") for part in ("--image", f"engine-{name}=registry.example/{name}:1")]


def test_a_real_api_server_takes_what_is_rendered(pdd: Pdd, control_plane: LocalControlPlane, namespace: str) -> None:
    chosen = [*DOCUMENTED, *(path for path in SAMPLES if path.stem in JUDGED)]
    assert len(chosen) == len(DOCUMENTED) + len(JUDGED)
    objects = [sample(path) for path in chosen]
    for path, item in zip(chosen, objects, strict=True):
        # A documented sample may be called as one of the others is.
        item["metadata"] = {"name": path.stem if path in SAMPLES else f"documented-{path.stem}"}
    rendered = pdd("render", "-f", "-", "-n", namespace, *IMAGES, stdin=yaml.safe_dump_all(objects))
    assert (rendered.code, rendered.err) == (0, "")
    said = control_plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=rendered.out)
    assert said.count("(server dry run)") == len(list(yaml.load_all(rendered.out, Loader=yaml.CSafeLoader)))


def test_status_without_the_definition(ask: Pdd) -> None:
    done = ask("status", "glm-5")
    assert (done.code, done.out) == (4, "")
    assert "knows no PDDeployments: the chart is not installed" in done.err
    assert INSTALL in done.err


def test_doctor_before_installing_on_p5en(
    ask: Pdd, control_plane: LocalControlPlane, namespace: str, nodes: Callable[..., None]
) -> None:
    nodes([node_object(f"{namespace}-{index}", "p5en.48xlarge", "us-west-2a", P5EN) for index in range(2)])
    control_plane.api.patch(
        f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    )
    done = ask("doctor", "-n", namespace, "-o", "json", "--accelerator", "p5en.48xlarge")
    checks = {item["subject"]: item for item in json.loads(done.out)["checks"]}
    assert checks["Kubernetes"]["level"] == "Pass"
    assert checks["right to install the chart"]["level"] == "Pass"
    assert checks["right to use PDDeployments"]["level"] == "Pass"
    assert checks["definition of PDDeployment"]["level"] == checks["operator"]["level"] == "Warn"
    assert "us-west-2a: 2" in checks["nodes p5en.48xlarge"]["seen"]
    for resource in ("nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"):
        assert checks[resource]["level"] == "Pass", checks[resource]
    assert checks[f"namespace {namespace}"]["level"] == "Fail"
    assert done.code == 1


def test_what_the_doctor_says_of_security_profiles_is_so(
    pdd: Pdd, control_plane: LocalControlPlane, namespace: str
) -> None:
    """Control: the API server itself judges an engine's pod in a namespace of each level."""
    rendered = pdd("render", "-f", str(ROOT / "docs" / "samples" / "p5en-efa.yaml"), "-n", namespace).out
    engine = next(item for item in yaml.safe_load_all(rendered) if item["kind"] == "StatefulSet")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "engine", "namespace": namespace},
        "spec": engine["spec"]["template"]["spec"] | {"serviceAccountName": "default"},
    }
    for level, allowed in (("restricted", False), ("baseline", False), ("privileged", True)):
        labels = {"pod-security.kubernetes.io/enforce": level}
        control_plane.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
        assert _is_admitted(control_plane, namespace, pod) is allowed, level


def _is_admitted(plane: LocalControlPlane, namespace: str, pod: dict[str, object]) -> bool:
    from pdd_e2e.control_plane.errors import ApiError

    try:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    except ApiError as error:
        assert "IPC_LOCK" in str(error)
        return False
    return True


def test_doctor_finds_plugins_and_kinds(ask: Pdd, control_plane: LocalControlPlane, namespace: str) -> None:
    """A DaemonSet as the plugin's chart makes it; nobody runs its pods here."""
    item = daemon_set("nvidia", "registry.example/nvidia/k8s-device-plugin:v0.19.1")
    item["metadata"]["namespace"] = namespace
    item["spec"]["selector"] = {"matchLabels": {"app": "plugin"}}
    item["spec"]["template"]["metadata"] = {"labels": {"app": "plugin"}}
    control_plane.api.create(f"/apis/apps/v1/namespaces/{namespace}/daemonsets", item)
    done = ask("doctor", "-n", namespace, "--accelerator", "p5en.48xlarge")
    assert done.code == 1
    assert f"✓ nvidia.com/gpu: DaemonSet {namespace}/nvidia" in done.out
    assert "--mofed-enabled=false" in done.out
    assert "✗ nodes p5en.48xlarge: none" in done.out


def test_doctor_for_somebody_without_rights(pdd: Pdd, control_plane: LocalControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.kubeconfig_for(user="nobody-in-particular", namespace=namespace)
    done = pdd("doctor", "--kubeconfig", str(kubeconfig), "--accelerator", "CPU", "-o", "json")
    assert (done.code, done.err) == (1, "")
    checks = {item["subject"]: item for item in json.loads(done.out)["checks"]}
    assert checks["right to use PDDeployments"]["level"] == "Fail"
    assert f"create pddeployments.pdserve.io in namespace {namespace}" in checks["right to use PDDeployments"]["seen"]
    assert "lack the right" in checks["nodes CPU"]["seen"]


@pytest.fixture
def frozen(control_plane: LocalControlPlane) -> Iterator[None]:
    control_plane.pause_api_server()
    yield
    control_plane.resume_api_server()


@pytest.mark.parametrize("command", [("status", "glm-5"), ("doctor",)], ids=("status", "doctor"))
@pytest.mark.usefixtures("frozen")
def test_an_api_server_that_does_not_answer(ask: Pdd, command: tuple[str, ...]) -> None:
    started = time.monotonic()
    done = ask(*command, "--timeout", "1.2")
    assert time.monotonic() - started < 6
    assert (done.code, done.out) == (1, "")
    assert " ...\n" in done.err  # it said what it waits for
    assert "answer" in done.err.splitlines()[-1]
    assert "Check --context, network and VPN" in done.err


def test_an_api_server_that_is_not_there(pdd: Pdd, control_plane: LocalControlPlane, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        config = control_plane.kubeconfig.read_text().replace(
            control_plane.url, f"https://127.0.0.1:{taken.getsockname()[1]}"
        )
        (tmp_path / "config").write_text(config)
        done = pdd("status", "x", "--kubeconfig", str(tmp_path / "config"))
    assert done.code == 1
    assert "does not answer" in done.err
    assert len(done.err.strip().splitlines()) == 1


BROKEN = [
    ("nowhere", None, None, "names no cluster"),
    ("here", "{", None, "names no cluster"),
    ("here", "[]", None, "names no cluster"),
    ("here", "", None, "names no cluster"),
    ("here", "{apiVersion: v1, kind: Config}", None, "names no cluster"),
    ("whole", None, "nobody", "with --context nobody names no cluster"),
]


@pytest.mark.parametrize(("name", "content", "context", "says"), BROKEN)
def test_a_kubeconfig_that_is_none(
    pdd: Pdd,
    control_plane: LocalControlPlane,
    tmp_path: Path,
    name: str,
    content: str | None,
    context: str | None,
    says: str,
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    kubeconfig = control_plane.kubeconfig if name == "whole" else tmp_path / name
    done = pdd("status", "x", "--kubeconfig", str(kubeconfig), *(("--context", context) if context else ()))
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert "Set KUBECONFIG, or give --kubeconfig" in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_kubeconfig_context_and_namespace_are_kubectls(
    pdd: Pdd, control_plane: LocalControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a current context, and by KUBECONFIG."""
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    del config["current-context"]
    config["contexts"][0] = {"name": "mine", "context": config["contexts"][0]["context"] | {"namespace": "there"}}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    checks = json.loads(pdd("doctor", "--context", "mine", "-o", "json").out)["checks"]
    assert "namespace there" in {item["subject"] for item in checks}
    checks = json.loads(pdd("doctor", "--context", "mine", "-n", "here", "-o", "json").out)["checks"]
    assert "namespace here" in {item["subject"] for item in checks}
    assert pdd("doctor").code == 1


def test_every_known_instance_type_can_be_asked_for(pdd: Pdd, tmp_path: Path) -> None:
    """They are taken; what fails then is the kubeconfig."""
    for name in INSTANCE_TYPES:
        assert pdd("doctor", "--accelerator", name, "--kubeconfig", str(tmp_path / "none")).code == 1
    assert pdd("doctor", "--accelerator", "p5em", "--kubeconfig", str(tmp_path / "none")).code == 2
