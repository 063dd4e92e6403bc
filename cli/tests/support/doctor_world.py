"""Clusters as the doctor's reader sees them: GPUs with EFA, a small one on CPU, an empty one. No cluster, no clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pdd_cli.cluster.installing import OPERATOR_NAMESPACE
from pdd_cli.doctor.rights import rights_asked
from pdd_cli.doctor.snapshot import Node, Snapshot, node_of
from pdd_operator import __version__
from pdd_operator.api.objects import Manifest

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
LABELS = {"app.kubernetes.io/version": __version__}
P5EN = {
    "cpu": "191",
    "memory": "2000Gi",
    "nvidia.com/gpu": "8",
    "vpc.amazonaws.com/efa": "16",
    "hugepages-2Mi": "10256Mi",
}
TRN2 = {
    "cpu": "191",
    "memory": "2000Gi",
    "aws.amazon.com/neuron": "16",
    "vpc.amazonaws.com/efa": "16",
    "hugepages-2Mi": "10256Mi",
}
EKS_CNI = "aws-node"


def node_object(
    name: str,
    instance_type: str,
    zone: str,
    allocatable: dict[str, str],
    *,
    ready: bool = True,
    cordoned: bool = False,
    taints: tuple[str, ...] = (),
) -> Manifest:
    labels = {"node.kubernetes.io/instance-type": instance_type, "topology.kubernetes.io/zone": zone}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {key: value for key, value in labels.items() if value}},
        "spec": {
            **({"unschedulable": True} if cordoned else {}),
            "taints": [{"key": key, "effect": "NoSchedule"} for key in taints],
        },
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def node(name: str, instance_type: str, zone: str, allocatable: dict[str, str], **kwargs: Any) -> Node:
    return node_of(node_object(name, instance_type, zone, allocatable, **kwargs))


def p5en_nodes(*zones: str, **changes: str) -> tuple[Node, ...]:
    return tuple(node(f"p5en-{index}", "p5en.48xlarge", zone, P5EN | changes) for index, zone in enumerate(zones))


def daemon_set(name: str, image: str, ready: int = 4, **container: Any) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [{"name": name, "image": image, **container}]}}},
        "status": {"numberReady": ready, "desiredNumberScheduled": ready},
    }


NVIDIA = daemon_set("nvidia-device-plugin", "nvcr.example/nvidia/k8s-device-plugin:v0.18.2")
EFA = daemon_set("efa", "ecr.example/eks/aws-efa-k8s-device-plugin:v0.5.20")
NEURON = daemon_set("neuron", "ecr.example/neuron/neuron-device-plugin:2.24")
CNI = daemon_set(EKS_CNI, "ecr.example/cni:1", args=["--enable-network-policy=true"])


def definition(version: str = "v1alpha1", established: str = "True", labels: dict[str, str] | None = None) -> Manifest:
    return {
        "metadata": {"name": "pddeployments.pdserve.io", "labels": LABELS if labels is None else labels},
        "spec": {"versions": [{"name": version, "served": True}]},
        "status": {"conditions": [{"type": "Established", "status": established}]},
    }


def operator(ready: int = 2, replicas: int = 2, elects: str = "true", labels: dict[str, str] | None = None) -> Manifest:
    env = [{"name": "PDD_OPERATOR_LEADER_ELECTION", "value": elects}]
    return {
        "metadata": {"name": "pdd-operator", "namespace": "pdd-system", "labels": LABELS if labels is None else labels},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "operator", "env": env}]}}},
        "status": {"readyReplicas": ready},
    }


def lease(renewed: str = "2026-11-29T11:59:55.000000Z", holder: str = "pdd-operator-1") -> Manifest:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return {"metadata": {"name": "pdd-operator", "namespace": "pdd-system"}, "spec": spec}


def space(level: str = "") -> Manifest:
    return {"metadata": {"name": "agents", "labels": {"pod-security.kubernetes.io/enforce": level} if level else {}}}


EMPTY = Snapshot(
    now=NOW,
    version="v1.37.2",
    namespace="agents",
    definition=None,
    operators=(),
    leases=(),
    rights=dict.fromkeys(rights_asked("agents", OPERATOR_NAMESPACE), True),
    nodes=(),
    daemon_sets=(),
    space=space(),
    served=frozenset({"apps"}),
)
KIND = replace(EMPTY, nodes=tuple(node(f"kind-{index}", "", "", {"cpu": "8", "memory": "32Gi"}) for index in range(2)))
P5EN_CLUSTER = replace(
    EMPTY,
    version="v1.36.1-eks-1a2b3c",
    definition=definition(),
    operators=(operator(),),
    leases=(lease(),),
    nodes=p5en_nodes("us-west-2a", "us-west-2a", "us-west-2a", "us-west-2b"),
    daemon_sets=(EFA, NVIDIA, CNI),
    served=frozenset({"podmonitors.monitoring.coreos.com", "grafanadashboards.grafana.integreatly.org"}),
)
