"""Scenario 8: what one tenant said is never another's, neither of one router nor of two namespaces.

A second deployment, with keys for three tenants, runs in a namespace of its own. It has the name of the first, so that no name and no label keeps
them apart. That nothing is reused across proves something only where the same prompt is reused within: each test has both.
"""

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import openai
import pytest
import yaml

from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.kind_suite.conversation import QUESTIONS, Conversation, Turn
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.installation import SAMPLES, clear_tenant, end_tenant, make_tenant
from pdd_e2e.kind_suite.reachability import Reach, Spot, listening, reached, reached_from, running_spots

NAMESPACE: Final = "tenants"
ACME, ACME_PHONE, GLOBEX, INITECH = "acme-desktop-key", "acme-phone-key", "globex-only-key", "initech-only-key"
KEYS: Final = {ACME: "acme", ACME_PHONE: "acme", GLOBEX: "globex", INITECH: "initech"}
START_SECONDS: Final = 240  # 75 on an idle machine
TALK_SECONDS: Final = 90
LOOK_SECONDS: Final = 20
REACH_SECONDS: Final = 30
SET_SECONDS: Final = 20
INTRODUCTION_SECONDS: Final = 40
SHORT: Final = 8
PORTS: Final = {"HTTP": 8000, "side channel": 5600, "claim channel": 6600}
NO_WALLS: Final = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "tenants-no-walls"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]},
}
_INTRODUCES: Final = """
import json, sys, urllib.request
owners = [{"host": host, "port": 6600} for host in sys.argv[1:]]
body = {
    "model": "smollm2", "prompt": "Hello", "max_tokens": 1,
    "kv_transfer_params": {"claim": {"version": 1, "owners": owners, "introduce": True}},
}
request = urllib.request.Request(
    "http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
with urllib.request.urlopen(request, timeout=35) as answer:
    print(json.dumps(json.load(answer)["kv_transfer_params"]["claim"]))
"""


@pytest.fixture(scope="module")
def tenants(small: LiveDeployment) -> Iterator[LiveDeployment]:
    """The sample cpu.yaml with keys, in another namespace, Ready."""
    kubectl = small.kubectl
    clear_tenant(kubectl, NAMESPACE)
    make_tenant(kubectl, NAMESPACE)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}}
    kubectl.apply([secret | {"stringData": {"keys.yaml": yaml.safe_dump(KEYS)}}, with_keys()], namespace=NAMESPACE)
    deployment = LiveDeployment(kubectl, NAMESPACE, small.name)
    try:
        deployment.wait("Ready", timeout_seconds=START_SECONDS)
        yield deployment
    finally:
        end_tenant(kubectl, NAMESPACE)


def with_keys() -> dict[str, Any]:
    deployment: dict[str, Any] = yaml.safe_load((SAMPLES / "cpu.yaml").read_text())
    spec = deployment["spec"]
    spec["engine"] |= {"drainTimeoutSeconds": 0}
    spec["router"] |= {"authentication": {"apiKeysSecretName": "keys"}}
    return deployment


@pytest.mark.budget(TALK_SECONDS)
def test_the_same_text_is_reused_for_one_tenant_and_computed_for_another(tenants: LiveDeployment) -> None:
    """One tenant talks; by its other key the same prompt is cached, for another tenant it is not; nor is the whole history, by the same id."""
    topic, identity = f"Gardens {time.time_ns()}", f"garden-{time.time_ns()}"
    with tenants.router_url() as url:
        acme = Conversation(url, topic, identity, api_key=ACME)
        acme.ask(QUESTIONS[0])
        phone = Conversation(url, topic, answer_tokens=SHORT, api_key=ACME_PHONE).ask(QUESTIONS[0])
        globex = [Conversation(url, topic, answer_tokens=SHORT, api_key=GLOBEX).ask(QUESTIONS[0]) for _ in range(2)]
        goes_on = acme.ask(QUESTIONS[1])
        taken = Conversation(url, topic, identity, SHORT, list(acme.messages), INITECH).ask(QUESTIONS[2])
        own = acme.ask(QUESTIONS[2])
    assert mostly_reused(phone) and mostly_reused(globex[1]), "a tenant has what it asked before"
    assert goes_on.read_tokens >= 64 and own.read_tokens >= 64, "and what it was answered"
    for turn in (globex[0], taken):
        assert turn.receipt["prefill"] is not None, "prefill computed it, and has a receipt"
        assert turn.cached_tokens == 0, turn.receipt


