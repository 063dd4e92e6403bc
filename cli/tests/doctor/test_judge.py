"""The doctor's judgement: three clusters, and what each single change of one makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from doctor_world import (
    CNI,
    EFA,
    EMPTY,
    KIND,
    NEURON,
    NVIDIA,
    P5EN,
    P5EN_CLUSTER,
    TRN2,
    daemon_set,
    definition,
    lease,
    node,
    operator,
    p5en_nodes,
    space,
)
from rich.console import Console

from pdd_cli.choices import TransportChoice
from pdd_cli.doctor.command import targets_asked
from pdd_cli.doctor.finding import Finding, Level
from pdd_cli.doctor.judge import judge
from pdd_cli.doctor.report import findings_json, findings_table, is_well
from pdd_cli.doctor.rights import ESCALATE, EVERYTHING, rights_to_install, rights_to_use
from pdd_cli.doctor.snapshot import Right, Snapshot, Unread, parse_amount
from pdd_cli.errors import InvalidUsageError

SECRET = Unread("you lack the right to see it")


def by_subject(snapshot: Snapshot, accelerator: str | None = None, transport: str | None = None) -> dict[str, Finding]:
    chosen = None if transport is None else TransportChoice(transport)
    findings = judge(snapshot, targets_asked(accelerator, chosen))
    assert len({finding.subject for finding in findings}) == len(findings)
    for finding in findings:
        assert bool(finding.todo) == (finding.level is not Level.PASS), finding
    return {finding.subject: finding for finding in findings}


def unwell(findings: Mapping[str, Finding]) -> dict[str, Level]:
    return {subject: item.level for subject, item in findings.items() if item.level is not Level.PASS}


def test_a_p5en_cluster_with_everything_is_well() -> None:
    findings = by_subject(P5EN_CLUSTER)
    assert unwell(findings) == {}
    assert findings["nodes p5en.48xlarge"].seen == "4 ready (us-west-2a: 3, us-west-2b: 1)"
    assert findings["vpc.amazonaws.com/efa"].seen == "at least 16 on each of 4 nodes of p5en.48xlarge"
    assert findings["hugepages-2Mi"].seen.startswith("at least 5120Mi")
    assert by_subject(P5EN_CLUSTER, "p5en.48xlarge") == findings


def test_a_kind_cluster_before_installing_is_well_enough() -> None:
    findings = by_subject(KIND)
    assert set(unwell(findings).values()) == {Level.WARN}
    assert set(unwell(findings)) == {
        "definition of PDDeployment", "operator", "network policies", "PodMonitor", "GrafanaDashboard",
    }  # fmt: skip
    assert findings["nodes CPU"].seen.startswith("room for 4 engines of 4 CPUs and 12 GiB each")
    assert "helm install" in findings["operator"].todo
    assert "vpc.amazonaws.com/efa" not in findings


def test_an_empty_cluster_has_no_room() -> None:
    assert unwell(by_subject(EMPTY))["nodes CPU"] is Level.FAIL
    findings = by_subject(EMPTY, "p5en.48xlarge")
    assert unwell(findings)["nodes p5en.48xlarge"] is Level.FAIL
    assert findings["vpc.amazonaws.com/efa"].level is Level.WARN
    assert "aws-efa-k8s-device-plugin" in findings["vpc.amazonaws.com/efa"].todo


BARE_P5EN = {"cpu": "191", "memory": "2000Gi"}
TAG = "nvcr.example/nvidia/k8s-device-plugin"
CHANGES: list[tuple[str, dict[str, Any], str, Level, str]] = [
    ("old cluster", {"version": "v1.31.9"}, "Kubernetes", Level.FAIL, "1.32"),
    ("newest cluster", {"version": "v2.0.0"}, "Kubernetes", Level.PASS, "v2.0.0"),
    ("strange cluster", {"version": "devel"}, "Kubernetes", Level.WARN, "devel"),
    ("no definition", {"definition": None}, "definition of PDDeployment", Level.WARN, "helm install"),
    ("hidden definition", {"definition": SECRET}, "definition of PDDeployment", Level.WARN, "lack the right"),
    ("other definition", {"definition": definition(version="v1")}, "definition of PDDeployment", Level.FAIL, "serves v1 and not"),
    ("definition in trouble", {"definition": definition(established="False")}, "definition of PDDeployment", Level.FAIL, "does not serve it"),
    ("older definition", {"definition": definition(labels={"app.kubernetes.io/version": "0.0.9"})}, "definition of PDDeployment", Level.WARN, "version 0.0.9, and this pdd is"),
    ("definition by hand", {"definition": definition(labels={})}, "definition of PDDeployment", Level.WARN, "version unknown"),
    ("no operator", {"operators": ()}, "operator", Level.WARN, "helm install"),
    ("hidden operator", {"operators": SECRET}, "operator", Level.WARN, "lack the right"),
    ("broken operator", {"operators": (operator(ready=0),)}, "operator pdd-system/pdd-operator", Level.FAIL, "0 of 2 pods are ready"),
    ("half an operator", {"operators": (operator(ready=1),)}, "operator pdd-system/pdd-operator", Level.PASS, "1 of 2 pods ready"),
    ("sleeping operator", {"operators": (operator(ready=0, replicas=0),)}, "operator pdd-system/pdd-operator", Level.FAIL, "--replicas 2"),
    ("older operator", {"operators": (operator(labels={"app.kubernetes.io/version": "0.0.9"}),)}, "operator pdd-system/pdd-operator", Level.WARN, "helm upgrade"),
    ("no lease", {"leases": ()}, "lease pdd-system/pdd-operator", Level.FAIL, "no operator holds it"),
    ("released lease", {"leases": (lease(holder=""),)}, "lease pdd-system/pdd-operator", Level.FAIL, "no operator holds it"),
    ("stale lease", {"leases": (lease("2026-11-29T11:58:00.000000Z"),)}, "lease pdd-system/pdd-operator", Level.FAIL, "120 s"),
    ("slow clock", {"leases": (lease("2026-11-29T11:58:50.000000Z"),)}, "lease pdd-system/pdd-operator", Level.PASS, "held by"),
    ("hidden lease", {"leases": SECRET}, "lease pdd-system/pdd-operator", Level.WARN, "lack the right"),
    ("hidden rights", {"rights": SECRET}, "your rights", Level.WARN, "lack the right"),
    ("one node per zone", {"nodes": p5en_nodes("a", "b")}, "nodes p5en.48xlarge", Level.FAIL, "one zone"),
    ("zones without labels", {"nodes": p5en_nodes("", "")}, "nodes p5en.48xlarge", Level.FAIL, "Label nodes"),
    ("hidden nodes", {"nodes": SECRET}, "nodes p5en.48xlarge", Level.WARN, "lack the right"),
    ("no nodes", {"nodes": ()}, "nodes p5en.48xlarge", Level.FAIL, "Add a node group of p5en.48xlarge"),
    ("no nodes yet", {"nodes": (), "served": frozenset({"karpenter.sh"})}, "nodes p5en.48xlarge", Level.WARN, "on demand"),
    ("cordoned nodes", {"nodes": (node("a", "p5en.48xlarge", "a", P5EN), node("b", "p5en.48xlarge", "a", P5EN, cordoned=True))}, "nodes p5en.48xlarge", Level.FAIL, "1 not ready or cordoned"),
    ("broken nodes", {"nodes": (node("a", "p5en.48xlarge", "a", P5EN, ready=False),)}, "nodes p5en.48xlarge", Level.FAIL, "none is ready (1 not ready or cordoned)"),
    ("no EFA plugin", {"nodes": (node("a", "p5en.48xlarge", "a", BARE_P5EN),), "daemon_sets": (NVIDIA,)}, "vpc.amazonaws.com/efa", Level.FAIL, "Install the EFA device plugin"),
    ("EFA plugin fails", {"nodes": (node("a", "p5en.48xlarge", "a", BARE_P5EN),)}, "vpc.amazonaws.com/efa", Level.FAIL, "DaemonSet kube-system/efa, ready on 4 of 4 nodes"),
    ("one node without EFA", {"nodes": (*p5en_nodes("a", "a"), node("c", "p5en.48xlarge", "a", P5EN | {"vpc.amazonaws.com/efa": "1"}))}, "vpc.amazonaws.com/efa", Level.WARN, "c 1"),
    ("no GPU plugin", {"nodes": (node("a", "p5en.48xlarge", "a", BARE_P5EN),), "daemon_sets": (EFA,)}, "nvidia.com/gpu", Level.FAIL, "Install the NVIDIA device plugin"),
    ("no huge pages", {"nodes": p5en_nodes("a", "a", **{"hugepages-2Mi": "0"})}, "hugepages-2Mi", Level.FAIL, "vm.nr_hugepages"),
    ("newer NVIDIA plugin", {"daemon_sets": (EFA, daemon_set("n", f"{TAG}:v0.19.0"))}, "NVIDIA device plugin beside EFA", Level.WARN, "--mofed-enabled=false"),
    ("NVIDIA plugin told by argument", {"daemon_sets": (EFA, daemon_set("n", f"{TAG}:v0.19.0", args=["--mofed-enabled=false"]))}, "NVIDIA device plugin beside EFA", Level.PASS, "false"),
    ("NVIDIA plugin told by variable", {"daemon_sets": (EFA, daemon_set("n", f"{TAG}:v1.0", env=[{"name": "MOFED_ENABLED", "value": "false"}]))}, "NVIDIA device plugin beside EFA", Level.PASS, "false"),
    ("NVIDIA plugin by digest", {"daemon_sets": (EFA, daemon_set("n", f"{TAG}@sha256:00"))}, "NVIDIA device plugin beside EFA", Level.WARN, "unknown"),
    ("baseline", {"space": space("baseline")}, "namespace agents", Level.FAIL, "IPC_LOCK"),
    ("restricted", {"space": space("restricted")}, "namespace agents", Level.FAIL, "enforce=privileged"),
    ("privileged", {"space": space("privileged")}, "namespace agents", Level.PASS, "may lock memory"),
    ("no namespace", {"space": None}, "namespace agents", Level.WARN, "kubectl create namespace agents"),
    ("hidden namespace", {"space": SECRET}, "namespace agents", Level.WARN, "lack the right"),
    ("nobody enforces", {"daemon_sets": (EFA, NVIDIA, daemon_set("aws-node", "cni", args=["--enable-network-policy=false"]))}, "network policies", Level.WARN, "nobody"),
    ("calico", {"daemon_sets": (EFA, NVIDIA, daemon_set("calico-node", "calico"))}, "network policies", Level.PASS, "calico-node"),
    ("hidden plugins", {"daemon_sets": SECRET}, "network policies", Level.WARN, "lack the right"),
    ("no monitors", {"served": frozenset()}, "PodMonitor", Level.WARN, "no such kind"),
    ("no dashboards", {"served": frozenset()}, "GrafanaDashboard", Level.WARN, "no such kind"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "subject", "level", "says"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES]
)
def test_one_change_of_a_p5en_cluster(change: dict[str, Any], subject: str, level: Level, says: str) -> None:
    finding = by_subject(replace(P5EN_CLUSTER, **change), "p5en.48xlarge")[subject]
    assert finding.level is level
    assert says in f"{finding.seen} {finding.todo}"


def test_devices_and_zones_must_come_together() -> None:
    """Two nodes of a zone, and two with EFA, but not two of a zone with EFA."""
    without = node("x", "p5en.48xlarge", "a", P5EN | {"vpc.amazonaws.com/efa": "0"})
    good = p5en_nodes("a", "b")
    findings = by_subject(replace(P5EN_CLUSTER, nodes=(without, *good)))
    assert findings["nodes p5en.48xlarge"].level is Level.PASS
    assert findings["vpc.amazonaws.com/efa"].level is Level.FAIL
    findings = by_subject(replace(P5EN_CLUSTER, nodes=(without, *good, *p5en_nodes("b"))))
    assert findings["vpc.amazonaws.com/efa"].level is Level.WARN
    assert "1 of 4 nodes of p5en.48xlarge offer less than 16: x 0" in findings["vpc.amazonaws.com/efa"].seen


def test_taints_that_engines_do_not_tolerate() -> None:
    known = ("nvidia.com/gpu", "aws.amazon.com/efa", "node.kubernetes.io/memory-pressure")
    nodes = tuple(node(name, "p5en.48xlarge", "a", P5EN, taints=known) for name in ("a", "b"))
    assert unwell(by_subject(replace(P5EN_CLUSTER, nodes=nodes))) == {}
    kept = node("c", "p5en.48xlarge", "a", P5EN, taints=("team", *known))
    finding = by_subject(replace(P5EN_CLUSTER, nodes=(*nodes, kept)))["taints p5en.48xlarge"]
    assert (finding.level, finding.seen) == (Level.WARN, "1 of 3 nodes keep engines away by team")


def test_no_lease_is_asked_for_where_none_is_taken() -> None:
    findings = by_subject(replace(P5EN_CLUSTER, operators=(operator(elects="false"),), leases=()))
    assert not [subject for subject in findings if subject.startswith("lease")]


@pytest.mark.parametrize("right", rights_to_install("pdd-system"), ids=str)
def test_each_right_to_install_is_needed_until_it_is_installed(right: Right) -> None:
    lacking = {**EMPTY.rights, right: False}  # type: ignore[dict-item]  # it is a mapping here
    finding = by_subject(replace(EMPTY, rights=lacking))["right to install the chart"]
    assert finding.level is Level.FAIL
    assert str(right) in finding.seen
    assert "right to install the chart" not in by_subject(replace(P5EN_CLUSTER, rights=lacking))


@pytest.mark.parametrize("right", rights_to_use("agents"), ids=str)
def test_each_right_to_use_is_needed(right: Right) -> None:
    lacking = {**EMPTY.rights, right: False}  # type: ignore[dict-item]  # it is a mapping here
    finding = by_subject(replace(P5EN_CLUSTER, rights=lacking))["right to use PDDeployments"]
    assert finding.level is Level.FAIL
    assert str(right) in finding.seen


def test_nobody_grants_what_he_has_not() -> None:
    lacking = {**EMPTY.rights, ESCALATE: False, EVERYTHING: False}  # type: ignore[dict-item]  # it is a mapping here
    finding = by_subject(replace(EMPTY, rights=lacking))["right to install the chart"]
    assert finding.level is Level.WARN
    for right in (ESCALATE, EVERYTHING):
        assert (
            by_subject(replace(EMPTY, rights=lacking | {right: True}))["right to install the chart"].level is Level.PASS
        )


def test_neuron() -> None:
    nodes = tuple(node(name, "trn2.48xlarge", "a", TRN2) for name in ("a", "b"))
    cluster = replace(P5EN_CLUSTER, nodes=nodes, daemon_sets=(NEURON, EFA, CNI))
    assert unwell(by_subject(cluster)) == {}
    bare = replace(
        cluster, nodes=tuple(node(name, "trn2.48xlarge", "a", BARE_P5EN) for name in ("a", "b")), daemon_sets=(EFA,)
    )
    finding = by_subject(bare)["aws.amazon.com/neuron"]
    assert finding.level is Level.FAIL
    assert "neuron-helm-chart" in finding.todo


def test_sockets_need_neither_efa_nor_huge_pages_nor_a_second_node() -> None:
    gpus = {"cpu": "47", "memory": "380Gi", "nvidia.com/gpu": "4"}
    cluster = replace(
        P5EN_CLUSTER,
        nodes=(node("a", "g6e.12xlarge", "a", gpus),),
        daemon_sets=(NVIDIA, CNI),
        space=space("restricted"),
    )
    assert unwell(by_subject(cluster, "g6e.12xlarge", "Socket")) == {}
    assert unwell(by_subject(cluster, "g6e.12xlarge"))["vpc.amazonaws.com/efa"] is Level.FAIL
    one = replace(cluster, nodes=(node("a", "g6e.12xlarge", "a", gpus | {"nvidia.com/gpu": "1"}),))
    assert unwell(by_subject(one, "g6e.12xlarge", "Socket"))["nodes g6e.12xlarge"] is Level.FAIL


def test_every_known_type_among_the_nodes_is_looked_at() -> None:
    mixed = replace(
        P5EN_CLUSTER, nodes=(*p5en_nodes("a", "a"), node("g", "g6e.12xlarge", "a", {}), node("m", "m7i.large", "a", {}))
    )
    subjects = [finding.subject for finding in judge(mixed)]
    assert "nodes p5en.48xlarge" in subjects
    assert "nodes g6e.12xlarge" in subjects
    assert "nodes CPU" not in subjects


def test_what_cannot_run_engines_is_refused_with_why() -> None:
    assert unwell(by_subject(EMPTY, "inf2.48xlarge"))["inf2.48xlarge"] is Level.FAIL


@pytest.mark.parametrize(
    ("accelerator", "transport", "says"),
    [
        ("p5en", None, "--accelerator must be one of CPU, p4d.24xlarge, .*, not 'p5en'"),
        ("CPU", TransportChoice.EFA, "--transport EFA must not be given with CPU"),
        ("trn2.48xlarge", TransportChoice.SOCKET, "--transport Socket must not be given with trn2.48xlarge"),
        (None, TransportChoice.EFA, "--transport must be given together with --accelerator"),
    ],
)
def test_what_cannot_be_asked_for(accelerator: str | None, transport: TransportChoice | None, says: str) -> None:
    with pytest.raises(InvalidUsageError, match=says):
        targets_asked(accelerator, transport)


def test_reports() -> None:
    findings = judge(KIND)
    console = Console(file=StringIO(), width=80, no_color=True)
    console.print(findings_table(findings))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO
    assert "✓ Kubernetes: v1.37.2, 1.32 or newer is needed" in text
    assert "! operator: not installed\n    → Install the chart: helm install" in text
    data = json.loads(findings_json(findings))
    assert data["ok"] is is_well(findings) is True
    assert data["checks"][0] == {
        "level": "Pass",
        "subject": "Kubernetes",
        "seen": "v1.37.2, 1.32 or newer is needed",
        "todo": "",
    }
    assert json.loads(findings_json(judge(EMPTY)))["ok"] is is_well(judge(EMPTY)) is False


@pytest.mark.parametrize(
    ("text", "amount"),
    [("16", 16), ("0", 0), ("10256Mi", 10256 * 2**20), ("2Gi", 2**31), ("1k", 1000), ("1500m", Decimal("1.5")), ("3920m", Decimal("3.92")), ("", 0), ("odd", 0)],
)  # fmt: skip
def test_amounts(text: str, amount: Decimal | int) -> None:
    assert parse_amount(text) == amount
