"""Real controllers with the fake kubelet under them: sets become ready, pods go with their owners, every script shows."""

import time
from collections.abc import Callable

import pytest

from pdd_e2e.control_plane.api import Json
from pdd_e2e.control_plane.errors import ControlPlaneError
from pdd_e2e.control_plane.fake_kubelet import FakeKubelet
from pdd_e2e.control_plane.fixtures import FAKE_KUBELET_USER
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.control_plane.pod_scripts import (
    CrashLoopBackOff,
    ImagePullBackOff,
    InitFails,
    NeverReady,
    OomKilled,
    Runs,
    Unschedulable,
)

LABELS = {"app": "engine"}


def until(what: str, look: Callable[[], object], timeout_seconds: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not look():
        assert time.monotonic() < deadline, f"within {timeout_seconds} s not: {what}"
        time.sleep(0.05)


def pod_template(labels: Json) -> Json:
    return {
        "metadata": {"labels": labels},
        "spec": {
            "initContainers": [{"name": "preflight", "image": "preflight:1"}],
            "containers": [{"name": "engine", "image": "engine:1"}, {"name": "proxy", "image": "proxy:1"}],
        },
    }


def stateful_set(name: str, replicas: int) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": LABELS},
            "template": pod_template(LABELS),
        },
    }


class Cluster:
    """Short words for what these tests do."""

    def __init__(self, plane: LocalControlPlane, namespace: str) -> None:
        self.api = plane.api
        self.sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"

    def pods(self) -> list[Json]:
        return self.api.items(self.pods_path)

    def run_pod(self, labels: Json = LABELS) -> str:
        template = pod_template(labels)
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {**template["metadata"], "generateName": "pod-"}
        return str(self.api.create(self.pods_path, pod)["metadata"]["name"])

    def pod(self, name: str) -> Json:
        return self.api.get(f"{self.pods_path}/{name}")

    def conditions(self, name: str) -> dict[str, str]:
        return {one["type"]: one["status"] for one in self.pod(name)["status"].get("conditions", [])}

    def is_ready(self, name: str) -> bool:
        return self.conditions(name).get("Ready") == "True"

    def is_reported(self, name: str) -> bool:
        conditions = self.conditions(name)
        return "Ready" in conditions or conditions.get("PodScheduled") == "False"

    def ready_replicas(self, name: str) -> int:
        return int(self.api.get(f"{self.sets}/{name}")["status"].get("readyReplicas", 0))


@pytest.fixture
def cluster(control_plane: LocalControlPlane, namespace: str) -> Cluster:
    return Cluster(control_plane, namespace)


def test_a_stateful_set_becomes_ready_and_its_pods_go_with_it(cluster: Cluster, fake_kubelet: FakeKubelet) -> None:
    cluster.api.create(cluster.sets, stateful_set("engines", 3))
    until("three replicas ready", lambda: cluster.ready_replicas("engines") == 3)
    pods = cluster.pods()
    assert [pod["metadata"]["name"] for pod in pods] == ["engines-0", "engines-1", "engines-2"]
    assert len({pod["status"]["podIP"] for pod in pods}) == 3
    assert {pod["spec"]["nodeName"] for pod in pods} == {fake_kubelet.node.name}
    assert all(pod["status"]["phase"] == "Running" for pod in pods)
    assert all(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0 for pod in pods)
    cluster.api.delete(f"{cluster.sets}/engines", {"propagationPolicy": "Background"})
    until("all pods gone by their owner reference", lambda: cluster.pods() == [])


def test_without_a_kubelet_nothing_becomes_ready(cluster: Cluster) -> None:
    cluster.api.create(cluster.sets, stateful_set("engines", 1))
    until("the pod is there", cluster.pods)
    assert cluster.pods()[0]["status"]["phase"] == "Pending"
    assert cluster.ready_replicas("engines") == 0