def mostly_reused(turn: Turn) -> bool:
    return turn.cached_tokens >= 0.9 * turn.prompt_tokens


@pytest.mark.budget(LOOK_SECONDS)
@pytest.mark.parametrize("key", ["none", "acme-desktop-kez"])
def test_who_has_no_key_is_nobodys_tenant(tenants: LiveDeployment, key: str) -> None:
    """Ask with a key that is not in the Secret: 401 in words, without an engine being asked."""
    before = prompt_tokens(tenants)
    with tenants.router_url() as url, pytest.raises(openai.AuthenticationError) as refused:
        Conversation(url, "Nobody", api_key=key).ask("Hello")
    assert "The API key is not known" in str(refused.value)
    assert prompt_tokens(tenants) == before


def prompt_tokens(deployment: LiveDeployment) -> list[float]:
    """Of all requests, by engine."""
    engines = [*deployment.pods("prefill"), *deployment.pods("decode")]
    return [deployment.counter(engine, "vllm:prompt_tokens_total") for engine in engines]


def spots(deployment: LiveDeployment) -> dict[str, Spot]:
    """Its pods by role."""
    found = running_spots(deployment.kubectl, deployment.namespace, f"pdserve.io/deployment={deployment.name}", 10)
    return {role: next(found[name] for name in deployment.pods(role)) for role in ("prefill", "decode", "router")}


@pytest.mark.budget(REACH_SECONDS)
def test_pods_of_one_namespace_do_not_reach_engines_of_the_other(
    small: LiveDeployment, tenants: LiveDeployment
) -> None:
    """From engines and routers of each, all ports that the other's engines listen on: none answers, while each engine answers its own."""
    places = {deployment.namespace: spots(deployment) for deployment in (small, tenants)}
    engines = {
        (namespace, role): found[role].ports(listening(small.kubectl, found[role]))
        for namespace, found in places.items()
        for role in ("prefill", "decode")
    }
    assert all(len(targets) > len(PORTS) for targets in engines.values()), "NIXL has ports of its own"
    targets = [target for row in engines.values() for target in row]
    for namespace, sources in places.items():
        for source, row in reached_from(small.kubectl, sources, targets).items():
            foreign = {row[target] for key, aims in engines.items() if key[0] != namespace for target in aims}
            assert foreign == {Reach.DROPPED}, f"from {source} in {namespace}"
        assert within(small.kubectl, sources) == {Reach.OPEN}


def within(kubectl: Kubectl, own: dict[str, Spot]) -> set[Reach]:
    """What becomes of the connections that one deployment lives by."""
    fabric = own["decode"].ports([PORTS["side channel"], PORTS["claim channel"]])
    http = [own[role].port(PORTS["HTTP"]) for role in ("prefill", "decode")]
    return {*reached(kubectl, own["prefill"], fabric).values(), *reached(kubectl, own["router"], http).values()}


@pytest.fixture
def no_walls(small: LiveDeployment, tenants: LiveDeployment) -> Iterator[None]:
    """No policy is in force in either namespace."""
    for deployment in (small, tenants):
        small.kubectl.apply([NO_WALLS], namespace=deployment.namespace)
    yield
    for deployment in (small, tenants):
        deployment("delete", "networkpolicy", NO_WALLS["metadata"]["name"])


@pytest.mark.budget(SET_SECONDS + INTRODUCTION_SECONDS)
@pytest.mark.usefixtures("no_walls")
def test_no_claim_goes_across_where_the_network_lets_everybody_pass(
    small: LiveDeployment, tenants: LiveDeployment
) -> None:
    """With the network open, name a prefill engine its own decode engine and the other namespace's: it gets on terms with its own only."""
    own, foreign = spots(tenants), spots(small)
    door = foreign["decode"].port(PORTS["claim channel"])
    wait_until(
        lambda: reached(small.kubectl, own["prefill"], [door])[door] is Reach.OPEN, "an open network", SET_SECONDS
    )
    owners = (own["decode"].address, foreign["decode"].address)
    said = tenants("exec", own["prefill"].pod, "--", "python3", "-c", _INTRODUCES, *owners)
    receipt = json.loads(said)
    assert receipt["outcome"] == "Introduced"
    assert [owner["host"] for owner in receipt["connected"]] == [own["decode"].address]
