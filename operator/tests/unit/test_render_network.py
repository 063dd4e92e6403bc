"""NetworkPolicies, judged by who gets through: a small evaluator of their semantics, and a table of connections."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import render_cases as cases

from pdd_operator.api.objects import Manifest, Rendered
from pdd_operator.render import render
from pdd_operator.render.inputs import ClusterFacts


@dataclass(frozen=True)
class Pod:
    """Outside the cluster where ``namespace`` is None."""

    namespace: str | None
    labels: tuple[tuple[str, str], ...] = ()
    namespace_labels: tuple[tuple[str, str], ...] = ()


def engine(role: str, deployment: str = "cpu", namespace: str = "agents") -> Pod:
    return Pod(namespace, (("pdserve.io/deployment", deployment), ("pdserve.io/role", role)))


PREFILL, DECODE, ROUTER = (engine(role) for role in ("prefill", "decode", "router"))
STRANGER = Pod("agents", (("app", "curl"),))
OTHER_ENGINE = engine("decode", "other")
SAME_NAME_ELSEWHERE = engine("router", namespace="elsewhere")
OPERATOR = Pod("pdd-system", (("app.kubernetes.io/name", "pdd-operator"),))
BESIDE_OPERATOR = Pod("pdd-system", (("app.kubernetes.io/name", "other"),))
PROMETHEUS = Pod("monitoring", (), (("pdserve.io/metrics", "allowed"),))
INTERNET = Pod(None)


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    exact = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return exact and all(labels.get(item["key"]) in item["values"] for item in selector.get("matchExpressions", []))


def _is_peer(peer: dict[str, Any], pod: Pod, home: str) -> bool:
    if pod.namespace is None:
        return False
    labels = {"kubernetes.io/metadata.name": pod.namespace, **dict(pod.namespace_labels)}
    if "namespaceSelector" in peer:
        if not _selects(peer["namespaceSelector"], labels):
            return False
    elif pod.namespace != home:
        return False
    return _selects(peer.get("podSelector", {}), dict(pod.labels))


def _has_port(ports: list[dict[str, Any]] | None, port: int, protocol: str) -> bool:
    return ports is None or any(
        item["protocol"] == protocol and item["port"] <= port <= item.get("endPort", item["port"]) for item in ports
    )


def _policy_of(result: Rendered, pod: Pod) -> list[Manifest]:
    policies = [item for item in result.manifests if item["kind"] == "NetworkPolicy"]
    return [item for item in policies if _selects(item["spec"]["podSelector"], dict(pod.labels))]


def passes(result: Rendered, direction: str, owner: Pod, other: Pod, port: int, protocol: str = "TCP") -> bool:
    """Whether ``owner``'s policies let the connection in (``ingress``, from ``other``) or out (``egress``, to it)."""
    policies = _policy_of(result, owner)
    side = "from" if direction == "ingress" else "to"
    return not policies or any(
        (side not in rule or any(_is_peer(peer, other, "agents") for peer in rule[side]))
        and _has_port(rule.get("ports"), port, protocol)
        for policy in policies
        for rule in policy["spec"][direction]
    )


@pytest.fixture(scope="module")
def result() -> Rendered:
    return cases.rendered(cases.sample("cpu"))


INTO_ENGINE = [
    (ROUTER, 8000, True),
    (OPERATOR, 8000, True),
    (PROMETHEUS, 8000, True),
    (PREFILL, 5600, True),
    (DECODE, 6600, True),
    (PREFILL, 41999, True),
    (PREFILL, 8000, False),  # engines have no business with each other's HTTP port
    (ROUTER, 5600, False),
    (ROUTER, 6600, False),
    (OPERATOR, 6600, False),
    (PROMETHEUS, 6600, False),
    (BESIDE_OPERATOR, 8000, False),
    (STRANGER, 8000, False),
    (STRANGER, 5600, False),
    (STRANGER, 6600, False),
    (OTHER_ENGINE, 5600, False),
    (OTHER_ENGINE, 6600, False),
    (SAME_NAME_ELSEWHERE, 8000, False),
    (INTERNET, 8000, False),
]