def test_a_pod_that_is_deleted_comes_back_as_another_one(cluster: Cluster, fake_kubelet: FakeKubelet) -> None:
    cluster.api.create(cluster.sets, stateful_set("engines", 1))
    until("ready", lambda: cluster.ready_replicas("engines") == 1)
    first = cluster.pod("engines-0")["metadata"]["uid"]
    cluster.api.delete(f"{cluster.pods_path}/engines-0")
    until(
        "another pod of the same name is ready",
        lambda: [p["metadata"]["uid"] for p in cluster.pods()] not in ([], [first]) and cluster.is_ready("engines-0"),
    )


def test_deletion_waits_for_the_grace_that_is_set(cluster: Cluster, fake_kubelet: FakeKubelet) -> None:
    fake_kubelet.grace_seconds = 1.0
    name = cluster.run_pod()
    until("ready", lambda: cluster.is_ready(name))
    began = time.monotonic()
    cluster.api.delete(f"{cluster.pods_path}/{name}")
    assert "deletionTimestamp" in cluster.pod(name)["metadata"]
    until("gone", lambda: cluster.pods() == [])
    assert 0.9 <= time.monotonic() - began < 10


def test_readiness_waits_for_its_time(cluster: Cluster, fake_kubelet: FakeKubelet) -> None:
    fake_kubelet.script(LABELS, Runs(ready_after_seconds=1.0, pod_ip="127.0.0.9"))
    name = cluster.run_pod()
    until("running", lambda: cluster.pod(name)["status"].get("phase") == "Running")
    assert cluster.conditions(name)["Ready"] == "False"
    until("ready", lambda: cluster.is_ready(name))
    assert cluster.pod(name)["status"]["podIP"] == "127.0.0.9"


def engine(pod: Json) -> Json:
    return next(one for one in pod["status"]["containerStatuses"] if one["name"] == "engine")


def preflight(pod: Json) -> Json:
    return dict(pod["status"]["initContainerStatuses"][0])


def waits_for(reason: str) -> Callable[[Json], bool]:
    return lambda pod: engine(pod)["state"].get("waiting", {}).get("reason") == reason


