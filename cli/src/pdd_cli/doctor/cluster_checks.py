"""Checks of what a cluster has once: version, definition, operator, kinds, policies, security profile. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from pdd_cli.cluster.installing import FIRST_IMAGES, INSTALL, UPGRADE
from pdd_cli.doctor.finding import Finding, failed, passed, warned
from pdd_cli.doctor.snapshot import Objects, Snapshot, Unread
from pdd_operator import __version__
from pdd_operator.api.labels import API_VERSION
from pdd_operator.api.objects import Manifest
from pdd_operator.api.v1alpha1 import Backend
from pdd_operator.observe.conditions import parse_time

LEAST_VERSION: Final = (1, 32)
"""The chart's kubeVersion: from there on the rules of the CRD (CEL) have what they use."""
VERSION_LABEL: Final = "app.kubernetes.io/version"
PROFILE: Final = "pod-security.kubernetes.io/enforce"
LEADER_ELECTION: Final = "PDD_OPERATOR_LEADER_ELECTION"
_PATIENCE: Final = timedelta(seconds=60)
"""By how much clocks of this machine and of the operator may differ."""
_ENFORCERS: Final = ("calico-node", "cilium", "antrea-agent", "kube-router", "weave-net", "canal")


def check_version(snapshot: Snapshot) -> Iterator[Finding]:
    least = ".".join(map(str, LEAST_VERSION))
    found = re.match(r"v?(\d+)\.(\d+)", snapshot.version)
    if found is None:
        yield warned("Kubernetes", f"version {snapshot.version!r}", f"It must be {least} or newer.")
    elif (int(found[1]), int(found[2])) < LEAST_VERSION:
        todo = f"Upgrade the cluster to {least} or newer: the chart refuses older ones, whose rules for custom objects (CEL) lack what ours use."
        yield failed("Kubernetes", snapshot.version, todo)
    else:
        yield passed("Kubernetes", f"{snapshot.version}, {least} or newer is needed")


def check_definition(snapshot: Snapshot) -> Iterator[Finding]:
    definition, subject = snapshot.definition, "definition of PDDeployment"
    if isinstance(definition, Unread):
        yield warned(
            subject, f"could not be read: {definition.why}", "Ask an administrator whether the chart is installed."
        )
        return
    if definition is None:
        yield warned(subject, "not installed", f"Install the chart: {INSTALL} ({FIRST_IMAGES})")
        return
    served = [version["name"] for version in definition["spec"].get("versions") or [] if version.get("served")]
    if API_VERSION.rpartition("/")[2] not in served:
        yield failed(
            subject, f"serves {', '.join(served) or 'nothing'} and not {API_VERSION}", f"Upgrade the chart: {UPGRADE}"
        )
    elif _condition(definition, "Established").get("status") != "True":
        said = _condition(definition, "Established").get("message") or "it is not established"
        yield failed(
            subject,
            f"the API server does not serve it: {said}",
            "`kubectl describe crd pddeployments.pdserve.io` says why.",
        )
    else:
        yield _same_version(subject, definition)


def check_operator(snapshot: Snapshot) -> Iterator[Finding]:
    operators, subject = snapshot.operators, "operator"
    if isinstance(operators, Unread):
        yield warned(
            subject, f"could not be read: {operators.why}", "Ask an administrator whether the operator is running."
        )
        return
    if not operators:
        yield warned(subject, "not installed", f"Install the chart: {INSTALL} ({FIRST_IMAGES})")
    for operator in operators:
        yield from _check_one(operator, snapshot)


def _check_one(operator: Manifest, snapshot: Snapshot) -> Iterator[Finding]:
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    subject = f"operator {namespace}/{name}"
    wanted = int(operator["spec"].get("replicas", 1))
    ready = int((operator.get("status") or {}).get("readyReplicas") or 0)
    if wanted == 0:
        yield failed(subject, "scaled to zero", f"kubectl --namespace {namespace} scale deployment {name} --replicas 2")
        return
    if ready == 0:
        yield failed(
            subject,
            f"0 of {wanted} pods are ready",
            f"kubectl --namespace {namespace} describe deployment {name}; then `kubectl logs` of its pods.",
        )
        return
    yield _same_version(subject, operator, f"{ready} of {wanted} pods ready")
    if _elects(operator):
        yield _check_lease(f"lease {namespace}/{name}", name, namespace, snapshot)


def _check_lease(subject: str, name: str, namespace: str, snapshot: Snapshot) -> Finding:
    if isinstance(snapshot.leases, Unread):
        return warned(subject, f"could not be read: {snapshot.leases.why}", "Nothing, if the operator works.")
    spec = _lease_of(snapshot.leases, namespace, name)
    logs = f"kubectl --namespace {namespace} logs deployment/{name}"
    holder = spec.get("holderIdentity")
    renewed = parse_time(spec.get("renewTime"))
    if not holder or renewed is None:
        return failed(subject, "no operator holds it, so none works", f"Wait a moment; if it stays so: {logs}")
    late = snapshot.now - renewed
    if late > timedelta(seconds=int(spec.get("leaseDurationSeconds", 15))) + _PATIENCE:
        return failed(
            subject,
            f"{holder} has not renewed it for {int(late.total_seconds())} s",
            f"Unless this machine's clock is wrong: {logs}",
        )
    return passed(subject, f"held by {holder}")


