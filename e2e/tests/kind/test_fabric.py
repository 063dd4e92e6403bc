"""EFA asked for where there is none: what users are told at each step, from a cluster without such nodes to sockets in EFA's place.

Samples are those of docs/samples, made small. Engines cannot run here for want of GPUs: the start script of theirs runs, on the transport that
preflight wrote, and starts a stand-in instead of vLLM. The node's devices are pretended; preflight is what finds that out.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.installation import Release
from pdd_e2e.kind_suite.large_samples import sample, shrunk, stand_in_objects
from pdd_e2e.kind_suite.pretended_node import PretendedNode, only_node
from pdd_e2e.kind_suite.terminal import Terminal, open_terminal

WHOLE: Final = "fabric-whole"
SHARED: Final = "fabric-shared"
EFA: Final = "vpc.amazonaws.com/efa"
TOLD_SECONDS: Final = 30  # from a change of the cluster to the condition that says so
SERVING_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Seen:
    """What a user sees at one step. `seconds`: from the change to the condition."""

    seconds: float
    conditions: dict[str, dict[str, str]]
    table: str
    status: str
    doctor: str
    events: list[str]

    def said(self, condition: str) -> tuple[str, str]:
        """Status and reason."""
        return self.conditions[condition]["status"], self.conditions[condition]["reason"]

    def message(self, condition: str) -> str:
        return self.conditions[condition]["message"]


@dataclass(slots=True)
class Road:
    """The steps, each made once and in order when a test asks for it or a later one."""

    deployment: LiveDeployment
    node: PretendedNode
    terminal: Terminal
    image: str
    seen: dict[str, Seen] = field(default_factory=dict)

    def at(self, name: str) -> Seen:
        steps: dict[str, tuple[Callable[[], None], Callable[[dict[str, dict[str, str]]], bool]]] = {
            "no node group": (self._apply, lambda now: reason(now, "DecodeAvailable") == "Unschedulable"),
            "no devices": (self.node.say_what_it_is, lambda now: EFA in now["DecodeAvailable"]["message"]),
            "no fabric": (self.node.offer, lambda now: reason(now, "TransportReady") == "FabricUnavailable"),
            "sockets": (self._allow_sockets, lambda now: reason(now, "DecodeAvailable") == "AllReady"),
        }
        for step, (change, told) in steps.items():
            if step not in self.seen:
                self.seen[step] = self._look(step, change, told)
            if step == name:
                return self.seen[step]
        raise ValueError(name)

    def _look(self, step: str, change: Callable[[], None], told: Callable[[dict[str, dict[str, str]]], bool]) -> Seen:
        began = time.monotonic()
        change()
        limit = SERVING_SECONDS if step == "sockets" else TOLD_SECONDS
        deployment = self.deployment
        wait_until(
            lambda: bool(now := deployment.conditions()) and told(now),
            step,
            limit,
            lambda: json.dumps(deployment.conditions(), indent=1),
        )
        seconds = time.monotonic() - began
        status = self.terminal.run(f"pdd status {deployment.name} --namespace {WHOLE}").stdout
        doctor = self.terminal.run(f"pdd doctor --accelerator p5en.48xlarge --namespace {WHOLE}").stdout
        table = deployment("get", "pdd", "--output", "wide")
        events = deployment.kubectl.get("--namespace", WHOLE, "events")["items"]
        lines = [
            f"{item['reason']}: {item['message']}"
            for item in events
            if item["involvedObject"]["kind"] == "PDDeployment"
        ]
        return Seen(seconds, deployment.conditions(), table, status, doctor, lines)

    def _apply(self) -> None:
        objects = [*stand_in_objects(), secret("hf-token", "token"), shrunk(sample("p5en-efa.yaml"), self.image)]
        self.deployment.kubectl.apply(objects, namespace=WHOLE)

    def _allow_sockets(self) -> None:
        """And decode alone: engines that may use EFA are never on the same node, and there is one."""
        change = {"transport": {"fallback": "Socket"}, "prefill": {"replicas": 0}, "decode": {"replicas": 1}}
        self.deployment("patch", "pdd", self.deployment.name, "--type=merge", "--patch", json.dumps({"spec": change}))


def reason(conditions: dict[str, dict[str, str]], condition: str) -> str:
    return conditions[condition]["reason"]


def secret(name: str, key: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: "none"}}


@pytest.fixture(scope="module")
def node(installed: Kubectl) -> Iterator[PretendedNode]:
    found = only_node(installed)
    found.take_back()
    with found.huge_pages():
        yield found
        found.take_back()


@pytest.fixture(scope="module")
def namespaces(installed: Kubectl) -> Iterator[None]:
    """Without Pod Security's restricted profile: engines that may use EFA need a capability."""
    installed("delete", "namespace", WHOLE, SHARED, "--ignore-not-found", "--timeout=90s", timeout_seconds=100)
    for name in (WHOLE, SHARED):
        installed.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])
    yield
    installed("delete", "namespace", WHOLE, SHARED, "--wait=false")


