"""What the real API server answers to objects that are wrong, and what the operator makes of it: a text of its may change with its release."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_operator.api.names import ObjectRef
from pdd_operator.api.objects import ref_of
from pdd_operator.errors import RefusedError
from pdd_operator.kube.cluster import KubeCluster, connect
from pdd_operator.observe.refusals import sets_without_pods

TERM = {"topologyKey": "a", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
WRONG: dict[str, dict[str, Any]] = {
    "unknown field": {"tolerations": [{"opperator": "Exists"}]},
    "unknown key of a map": {"affinity": {"nodeAfinity": {}}},
    "text for a map": {"affinity": "x"},
    "text for a number": {"tolerations": [{"operator": "Exists", "tolerationSeconds": "x"}]},
    "number for a text": {"nodeSelector": {"a": 1}},
    "part of a number": {"topologySpreadConstraints": [TERM | {"maxSkew": 1.5}]},
    "two of one key": {"topologySpreadConstraints": [TERM, TERM]},
    "no quantity": {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "much"}}]},
    "out of range": {"volumes": [{"name": "v", "secret": {"secretName": "x", "defaultMode": 99_999_999_999}}]},
    "unknown value": {"restartPolicy": "Sometimes"},
}


@pytest.fixture
def cluster(control_plane: LocalControlPlane) -> KubeCluster:
    api = connect("test", str(control_plane.kubeconfig))
    return KubeCluster(api, timeout_seconds=15, may_write=lambda: None, count_call=lambda verb, kind, error: None)


def stateful_set(namespace: str, **pod: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "i"}], **pod}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "s", "namespace": namespace},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "serviceName": "s", "template": template},
    }


def test_what_is_wrong_in_a_pod_template_is_refused_and_no_failure_of_the_server(
    cluster: KubeCluster, namespace: str
) -> None:
    """The server answers 500 to most of these. Taken for a failure it would be tried again for ever, and said to be an outage."""
    for _ in ("not there yet", "there"):
        for what, pod in WRONG.items():
            with pytest.raises(RefusedError):
                pytest.fail(f"{what}: accepted as {cluster.apply(namespace, stateful_set(namespace, **pod))}")
        cluster.apply(namespace, stateful_set(namespace))


def test_why_a_set_cannot_make_its_pods_is_found(cluster: KubeCluster, namespace: str) -> None:
    """Its controller says it in an event and nowhere else; of a set that makes its pods there is none."""
    made, refused = stateful_set(namespace), stateful_set(namespace, priorityClassName="missing")
    refused["metadata"]["name"] = "r"
    for manifest in (made, refused):
        manifest["spec"]["replicas"] = 1
    uids = [cluster.apply(namespace, manifest)["metadata"]["uid"] for manifest in (made, refused)]
    deadline = time.monotonic() + 20
    while not (said := cluster.last_refusal(namespace, uids[1])) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert said.endswith("no PriorityClass with name missing was found")
    assert cluster.last_refusal(namespace, uids[0]) == ""
    sets = {
        ref_of(item): item
        for name in ("s", "r")
        if (item := cluster.get(namespace, ObjectRef("apps/v1", "StatefulSet", name))) is not None
    }
    assert [ref.name for ref, _ in sets_without_pods(sets)] == ["r"]
