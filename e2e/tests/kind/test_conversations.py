"""Scenario 1, first contact: what a user types, sees and gets, from Helm's notes to a conversation whose history is reused.

Each test: steps (fixtures and docstring), one action, a result that a user could see, within a budget.
"""

import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import openai
import pytest

from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.kind_suite.conversation import QUESTIONS, Conversation
from pdd_e2e.kind_suite.deployment import LiveDeployment
from pdd_e2e.kind_suite.installation import SYSTEM, Release, clear_tenant, end_tenant
from pdd_e2e.kind_suite.terminal import Terminal, guide_blocks, indented_commands

LOOK_SECONDS = 30.0
CALLER_SECONDS = 45.0
CONVERSATION_SECONDS = 60.0
REUSE_SECONDS = 90.0
NOTES_SECONDS = 60.0
GUIDE_SECONDS = 60.0
READ_BYTES = "vllm:nixl_bytes_transferred_sum"
CONDITIONS = {
    "Ready": "True",
    "Accepted": "True",
    "Reconciled": "True",
    "PrefillAvailable": "True",
    "DecodeAvailable": "True",
    "RouterAvailable": "True",
    "TransportReady": "True",
    "Stalled": "False",
}
OWN_NAMESPACE = "conversations-own"


def only(pods: dict[str, object]) -> str:
    (name,) = pods
    return name


@pytest.fixture
def own_namespace(installed: Kubectl) -> Iterator[str]:
    clear_tenant(installed, OWN_NAMESPACE)  # that of an earlier test
    yield OWN_NAMESPACE
    end_tenant(installed, OWN_NAMESPACE)


@pytest.mark.budget(LOOK_SECONDS)
def test_what_users_see_of_a_ready_deployment(small: LiveDeployment, terminal: Terminal) -> None:
    """A deployment is Ready; look: kubectl's table, every condition, `pdd status` and `pdd doctor` agree."""
    conditions = {name: item["status"] for name, item in small.conditions().items()}
    assert conditions.pop("ReuseActive") in ("True", "Unknown")
    assert conditions == CONDITIONS
    header, row = small("get", "pdd").splitlines()
    assert header.split() == ["NAME", "MODEL", "PREFILL", "DECODE", "ROUTER", "READY", "AGE"]
    assert row.split()[:6] == ["small", "smollm2", "1", "1", "1", "True"]
    status = terminal(f"pdd status small --namespace {small.namespace}")
    assert f"{small.namespace}/small is ready" in status
    doctor = terminal.run(f"pdd doctor --namespace {small.namespace}").stdout
    assert "enforces Pod Security level restricted; engines on sockets fit every level" in doctor
    assert "2 of 2 pods ready" in doctor


@pytest.mark.budget(LOOK_SECONDS)
def test_a_description_tells_the_story(small: LiveDeployment, terminal: Terminal) -> None:
    """A deployment is Ready; `kubectl describe`: what was made and that it became ready, each condition in a sentence."""
    told = terminal(f"kubectl describe pdd/small --namespace {small.namespace}")
    for words in (
        "Prefill, decode and router are available.",
        "The spec keeps every rule.",
        "Every object is as revision",
        "KV moves over sockets, as the spec asks.",
        f"http://small-router.{small.namespace}.svc:8000/v1",
    ):
        assert words in told
    events = small.kubectl.get(
        "--namespace", small.namespace, "events", "--field-selector=involvedObject.kind=PDDeployment"
    )["items"]
    assert {"CreatedSecrets", "AppliedObjects", "BecameReady"} <= {event["reason"] for event in events}
    assert all(not event["message"][0].islower() and len(event["message"]) <= 1024 for event in events)


@pytest.mark.budget(CALLER_SECONDS)
def test_the_router_is_reached_by_its_service_name(small: LiveDeployment, release: Release, own_namespace: str) -> None:
    """From a pod of another namespace, by DNS and the Service's address: the models are listed."""
    endpoint = small.kubectl.get("--namespace", small.namespace, "pdd", small.name)["status"]["endpoint"]
    program = f"import urllib.request; print(urllib.request.urlopen('{endpoint}/models', timeout=20).read())"
    small.kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": own_namespace}}])
    small.kubectl("--namespace", own_namespace, "wait", "--for=create", "serviceaccount/default", "--timeout=15s")
    (image,) = (name for name in release.images.all if "/pdd-router:" in name)
    caller = ("--image", image, "--restart=Never", "--command", "--", "python", "-c", program)
    small.kubectl("--namespace", own_namespace, "run", "caller", *caller)
    ended = "--for=jsonpath={.status.phase}=Succeeded"
    small.kubectl("--namespace", own_namespace, "wait", "pod/caller", ended, "--timeout=30s")
    assert "smollm2" in small.kubectl("--namespace", own_namespace, "logs", "caller")