def _lease_of(leases: Objects, namespace: str, name: str) -> Mapping[str, Any]:
    for lease in leases:
        if (lease["metadata"]["namespace"], lease["metadata"]["name"]) == (namespace, name):
            return dict(lease["spec"])
    return {}


def check_kinds(snapshot: Snapshot) -> Iterator[Finding]:
    """Of others: nothing fails without them."""
    for kind, resource, use, todo in (
        (
            "PodMonitor",
            "podmonitors.monitoring.coreos.com",
            "metrics are collected by Prometheus",
            "docs/monitoring.md says how to collect metrics without it.",
        ),
        (
            "GrafanaDashboard",
            "grafanadashboards.grafana.integreatly.org",
            "a dashboard is made",
            "docs/monitoring.md says how to get the dashboard without it.",
        ),
    ):
        if resource in snapshot.served:
            yield passed(kind, f"the cluster has the kind: {use}")
        else:
            yield warned(kind, "the cluster has no such kind, and none will be made", todo)


def check_policies(snapshot: Snapshot) -> Iterator[Finding]:
    """A NetworkPolicy that nobody enforces looks like any other."""
    subject = "network policies"
    todo = "Test one, or turn enforcement on (EKS: the VPC CNI add-on with enableNetworkPolicy): engines trust whoever reaches them."
    if isinstance(snapshot.daemon_sets, Unread):
        yield warned(subject, f"who enforces them could not be read: {snapshot.daemon_sets.why}", todo)
        return
    enforcer = next((name for item in snapshot.daemon_sets if (name := _enforcer(item))), None)
    if enforcer is None:
        yield warned(subject, "nobody is known to enforce them here", todo)
    else:
        yield passed(subject, f"{enforcer} enforces them")


def check_profile(snapshot: Snapshot, backend: Backend) -> Iterator[Finding]:
    """Of engines. Those on EFA lock memory, which no profile but `privileged` allows."""
    subject, space = f"namespace {snapshot.namespace}", snapshot.space
    if isinstance(space, Unread):
        yield warned(
            subject,
            f"could not be read: {space.why}",
            "With EFA it must not enforce a Pod Security level but `privileged`.",
        )
        return
    if space is None:
        yield warned(subject, "not there yet", f"kubectl create namespace {snapshot.namespace}")
        return
    level = (space["metadata"].get("labels") or {}).get(PROFILE, "")
    if backend is not Backend.EFA:
        enforced = f"Pod Security level {level}" if level else "no Pod Security level of its own"
        yield passed(subject, f"enforces {enforced}; engines on sockets fit every level")
    elif level in ("baseline", "restricted"):
        yield failed(
            subject,
            f"enforces Pod Security level {level}, which refuses the capability IPC_LOCK of engines on EFA",
            f"kubectl label --overwrite namespace {snapshot.namespace} {PROFILE}=privileged (docs/security.md says what engines may do)",
        )
    elif level == "privileged":
        yield passed(subject, "enforces Pod Security level privileged: engines on EFA may lock memory")
    else:
        yield passed(
            subject,
            "enforces no Pod Security level of its own; engines on EFA need IPC_LOCK, which the cluster's default must allow",
        )


def _same_version(subject: str, manifest: Manifest, seen: str = "") -> Finding:
    version = (manifest["metadata"].get("labels") or {}).get(VERSION_LABEL)
    told = ", ".join(filter(None, (seen, f"version {version}" if version else "version unknown")))
    if version is None:
        return warned(
            subject, told, f"It was not installed by the chart: this pdd is {__version__}, and knows that version."
        )
    if version != __version__:
        return warned(
            subject, f"{told}, and this pdd is {__version__}", f"Use the pdd of that release, or upgrade: {UPGRADE}"
        )
    return passed(subject, told)


def _elects(operator: Manifest) -> bool:
    values = {item.get("name"): item.get("value") for made in _containers(operator) for item in made.get("env") or []}
    return str(values.get(LEADER_ELECTION, "true")).lower() != "false"


def _enforcer(daemon_set: Manifest) -> str | None:
    name = str(daemon_set["metadata"]["name"])
    if any(known in name for known in _ENFORCERS):
        return name
    # The agent of the VPC CNI is always there; a flag says whether it works.
    for container in _containers(daemon_set):
        if "--enable-network-policy=true" in (container.get("args") or []):
            return f"{name} ({container.get('name')})"
    return None


def _containers(maker: Manifest) -> Sequence[Mapping[str, Any]]:
    """Of the pods that a Deployment or DaemonSet makes."""
    pod = (maker["spec"].get("template") or {}).get("spec") or {}
    containers: Sequence[Mapping[str, Any]] = pod.get("containers") or []
    return containers


def _condition(manifest: Manifest, kind: str) -> Mapping[str, Any]:
    conditions = (manifest.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item.get("type") == kind), {})