@pytest.fixture(scope="module")
def image(release: Release) -> str:
    """The router's, which has what the stand-in needs."""
    return next(name for name in release.images.all if "pdd-router" in name)


@pytest.fixture(scope="module")
def road(
    node: PretendedNode, namespaces: None, release: Release, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Road:
    home: Path = tmp_path_factory.mktemp("home")
    terminal = open_terminal(release.kubectl, release.helm, home)
    return Road(LiveDeployment(release.kubectl, WHOLE, "glm-5"), node, terminal, image)


def test_without_such_nodes_the_node_group_to_add_is_named(road: Road) -> None:
    """Apply docs/samples/p5en-efa.yaml where no node is a p5en: condition, table, `pdd status` and `pdd doctor` say what to add."""
    seen = road.at("no node group")
    assert seen.said("PrefillAvailable") == ("False", "Unschedulable")
    for text in (seen.message("PrefillAvailable"), seen.table, flat(seen.status)):
        assert "`spec.prefill.accelerator` asks for nodes of p5en.48xlarge" in text or (
            "`spec.decode.accelerator` asks for nodes of p5en.48xlarge" in text
        )
        assert "add a node group" in text
    assert "nodes p5en.48xlarge: none → Add a node group of p5en.48xlarge" in flat(seen.doctor)
    assert seen.seconds <= TOLD_SECONDS


def test_without_devices_the_resource_and_the_plugin_are_named(road: Road) -> None:
    """The node group is there and its nodes offer no EFA devices: the condition says which resource, which field and what to add."""
    seen = road.at("no devices")
    assert seen.said("DecodeAvailable") == ("False", "Unschedulable")
    message = seen.message("DecodeAvailable")
    assert f"Insufficient {EFA}" in message
    assert "`spec.decode.accelerator` asks for 16 EFA devices of p5en.48xlarge per pod" in message
    assert "add a node group of p5en.48xlarge with EFA interfaces whose nodes run the EFA device plugin" in message
    assert f"Insufficient {EFA}" in seen.table
    assert f"Insufficient {EFA}" in flat(seen.status)
    assert f"✗ {EFA}: 1 of 1 nodes of p5en.48xlarge offer less than 16" in flat(seen.doctor)
    assert seen.seconds <= TOLD_SECONDS


def test_without_a_fabric_preflight_refuses_and_says_what_to_do(road: Road) -> None:
    """The node offers 16 EFA devices that are none: a pod is placed there, and its preflight starts no engine."""
    seen = road.at("no fabric")
    placed = {name: pod for name, pod in road.deployment.pods().items() if pod["spec"].get("nodeName")}
    (engine,) = [name for name in placed if "router" not in name]
    assert placed[engine]["spec"]["containers"][0]["resources"]["limits"][EFA] == "16"
    assert seen.said("TransportReady") == ("False", "FabricUnavailable")
    for text in (seen.message("TransportReady"), flat(seen.status), " ".join(seen.events)):
        assert (
            f"Pod {engine}: EFADevicesMissing: the node shows 0 EFA devices, 16 are needed; use an instance type"
            in text
        )
    assert seen.said("Ready")[0] == "False"
    assert "or allow sockets with `spec.transport.fallback: Socket`" in flat(seen.status)
    role = "PrefillAvailable" if "prefill" in engine else "DecodeAvailable"
    assert seen.said(role) == ("False", "PreflightRefused")
    assert any(event.startswith("TransportDegraded: ") for event in seen.events)
    assert f"✓ {EFA}: at least 16" in flat(seen.doctor), "what a node offers is all that doctor can see"
    assert seen.seconds <= TOLD_SECONDS


def test_where_sockets_are_allowed_the_engine_starts_on_them_and_says_so(road: Road) -> None:
    """`fallback: Socket` on the same node: the start script takes sockets, the engine is asked through the router, and status tells."""
    seen = road.at("sockets")
    deployment = road.deployment
    assert seen.said("TransportReady") == ("True", "SocketFallback")
    told = (
        "EFA was asked for and is not there. EFADevicesMissing: KV moves over TCP, slowly, as transport.fallback allows"
    )
    for text in (seen.message("TransportReady"), flat(seen.status)):
        assert told in text
    assert any(told in event for event in seen.events)
    (engine,) = deployment.pods("decode")
    first, *_ = deployment("logs", engine, "--container", "engine").splitlines()
    assert json.loads(first) == {"backends": ["UCX"], "environment": {"UCX_TLS": "tcp,cuda_copy"}}
    wait_until(lambda: deployment.conditions()["RouterAvailable"]["status"] == "True", "the router", TOLD_SECONDS)
    with deployment.router_url() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="glm-5", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, timeout=20
        )
    assert answer.choices[0].message.content
    assert seen.seconds <= SERVING_SECONDS