def shows_unschedulable(pod: Json) -> bool:
    condition = next(one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled")
    return (condition["status"], condition["reason"], condition["message"]) == (
        "False",
        "Unschedulable",
        "0/3 nodes: Insufficient vpc.amazonaws.com/efa",
    ) and "nodeName" not in pod["spec"]


def shows_crash_loop(pod: Json) -> bool:
    ended = engine(pod)["lastState"]["terminated"]
    return (
        waits_for("CrashLoopBackOff")(pod)
        and (ended["exitCode"], ended["message"], ended["reason"]) == (3, "no device", "Error")
        and engine(pod)["restartCount"] == 5
    )


def shows_out_of_memory(pod: Json) -> bool:
    ended = engine(pod)["lastState"]["terminated"]
    return (ended["reason"], ended["exitCode"], engine(pod)["restartCount"]) == ("OOMKilled", 137, 2)


def shows_not_ready(pod: Json) -> bool:
    return "running" in engine(pod)["state"] and not engine(pod)["ready"] and pod["status"]["phase"] == "Running"


def shows_failed_preflight(pod: Json) -> bool:
    ended = preflight(pod)["state"]["terminated"]
    return (ended["exitCode"], ended["message"]) == (4, "efa not found") and engine(pod)["state"]["waiting"][
        "reason"
    ] == "PodInitializing"


def shows_preflight_in_crash_loop(pod: Json) -> bool:
    return (
        preflight(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        and preflight(pod)["lastState"]["terminated"]["exitCode"] == 4
        and preflight(pod)["restartCount"] == 2
    )


def shows_preflight_message(pod: Json) -> bool:
    statuses = pod["status"].get("initContainerStatuses", [])
    return [one["state"].get("terminated", {}).get("message") for one in statuses] == ['{"efa": 4}']


SCRIPTED = {
    "unschedulable": (
        Unschedulable(message="0/3 nodes: Insufficient vpc.amazonaws.com/efa"),
        shows_unschedulable,
        "Pending",
    ),
    "image": (ImagePullBackOff(container="engine"), waits_for("ImagePullBackOff"), "Pending"),
    "crash": (CrashLoopBackOff(exit_code=3, message="no device", restarts=5), shows_crash_loop, "Running"),
    "memory": (OomKilled(restarts=2), shows_out_of_memory, "Running"),
    "never-ready": (NeverReady(), shows_not_ready, "Running"),
    "preflight": (
        InitFails(container="preflight", exit_code=4, message="efa not found"),
        shows_failed_preflight,
        "Pending",
    ),
    "preflight-loop": (
        InitFails(container="preflight", exit_code=4, restarts=2),
        shows_preflight_in_crash_loop,
        "Pending",
    ),
}


@pytest.mark.parametrize("case", SCRIPTED)
def test_every_script_shows_and_ends(cluster: Cluster, fake_kubelet: FakeKubelet, case: str) -> None:
    script, shows, phase = SCRIPTED[case]
    other = cluster.run_pod({"app": "other"})
    fake_kubelet.script(LABELS, script)
    name = cluster.run_pod()
    until("the pod of other labels is ready", lambda: cluster.is_ready(other))
    until("its status is reported", lambda: cluster.is_reported(name))
    pod = cluster.pod(name)
    assert shows(pod), pod["status"]
    assert pod["status"]["phase"] == phase
    assert cluster.conditions(name).get("Ready", "False") == "False"
    assert not shows_preflight_message(pod)
    restarts = [one["restartCount"] for one in pod["status"].get("containerStatuses", [])]
    fake_kubelet.script(LABELS, Runs(init_messages={"preflight": '{"efa": 4}'}))
    until("it runs once the script says so", lambda: cluster.is_ready(name))
    pod = cluster.pod(name)
    assert shows_preflight_message(pod)
    assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] >= restarts


def test_it_writes_a_status_only_when_it_changes(
    control_plane: LocalControlPlane, cluster: Cluster, fake_kubelet: FakeKubelet, namespace: str
) -> None:
    start = control_plane.audit.position()
    names = [cluster.run_pod() for _ in range(3)]
    for name in names:
        until("ready", lambda name=name: cluster.is_ready(name))
    for name in names:
        cluster.api.patch(f"{cluster.pods_path}/{name}", {"metadata": {"annotations": {"touched": "yes"}}})
    fake_kubelet.script({"app": "nobody"}, NeverReady())
    marker = cluster.run_pod()
    until("what was asked before is done", lambda: cluster.is_ready(marker))
    writes = control_plane.audit.writes(since=start, user=FAKE_KUBELET_USER, namespace=namespace)
    assert [call.resource for call in writes].count("pods/binding") == 4
    assert [call.resource for call in writes].count("pods/status") == 4
    assert all(call.code < 300 for call in writes)


def test_it_goes_on_after_the_api_server_was_killed(
    control_plane: LocalControlPlane, cluster: Cluster, fake_kubelet: FakeKubelet
) -> None:
    first = cluster.run_pod()
    until("ready", lambda: cluster.is_ready(first))
    control_plane.kill_api_server()
    control_plane.restart_api_server()
    second = cluster.run_pod()
    until("a pod made after the restart is ready", lambda: cluster.is_ready(second))


def test_a_kubelet_that_fails_fails_its_test(control_plane: LocalControlPlane, namespace: str) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    name = f"{namespace}-makes-nodes"
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["create"]}]
    control_plane.api.create(f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    }
    control_plane.api.create(f"{rbac}/clusterrolebindings", binding)
    kubeconfig = control_plane.kubeconfig_for(user=name)
    kubelet = FakeKubelet(kubeconfig, namespace=namespace)
    with pytest.raises(ControlPlaneError, match="cannot list resource"), kubelet:
        until("it failed", lambda: kubelet.failed)
