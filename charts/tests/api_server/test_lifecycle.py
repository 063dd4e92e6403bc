"""Install, upgrade and uninstall on a real API server: what the docs promise of each."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import HelmError
from history import History
from operator_process import OperatorProcess
from release import CRD, Release, get_or_none, wait_until
from world import World

from pdd_e2e.control_plane.errors import ApiError
from pdd_operator.kube.kinds import CHILD_KINDS

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "docs" / "samples").glob("*.yaml"))


def deployments(namespace: str) -> str:
    return f"/apis/pdserve.io/v1alpha1/namespaces/{namespace}/pddeployments"


def sample(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "samples" / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


def identity(item: dict[str, Any]) -> tuple[str, str, int]:
    metadata = item["metadata"]
    return metadata["uid"], metadata["resourceVersion"], metadata.get("generation", 0)


def test_after_installing_every_sample_is_accepted(release: Release) -> None:
    said = release.install()
    assert "kubectl apply" in said
    for path in SAMPLES:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
        stored = release.api.create(deployments(release.namespace), given)
        wanted = given["spec"].get("kvTransfer", {}).get("mechanism", "Claim")
        assert stored["spec"]["kvTransfer"]["mechanism"] == wanted, "what it names, and defaults, are in the object"
    wrong = sample("cpu-sockets")
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["transport"]["backend"] = "EFA"
    with pytest.raises(ApiError, match="must"):
        release.api.create(deployments(release.namespace), wrong)


def test_the_operators_pods_are_admitted_where_pods_are_restricted(release: Release) -> None:
    release.install()
    pods = f"/api/v1/namespaces/{release.namespace}/pods"
    wait_until(lambda: len(release.api.items(pods)) == 2, "the operator's pods")
    unsafe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "unsafe"},
        "spec": {"containers": [{"name": "unsafe", "image": "pdserve/pdd-operator:0.1.0"}]},
    }
    with pytest.raises(ApiError, match="violates PodSecurity"):
        release.api.create(pods, unsafe)


def test_upgrading_keeps_definition_and_objects(release: Release) -> None:
    release.install()
    created = release.api.create(deployments(release.namespace), sample("cpu-sockets"))
    definition = release.api.get(CRD)
    release.upgrade("--set", "logLevel=debug")
    assert release.api.get(CRD)["metadata"]["uid"] == definition["metadata"]["uid"]
    assert identity(release.api.get(f"{deployments(release.namespace)}/tiny")) == identity(created)
    account = release.api.items(f"/apis/apps/v1/namespaces/{release.namespace}/deployments")[0]
    assert {"name": "PDD_OPERATOR_LOG_LEVEL", "value": "debug"} in account["spec"]["template"]["spec"]["containers"][0][
        "env"
    ]


def test_uninstalling_keeps_definition_and_objects_and_installing_again_takes_them_over(release: Release) -> None:
    release.install()
    created = release.api.create(deployments(release.namespace), sample("cpu-sockets"))
    release.uninstall()
    assert release.api.items(f"/apis/apps/v1/namespaces/{release.namespace}/deployments") == []
    assert identity(release.api.get(f"{deployments(release.namespace)}/tiny")) == identity(created)
    release.install()
    assert identity(release.api.get(f"{deployments(release.namespace)}/tiny")) == identity(created)


def test_uninstalling_removes_a_definition_that_is_not_kept(release: Release) -> None:
    release.install("--set", "crds.keep=false")
    release.api.create(deployments(release.namespace), sample("cpu-sockets"))
    release.uninstall()
    wait_until(lambda: get_or_none(release.api, CRD) is None, "the definition to be gone")


def test_a_second_release_needs_no_definition_of_its_own(release: Release) -> None:
    release.install("--set", f"watchNamespaces={{{release.namespace}}}")
    second = Release(release.helm, release.kubeconfig, release.api, release.namespace, release.home, name="second")
    with pytest.raises(HelmError, match="pddeployments"):
        second.install("--set", f"watchNamespaces={{{release.namespace}}}")
    second.install("--set", f"watchNamespaces={{{release.namespace}}}", "--set", "crds.enabled=false")
    names = {
        item["metadata"]["name"]
        for item in release.api.items(f"/apis/apps/v1/namespaces/{release.namespace}/deployments")
    }
    assert names == {"pdd-pdd-operator", "second-pdd-operator"}


def test_who_may_edit_a_namespace_may_edit_its_deployments(
    release: Release, may: Callable[[str, str, str], bool]
) -> None:
    release.install()
    wait_until(lambda: may("edit", "create", "pddeployments"), "the roles to be aggregated")
    assert may("view", "list", "pddeployments") and may("edit", "patch", "pddeployments")
    assert not may("view", "create", "pddeployments")
    assert not may("edit", "patch", "pddeployments/status")


def versions(world: World, name: str) -> dict[str, tuple[str, str, int]]:
    return {
        f"{kind.plural}/{item['metadata']['name']}": identity(item)
        for kind in CHILD_KINDS
        for item in world.children(kind, name)
    }


@pytest.mark.usefixtures("fake_kubelet")
@pytest.mark.timeout(300)
def test_upgrading_from_an_earlier_commit_touches_nothing_that_runs(
    release: Release, start: Callable[..., OperatorProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = History(ROOT)
    commit = history.earlier()
    if commit is None:
        with capsys.disabled():
            print("\nno earlier commit has another chart: there is nothing to upgrade from yet")
        return
    release.install(chart=history.unpack(commit, tmp_path / "earlier"))
    definition = release.api.get(CRD)
    world = World(release.api, release.namespace)
    with start() as operator:
        world.create("serving")
        operator.wait_until(partial(world.is_available, "serving"), "the deployment to be available")
        before, spec = versions(world, "serving"), world.get("serving")["metadata"]["generation"]
        release.upgrade()
        world.touch("serving", "upgraded")
    with start() as operator:  # as the upgrade starts another pod of it
        operator.wait_until(operator.has_reconciled, "a reconcile after the upgrade")
        assert len(before) > 10
        assert versions(world, "serving") == before
        assert world.get("serving")["metadata"]["generation"] == spec
        world.change("serving", decode={"replicas": 2})
        operator.wait_until(lambda: versions(world, "serving") != before, "a change that is asked for")
    assert release.api.get(CRD)["metadata"]["uid"] == definition["metadata"]["uid"]