def test_engines_on_a_part_of_a_node_ask_for_their_share(road: Road) -> None:
    """Three deployments of half a node each: every pod asks for 8 of 16 EFA devices, two are placed, the third is told what lacks."""
    road.at("sockets")
    kubectl = road.deployment.kubectl
    road.deployment("delete", "pdd", road.deployment.name, "--timeout=30s")
    kubectl.apply(stand_in_objects(), namespace=SHARED)
    halves = [LiveDeployment(kubectl, SHARED, f"half-{letter}") for letter in "abc"]
    for half in halves[:2]:
        apply_half(half, road.image)
    wait_until(lambda: all(map(placed_pods, halves[:2])), "two halves on the node", SERVING_SECONDS)
    apply_half(halves[2], road.image)
    wait_until(
        lambda: EFA in halves[2].conditions().get("PrefillAvailable", {}).get("message", ""),
        "a word on the third",
        TOLD_SECONDS,
    )
    limits = [
        pod["spec"]["containers"][0]["resources"]["limits"] for half in halves for pod in half.pods("prefill").values()
    ]
    assert [(item[EFA], item["nvidia.com/gpu"]) for item in limits] == [("8", "4")] * 3
    assert placed_pods(halves[2]) == []
    message = halves[2].conditions()["PrefillAvailable"]["message"]
    assert f"Insufficient {EFA}" in message
    assert "`spec.prefill.accelerator` asks for 8 EFA devices of p5en.48xlarge per pod" in message


def apply_half(half: LiveDeployment, image: str) -> None:
    """Its decode is left out: of one deployment there are never two engines on a node."""
    deployment = shrunk(sample("p5en-part-of-a-node.yaml"), image)
    deployment["metadata"]["name"] = half.name
    deployment["spec"]["decode"]["replicas"] = 0
    half.kubectl.apply([deployment], namespace=SHARED)


def placed_pods(half: LiveDeployment) -> list[str]:
    return [name for name, pod in half.pods("prefill").items() if pod["spec"].get("nodeName")]


def flat(text: str) -> str:
    """Without the breaks that a table's width makes."""
    return " ".join(text.split())