@pytest.mark.parametrize(("caller", "port", "let_in"), INTO_ENGINE)
@pytest.mark.parametrize("target", [PREFILL, DECODE])
def test_who_gets_into_an_engine(result: Rendered, target: Pod, caller: Pod, port: int, let_in: bool) -> None:
    assert passes(result, "ingress", target, caller, port) == let_in


OUT_OF_ENGINE = [
    (DECODE, 5600, "TCP", True),
    (DECODE, 6600, "TCP", True),
    (DECODE, 50000, "UDP", True),
    (INTERNET, 53, "UDP", True),
    (INTERNET, 53, "TCP", True),
    (INTERNET, 443, "TCP", True),  # Hugging Face
    (INTERNET, 80, "TCP", False),
    (ROUTER, 8000, "TCP", False),
    (OTHER_ENGINE, 6600, "TCP", False),
    (DECODE, 8000, "TCP", False),
]


@pytest.mark.parametrize(("target", "port", "protocol", "let_out"), OUT_OF_ENGINE)
def test_where_an_engine_gets_to(result: Rendered, target: Pod, port: int, protocol: str, let_out: bool) -> None:
    assert passes(result, "egress", PREFILL, target, port, protocol) == let_out


def test_an_engine_whose_model_is_there_does_not_reach_the_internet() -> None:
    for name in ("model-on-volume", "model-image"):
        own = engine("prefill", name)
        assert not passes(cases.rendered(cases.sample(name)), "egress", own, INTERNET, 443)


def test_monitoring_is_let_in_only_where_there_is_something_to_scrape() -> None:
    for result in (
        cases.rendered(cases.sample("cpu"), ClusterFacts()),
        cases.rendered(cases.deployment(monitoring={"podMonitor": "Never"})),
    ):
        own = Pod("agents", (("pdserve.io/deployment", "cpu"), ("pdserve.io/role", "prefill")))
        name = result.manifests[0]["metadata"]["labels"]["pdserve.io/deployment"]
        own = engine("prefill", name)
        assert not passes(result, "ingress", own, PROMETHEUS, 8000)
        assert passes(result, "ingress", own, engine("router", name), 8000)


def test_the_router_reaches_the_api_server_where_it_is() -> None:
    elsewhere = replace(cases.SETTINGS, api_server_ports=(16443,))
    for settings, ports in ((cases.SETTINGS, (443, 6443)), (elsewhere, (16443,))):
        target = cases.sample("cpu")
        found = render(target, settings, ClusterFacts(), cases.replicas_of(target))
        assert {port for port in (443, 6443, 16443) if passes(found, "egress", ROUTER, INTERNET, port)} == set(ports)


@pytest.mark.parametrize("caller", [STRANGER, SAME_NAME_ELSEWHERE, PROMETHEUS])
def test_the_router_is_open_to_the_cluster(result: Rendered, caller: Pod) -> None:
    assert passes(result, "ingress", ROUTER, caller, 8000)
    assert not passes(result, "ingress", ROUTER, caller, 8001)


def test_the_router_is_open_to_the_world_where_its_service_is(result: Rendered) -> None:
    assert not passes(result, "ingress", ROUTER, INTERNET, 8000)
    public = cases.rendered(cases.sample("load-balancer"))
    assert passes(public, "ingress", engine("router", "load-balancer"), INTERNET, 8000)


OUT_OF_ROUTER = [(PREFILL, 8000, True), (DECODE, 8000, True), (INTERNET, 443, True), (INTERNET, 6443, True)]
NOT_OUT_OF_ROUTER = [(PREFILL, 5600, False), (DECODE, 6600, False), (OTHER_ENGINE, 8000, False), (INTERNET, 80, False)]


@pytest.mark.parametrize(("target", "port", "let_out"), [*OUT_OF_ROUTER, *NOT_OUT_OF_ROUTER])
def test_where_the_router_gets_to(result: Rendered, target: Pod, port: int, let_out: bool) -> None:
    assert passes(result, "egress", ROUTER, target, port) == let_out


def test_without_policies_everything_gets_through() -> None:
    """The control of this file: the evaluator lets through what nothing forbids."""
    result = cases.rendered(cases.sample("no-network-policy"))
    assert passes(result, "ingress", engine("decode", "no-network-policy"), INTERNET, 6600)
