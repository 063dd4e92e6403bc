"""S7: who reaches whom, by connections from inside pods, held against the table in docs/security.md.

A connection that nobody answers could also be one of a cluster that is broken. So every door that must be shut for one is tried by another for whom
it is open, and a pod that is nobody gets through by nothing but a label.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
import yaml

from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.shell import run
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.installation import RELEASE, SYSTEM, Release, own_namespaces
from pdd_e2e.kind_suite.reachability import (
    LISTENER_PORTS,
    Reach,
    Spot,
    listening,
    probe_pod,
    reached,
    reached_from,
    running_spots,
)
from pdd_e2e.kind_suite.terminal import Terminal

ELSEWHERE: Final = "network-elsewhere"
STRANGER: Final = "network-stranger"
CLOSED_PORT: Final = 9  # nothing of ours listens there
HTTP_PORT: Final = 8000
OPERATOR_PORT: Final = 8080
FABRIC_PORTS: Final = {5600, 6600}
SET_SECONDS: Final = 20  # from a change of policies or labels to connections that are judged by it
PROBE_SECONDS: Final = 30
MATRIX_SECONDS: Final = 30
WALL: Final = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "network-wall"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}
ENGINE_HTTP: Final = {"prefill HTTP", "decode HTTP"}
ANYBODY: Final = {"router HTTP", "operator HTTP"}
OPEN: Final = {
    "router": ENGINE_HTTP,
    "operator": ENGINE_HTTP,
    "prefill": {"decode's own ports"},
    "decode": {"prefill's own ports"},
    "stranger": ANYBODY | {"router's double"},
    "router's double": ANYBODY | {"stranger"},
    "engine's double": ANYBODY | {"stranger", "router's double"},
}
"""By pod, what it reaches of what is not itself. Doubles have the labels of the original, in another namespace."""


@dataclass(frozen=True, slots=True)
class Places:
    """Pods by the names of `OPEN`, and what there is to reach by name: each some targets, that only together are open or not."""

    spots: dict[str, Spot]
    doors: dict[str, list[str]]

    def doors_for(self, name: str) -> dict[str, list[str]]:
        """Those of other pods."""
        own = self.spots[name].port(0).removesuffix("0")
        return {door: targets for door, targets in self.doors.items() if not targets[0].startswith(own)}


@pytest.fixture(scope="module")
def operator_policy(release: Release, small: LiveDeployment) -> Iterator[None]:
    """The chart's own policy, which is off by default."""
    chart = ("template", RELEASE, release.sources / "charts" / "pdd-operator", f"--namespace={SYSTEM}")
    only = ("--set=networkPolicy.enabled=true", "--show-only=templates/networkpolicy.yaml")
    policy = yaml.safe_load(run([release.helm, *chart, *only, *release.values]))
    small.kubectl.apply([policy])
    yield
    small.kubectl("--namespace", SYSTEM, "delete", "networkpolicy", policy["metadata"]["name"])


@pytest.fixture(scope="module")
def places(small: LiveDeployment, operator_policy: None) -> Iterator[Places]:
    """A stranger in the namespace of the deployment, and doubles of a router and an engine in another."""
    kubectl, image = small.kubectl, small.router_image()
    doubles = [
        probe_pod(f"{role}-double", image, {"pdserve.io/deployment": small.name, "pdserve.io/role": role})
        for role in ("router", "prefill")
    ]
    with own_namespaces(kubectl, {ELSEWHERE: {}}):
        kubectl.apply(doubles, namespace=ELSEWHERE)
        kubectl.apply([probe_pod(STRANGER, image, {"network-probe": "stranger"})], namespace=small.namespace)
        try:
            yield look_around(small)
        finally:
            small("delete", "pod", STRANGER, "--ignore-not-found")


