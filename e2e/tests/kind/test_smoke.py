"""From helm install to a conversation that is reused, and what a kill, a change of size and an uninstallation do to it.

Each test: steps (fixtures), one action, a result that a user could see.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event

import openai
import pytest

from pdd_e2e.kind_suite.conversation import QUESTIONS, Conversation, Turn
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.installation import SYSTEM, Release

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


def pdd(small: LiveDeployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line as a user has it, on this cluster."""
    command = [str(Path(sys.executable).with_name("pdd")), *arguments, "--namespace", small.namespace]
    env = {"KUBECONFIG": str(small.kubectl.kubeconfig), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def only(pods: dict[str, object]) -> str:
    (name,) = pods
    return name


def test_what_users_see_of_a_ready_deployment(small: LiveDeployment) -> None:
    """helm install → apply → Ready: kubectl's table, every condition, `pdd status` and `pdd doctor` agree."""
    conditions = {name: item["status"] for name, item in small.conditions().items()}
    assert conditions.pop("ReuseActive") in ("True", "Unknown")
    assert conditions == CONDITIONS
    header, row = small("get", "pdd").splitlines()
    assert header.split() == ["NAME", "MODEL", "PREFILL", "DECODE", "ROUTER", "READY", "AGE"]
    assert row.split()[:6] == ["small", "smollm2", "1", "1", "1", "True"]
    status = pdd(small, "status", "small")
    assert status.returncode == 0, status.stderr
    assert "agents/small is ready" in status.stdout
    doctor = pdd(small, "doctor")
    assert "enforces Pod Security level restricted; engines on sockets fit every level" in doctor.stdout
    assert "2 of 2 pods ready" in doctor.stdout


def test_the_router_is_reached_by_its_service_name(small: LiveDeployment) -> None:
    """From a pod, by DNS and the Service's address: the models are listed."""
    program = (
        "import urllib.request; print(urllib.request.urlopen('http://small-router.agents.svc:8000/v1/models').read())"
    )
    router = only(small.pods("router"))
    assert "smollm2" in small("exec", router, "--", "python", "-c", program)


@pytest.mark.parametrize("identity", [None, "conversation-1"], ids=["no id", "id"])
def test_a_streamed_conversation_is_reused(small: LiveDeployment, identity: str | None) -> None:
    """Three turns: prefill reads from decode what decode computed, and client, counters and status say so."""
    prefill = only(small.pods("prefill"))
    before = small.counter(prefill, READ_BYTES)
    with small.router_url() as url:
        conversation = Conversation(url, f"Geography {identity}", identity)
        turns = [conversation.ask(question) for question in QUESTIONS]
    assert all(turn.text for turn in turns)
    assert turns[0].read_tokens == 0, "nothing was there to be read"
    for earlier, turn in pairwise(turns):
        assert turn.cached_tokens >= 0.9 * earlier.prompt_tokens, "the client's usage says what was not computed again"
        assert turn.read_tokens >= 64, "the answer's blocks come from decode"
    read = small.counter(prefill, READ_BYTES) - before
    assert read == sum(turn.receipt["prefill"]["read_bytes"] for turn in turns) > 0
    small.wait("ReuseActive", timeout_seconds=90)


@pytest.mark.may_log("small-prefill")
def test_a_killed_prefill_pod_costs_no_conversation(small: LiveDeployment) -> None:
    """Its pod is deleted without grace under a conversation: nothing hangs, the conversation goes on, Ready comes back."""
    victim = only(small.pods("prefill"))
    before = small.uids()[victim]
    with small.router_url() as url:
        conversation = Conversation(url, "History of Rome", "killed")
        conversation.ask(QUESTIONS[0])
        small("delete", "pod", victim, "--grace-period=0", "--force")
        during = conversation.ask(QUESTIONS[1])
        assert during.seconds < 60
        wait_until(lambda: small.uids().get(victim, before) != before, "another prefill pod", 60)
        small.wait("Ready", timeout_seconds=240)
        after = conversation.ask(QUESTIONS[2])
    assert after.text


@pytest.mark.may_log("small-prefill-.*-1")
def test_prefill_is_scaled_under_traffic(small: LiveDeployment) -> None:
    """1→2→1 while two users talk: no request fails, the second pod serves, and what stays is what was there before."""
    first = small.uids()
    served, stop = [], Event()
    with small.router_url() as url, ThreadPoolExecutor(2) as pool:
        talking = [pool.submit(talk, url, stop, served, user) for user in ("Ada", "Grace")]
        try:
            scale(small, 2)
            small.wait("Ready", timeout_seconds=300)
            wait_until(lambda: len({turn.prefill for turn in served if turn.prefill}) > 1, "work for the second", 120)
            scale(small, 1)
            wait_until(lambda: len(small.pods("prefill")) == 1, "one prefill pod", 180)
            small.wait("Ready", timeout_seconds=60)
        finally:
            scale(small, 1)
            stop.set()
            for user in talking:
                user.result(timeout=120)
    assert small.uids() == first


def talk(url: str, stop: Event, served: list[Turn], user: str) -> None:
    """New conversations, one after the other; the first error ends it and the test."""
    number = 0
    while not stop.is_set():
        number += 1
        conversation = Conversation(url, f"{user} asks about subject {number}", answer_tokens=8)
        served.extend(conversation.ask(question) for question in QUESTIONS[:2])


def scale(small: LiveDeployment, replicas: int) -> None:
    small(
        "patch", "pdd", small.name, "--type=merge", "--patch", f'{{"spec": {{"prefill": {{"replicas": {replicas}}}}}}}'
    )


@pytest.mark.may_log(".")
def test_uninstalled_it_goes_on_serving_and_reinstalled_it_adopts(small: LiveDeployment, release: Release) -> None:
    """helm uninstall with a deployment that serves: it answers; helm install: the same pods, Ready, nothing made anew."""
    before = small.uids()
    release.uninstall()
    try:
        assert release.kubectl.get("--namespace", SYSTEM, "deployments")["items"] == []
        with small.router_url() as url:
            assert Conversation(url, "Nobody operates").ask(QUESTIONS[0]).text
    finally:
        release.install()
    scale(small, 1)
    small.wait("Ready", timeout_seconds=90)
    assert small.uids() == before


def test_unknown_models_are_refused_in_words(small: LiveDeployment) -> None:
    """What a client sees that asks for a model which is not there."""
    with (
        small.router_url() as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.NotFoundError) as refused,
    ):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "Hello"}])
    assert "The model does not exist" in str(refused.value)