@pytest.mark.budget(CONVERSATION_SECONDS + REUSE_SECONDS)
@pytest.mark.parametrize("identity", [None, "conversation-1"], ids=["no id", "id"])
def test_a_streamed_conversation_is_reused(small: LiveDeployment, identity: str | None) -> None:
    """Three turns by the openai client: prefill reads from decode what decode computed, and client, counters and status say so."""
    prefill = only(small.pods("prefill"))
    before = small.counter(prefill, READ_BYTES)
    began = time.monotonic()
    with small.router_url() as url:
        conversation = Conversation(url, f"Geography {time.time_ns()}", identity and f"{identity}-{time.time_ns()}")
        turns = [conversation.ask(question) for question in QUESTIONS]
    assert time.monotonic() - began < CONVERSATION_SECONDS
    assert all(turn.text for turn in turns)
    assert turns[0].read_tokens == 0, "nothing was there to be read"
    for earlier, turn in pairwise(turns):
        assert turn.cached_tokens >= 0.9 * earlier.prompt_tokens, "the client's usage says what was not computed again"
        assert turn.read_tokens >= 64, "the answer's blocks come from decode"
    read = small.counter(prefill, READ_BYTES) - before
    assert read == sum(turn.receipt["prefill"]["read_bytes"] for turn in turns) > 0
    small.wait("ReuseActive", timeout_seconds=REUSE_SECONDS)


@pytest.mark.budget(LOOK_SECONDS)
def test_unknown_models_are_refused_in_words(small: LiveDeployment) -> None:
    """Ask for a model which is not there: the client's own error, with a sentence."""
    with (
        small.router_url() as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.NotFoundError) as refused,
    ):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "Hello"}])
    assert "The model does not exist" in str(refused.value)


@pytest.fixture
def forgets_samples(installed: Kubectl) -> Iterator[None]:
    """Takes away what Helm's notes make in the namespace `default`."""
    yield
    installed("--namespace", "default", "delete", "pdd", "small", "--ignore-not-found")


@pytest.mark.budget(NOTES_SECONDS)
@pytest.mark.usefixtures("forgets_samples")
def test_the_charts_notes_lead_to_a_deployment_that_says_what_it_lacks(terminal: Terminal) -> None:
    """Type what `helm install` printed; there is no GPU here: `pdd status --watch` tells how it goes on, and what to add."""
    notes = terminal(f"helm get notes pdd-operator --namespace {SYSTEM}")
    wait, apply, look = indented_commands(notes)
    assert "successfully rolled out" in terminal(wait)
    assert "pddeployment.pdserve.io/small created" in terminal(apply)
    with terminal.running("pdd status small --namespace default --watch") as watching:
        watching.wait_for(
            r"default/small is not ready.*Unschedulable.*asks for nodes of g6e\.12xlarge", timeout_seconds=30
        )
    assert "spec.prefill.accelerator" in watching.said
    header, row = terminal(look).splitlines()
    assert header.split()[:6] == ["NAME", "MODEL", "PREFILL", "DECODE", "ROUTER", "READY"]
    assert row.split()[0] == "small" and "False" in row.split()


@pytest.mark.budget(GUIDE_SECONDS)
def test_the_install_guide_holds_on_this_cluster(small: LiveDeployment, terminal: Terminal, own_namespace: str) -> None:
    """docs/install.md from the model on: its blocks as they stand, the first in a namespace of its own as there is one `agents` here."""
    create, look = guide_blocks("3. A model")
    assert "condition met" in terminal(create.replace("agents", own_namespace))
    assert "condition met" in terminal(look)
    forward, request = re.fullmatch(
        r"(kubectl port-forward .*)\n((?:curl).*)", guide_blocks("3. A model", language="text")[0], re.DOTALL
    ).groups()
    with terminal.running(forward) as forwarding:
        forwarding.wait_for("Forwarding from", timeout_seconds=10)
        answer = terminal(request.replace("Qwen/Qwen3-8B", "smollm2"))
    assert '"role":"assistant"' in answer.replace(" ", "")


@pytest.mark.budget(LOOK_SECONDS)
def test_the_readmes_commands_hold_on_this_cluster(small: LiveDeployment, terminal: Terminal) -> None:
    """README, On Kubernetes: what can be typed where all is installed, in the namespace of the deployment."""
    block = next(text for text in _blocks(ROOT / "README.md") if text.startswith("pdd doctor"))
    doctor, install, apply, status = (line.partition("#")[0].strip() for line in block.splitlines())
    assert terminal.run(f"{doctor} --namespace {small.namespace}").returncode in (0, 1)
    refused = terminal.run(install)
    assert refused.returncode != 0 and "cannot reuse a name that is still in use" in refused.stderr
    assert "created (server dry run)" in terminal(f"{apply} --namespace default --dry-run=server")
    assert "is ready" in terminal(f"{status} --namespace {small.namespace}")


def _blocks(document: Path) -> list[str]:
    return re.findall(r"^```\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