def look_around(small: LiveDeployment) -> Places:
    kubectl = small.kubectl
    ours = running_spots(kubectl, small.namespace, f"pdserve.io/deployment={small.name}", PROBE_SECONDS)
    near = running_spots(kubectl, small.namespace, "network-probe=stranger", PROBE_SECONDS)
    far = running_spots(kubectl, ELSEWHERE, f"pdserve.io/deployment={small.name}", PROBE_SECONDS)
    (operator, *_) = running_spots(kubectl, SYSTEM, f"app.kubernetes.io/name={RELEASE}", PROBE_SECONDS).values()
    roles = {role: next(ours[name] for name in small.pods(role)) for role in ("prefill", "decode", "router")}
    spots = roles | {
        "operator": operator,
        "stranger": near[STRANGER],
        "router's double": far["router-double"],
        "engine's double": far["prefill-double"],
    }
    doors = {
        "router HTTP": [roles["router"].port(HTTP_PORT)],
        "router's closed port": [roles["router"].port(CLOSED_PORT)],
        "operator HTTP": [operator.port(OPERATOR_PORT)],
        "operator's closed port": [operator.port(CLOSED_PORT)],
        "stranger": spots["stranger"].ports(LISTENER_PORTS),
        "router's double": spots["router's double"].ports(LISTENER_PORTS),
    }
    for role in ("prefill", "decode"):
        ports = set(listening(kubectl, roles[role]))
        assert ports > FABRIC_PORTS | {HTTP_PORT}, (
            "the engine listens on what is to be tried, and NIXL on ports of its own"
        )
        doors[f"{role} HTTP"] = [roles[role].port(HTTP_PORT)]
        doors[f"{role}'s own ports"] = roles[role].ports(sorted(ports - {HTTP_PORT}))
    return Places(spots, doors)


def verdicts(kubectl: Kubectl, places: Places, *names: str) -> dict[str, dict[str, set[Reach]]]:
    """By source and door, what became of connections to its targets."""
    targets = sorted({target for door in places.doors.values() for target in door})
    found = reached_from(kubectl, {name: places.spots[name] for name in names}, targets)
    return {
        name: {door: {row[target] for target in aims} for door, aims in places.doors_for(name).items()}
        for name, row in found.items()
    }


def verdict(kubectl: Kubectl, source: Spot, target: str) -> Reach:
    return reached(kubectl, source, [target])[target]


@pytest.mark.budget(2 * SET_SECONDS + PROBE_SECONDS)
def test_nothing_passes_where_a_policy_lets_nothing_pass(small: LiveDeployment, places: Places) -> None:
    """Two pods talk; forbid all to come in to one of them: nothing comes in; take the policy away: they talk. Else the cluster enforces nothing."""
    kubectl, source = small.kubectl, places.spots["router's double"]
    target = places.spots["engine's double"].port(LISTENER_PORTS[0])
    assert verdict(kubectl, source, target) is Reach.OPEN
    kubectl.apply([WALL], namespace=ELSEWHERE)
    wait_until(
        lambda: verdict(kubectl, source, target) is Reach.DROPPED,
        "enforcement (this cluster does not enforce NetworkPolicies, and engines in it are open to everybody: use a network plugin that does)",
        SET_SECONDS,
    )
    kubectl("--namespace", ELSEWHERE, "delete", "networkpolicy", WALL["metadata"]["name"])
    wait_until(lambda: verdict(kubectl, source, target) is Reach.OPEN, "a connection", SET_SECONDS)


@pytest.mark.budget(MATRIX_SECONDS)
def test_pods_reach_what_the_page_says_and_nothing_else(small: LiveDeployment, places: Places) -> None:
    """From each kind of pod, a connection to every port that any of them has: those open that docs/security.md names, all others not answered."""
    seen = verdicts(small.kubectl, places, *places.spots)
    assert {name: {door for door, row in doors.items() if row == {Reach.OPEN}} for name, doors in seen.items()} == OPEN
    assert {
        name: {door for door, row in doors.items() if row != {Reach.DROPPED}} for name, doors in seen.items()
    } == OPEN


@pytest.mark.budget(PROBE_SECONDS)
def test_engines_and_routers_find_names(small: LiveDeployment, places: Places) -> None:
    """From an engine and a router, by DNS: the address of the router's Service."""
    address = small("get", "service", f"{small.name}-router", "--output=jsonpath={.spec.clusterIP}")
    program = f"import socket; print(socket.gethostbyname('{small.name}-router.{small.namespace}.svc'))"
    for role in ("prefill", "router"):
        assert small("exec", places.spots[role].pod, "--", "python3", "-c", program).strip() == address


@pytest.mark.budget(2 * SET_SECONDS + PROBE_SECONDS)
def test_a_stranger_with_the_routers_label_gets_what_the_router_gets(small: LiveDeployment, places: Places) -> None:
    """Label the stranger as the deployment's router: it reaches what the router does, and its own freedom is gone; take it off: all as before."""
    labels = {"pdserve.io/deployment": small.name, "pdserve.io/role": "router"}
    engine = places.doors["decode HTTP"][0]

    def relabel(*words: str) -> None:
        small("label", "pod", STRANGER, *words)

    relabel(*(f"{key}={value}" for key, value in labels.items()))
    try:
        source = places.spots["stranger"]
        wait_until(lambda: verdict(small.kubectl, source, engine) is Reach.OPEN, "a router's right", SET_SECONDS)
        (row,) = verdicts(small.kubectl, places, "stranger").values()
        assert {door for door, seen in row.items() if seen == {Reach.OPEN}} == OPEN["router"]
    finally:
        relabel(*(f"{key}-" for key in labels))
    wait_until(lambda: verdict(small.kubectl, source, engine) is Reach.DROPPED, "a shut door", SET_SECONDS)


@pytest.mark.budget(2 * SET_SECONDS + PROBE_SECONDS)
def test_metrics_are_read_from_labelled_namespaces_where_the_cluster_has_pod_monitors(
    small: LiveDeployment, places: Places, terminal: Terminal
) -> None:
    """Apply the engines' policy as it is where PodMonitors are, beside the present one: a namespace with the label reads metrics, and gets no further."""
    kubectl, source = small.kubectl, places.spots["engine's double"]
    kubectl("label", "namespace", ELSEWHERE, "pdserve.io/metrics=allowed")
    assert verdict(kubectl, source, places.doors["decode HTTP"][0]) is Reach.DROPPED, "there is no PodMonitor here"
    policy = scraped_policy(small, terminal)
    kubectl.apply([policy], namespace=small.namespace)
    try:
        open_to_it = OPEN["engine's double"] | ENGINE_HTTP
        door = places.doors["decode HTTP"][0]
        wait_until(lambda: verdict(kubectl, source, door) is Reach.OPEN, "metrics", SET_SECONDS)
        rows = verdicts(kubectl, places, "engine's double", "stranger")
        assert {door for door, seen in rows["engine's double"].items() if seen == {Reach.OPEN}} == open_to_it
        assert {door for door, seen in rows["stranger"].items() if seen == {Reach.OPEN}} == OPEN["stranger"]
    finally:
        small("delete", "networkpolicy", policy["metadata"]["name"])
        kubectl("label", "namespace", ELSEWHERE, "pdserve.io/metrics-")


def scraped_policy(small: LiveDeployment, terminal: Terminal) -> dict[str, Any]:
    """What `pdd render` makes of the engines' policy for a cluster with PodMonitors, under a name that is nobody's."""
    rendered = terminal(f"pdd render -f e2e/samples/cpu.yaml --namespace {small.namespace} --has PodMonitor")
    (spec,) = (
        item["spec"]
        for item in yaml.safe_load_all(rendered)
        if item and item["kind"] == "NetworkPolicy" and "matchExpressions" in item["spec"]["podSelector"]
    )
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return policy | {"metadata": {"name": "network-scraped"}, "spec": spec}
