"""Scenario 5, revision groups: what engines share is changed under traffic, and no request is lost, no pair is mixed, nothing is left behind.

In this order tests hand the deployment on: the third leaves it on another revision, the last brings the sample's back, in place.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest
import yaml

from pdd_e2e.kind_suite.conversation import QUESTIONS, Conversation, Turn
from pdd_e2e.kind_suite.deployment import LiveDeployment, is_ready, wait_until
from pdd_e2e.kind_suite.installation import SAMPLES, apply_sample
from pdd_e2e.kind_suite.inventory import of_namespace
from pdd_e2e.kind_suite.revision_groups import claim_key, engines, groups_of, mixed, pairs, revision, status
from pdd_e2e.kind_suite.terminal import Terminal
from pdd_e2e.kind_suite.users import talking

ROUTER_SECONDS = 60.0
ROLLBACK_SECONDS = 60.0
SURGE_SECONDS = 240.0
IN_PLACE_SECONDS = 180.0
ENGINES_SECONDS = 300.0  # on a machine that does other things, too: the budgets are for one that does not
LONG_SECONDS = 12.0  # of an answer: longer than the operator takes to decide, shorter than engines are drained for
LEAVING_SECONDS = 90.0
REFUSAL_SECONDS = 5.0
LOOK_SECONDS = 1.0
RECONCILE = "pdserve.io/reconcile"
ROLES = ("prefill", "decode")


def applied(small: LiveDeployment, changes: Mapping[str, Any]) -> None:
    """`kubectl apply` of the sample as a user has edited it: `changes` are merged into its spec."""
    sample = yaml.safe_load((SAMPLES / "cpu.yaml").read_text())
    edited = sample | {"spec": _merged(sample["spec"], changes)}
    small.kubectl("--namespace", small.namespace, "apply", "--filename", "-", stdin=json.dumps(edited))


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    nested = {key: _merged(old.get(key) or {}, value) for key, value in new.items() if isinstance(value, Mapping)}
    return {**old, **new, **nested}


def engine_uids(small: LiveDeployment) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for role in ROLES for name, pod in small.pods(role).items()}


def router_metrics(small: LiveDeployment) -> str:
    (router,) = small.pods("router")
    path = f"/api/v1/namespaces/{small.namespace}/pods/{router}:8000/proxy/metrics"
    return small.kubectl("get", "--raw", path)


@pytest.fixture(scope="session")
def other_engine_image(cluster: Any) -> str:
    """Another tag of the same image."""
    return str(cluster.images.engine[-1])


@pytest.fixture(scope="module")
def rolled(small: LiveDeployment) -> Iterator[LiveDeployment]:
    """The deployment with nothing that leaves, brought back to the sample when the tests here are through, however they ended."""
    wait_until(lambda: len(small.pods()) == len(ROLES) + 1, "the end of what other tests took away", LEAVING_SECONDS)
    yield small
    small("annotate", "pdd", small.name, f"{RECONCILE}-")
    apply_sample(small.kubectl, small.namespace, "cpu.yaml")
    small.wait("Ready", timeout_seconds=ENGINES_SECONDS)


@pytest.mark.budget(ROUTER_SECONDS)
def test_a_change_of_the_router_touches_no_engine(rolled: LiveDeployment) -> None:
    """Change a limit of the router and back: the router is another pod each time, engines are the same processes, the revision stays."""
    group, before, routers = revision(rolled), engine_uids(rolled), set(rolled.pods("router"))
    for changes in ({"router": {"runOnDecodeBelowTokens": 200}}, {}):
        applied(rolled, changes)
        rolled.wait("Ready", timeout_seconds=ROUTER_SECONDS)
        assert not routers & {name for name, pod in rolled.pods("router").items() if is_ready(pod)}
        routers |= set(rolled.pods("router"))
        assert engine_uids(rolled) == before
        assert revision(rolled) == group
    wait_until(lambda: len(rolled.pods("router")) == 1, "the end of former routers", 30)
    with rolled.router_url() as url:
        assert Conversation(url, "After the router", answer_tokens=8).ask(QUESTIONS[0]).text


@pytest.mark.budget(ROLLBACK_SECONDS)
def test_a_wrong_image_costs_nothing_and_is_rolled_back(rolled: LiveDeployment, terminal: Terminal) -> None:
    """Name an image that is nowhere: the old group serves, status says which image; apply the former spec: as before, same processes."""
    group, before = revision(rolled), engine_uids(rolled)
    here = of_namespace(rolled.kubectl, rolled.namespace)
    with rolled.router_url() as url, talking(url, ["Ada"]) as traffic:
        applied(rolled, {"engine": {"image": "localhost/pdd-engine:typo"}})
        wait_until(lambda: revision(rolled) not in ("", group), "another revision", 15)
        wrong = revision(rolled)
        with terminal.running(f"pdd status small --namespace {rolled.namespace} --watch") as watching:
            watching.wait_for(
                rf"{wrong} .*localhost/pdd-engine:typo of pod \S+ cannot be pulled.*spec\.engine\.image",
                timeout_seconds=30,
            )
        assert claim_key(rolled, wrong) != claim_key(rolled, group), "a group has a key of its own"
        told = rolled.conditions()
        assert told["Reconciled"]["reason"] == "RollingOut" and told["Ready"]["status"] == "Unknown"
        assert {told[name]["status"] for name in ("PrefillAvailable", "DecodeAvailable", "RouterAvailable")} == {"True"}
        applied(rolled, {})
        rolled.wait("Ready", timeout_seconds=30)
        wait_until(lambda: not _of_group(rolled, wrong), "no object of the wrong revision", 40)
    assert traffic.turns and not mixed(traffic.turns, rolled.name)
    assert engine_uids(rolled) == before and revision(rolled) == group
    assert of_namespace(rolled.kubectl, rolled.namespace) == here


@pytest.mark.budget(SURGE_SECONDS)
def test_another_revision_takes_over_without_losing_a_request(
    rolled: LiveDeployment, terminal: Terminal, other_engine_image: str
) -> None:
    """Change model revision, block size and image under traffic: a group beside the old one, which is drained and then gone.

    While both serve, a long answer begins on the old group, and only then may the operator go on: it ends whole.
    """
    old, key, router = revision(rolled), claim_key(rolled, revision(rolled)), set(rolled.pods("router"))
    with rolled.router_url() as url, ThreadPoolExecutor(1) as pool:
        held = Conversation(url, "A long story", "revisions-long")
        first = held.ask(QUESTIONS[0])
        assert groups_of(first, rolled.name) == {old}
        held.answer_tokens = max(held.answer_tokens // 2, round(first.answer_tokens / first.seconds * LONG_SECONDS))
        with (
            terminal.running(f"pdd status small --namespace {rolled.namespace} --watch") as watching,
            talking(url, ["Ada"]) as traffic,
        ):
            applied(rolled, {"model": {"revision": "v2"}, "engine": {"blockSize": 64, "image": other_engine_image}})
            wait_until(lambda: revision(rolled) not in ("", old), "another revision", 15)
            new = revision(rolled)
            wait_until(lambda: len(engines(rolled, new)) == len(ROLES), "engines of the new revision", 15)
            with paused(rolled):
                watching.wait_for(f"{new} current, never was available yet: 0 prefill and 0 decode", timeout_seconds=15)
                wait_until(lambda: all(map(is_ready, engines(rolled, new).values())), "ready engines", ENGINES_SECONDS)
                long = begun(pool, held)
            told = outlasts(long, rolled, old)
            rolled.wait("Ready", timeout_seconds=30)
            watching.wait_for(rf"is ready .*revision {new} .*No rollout\. {new}", timeout_seconds=10)
        after = Conversation(url, "Afterwards")
        again = [after.ask(question) for question in QUESTIONS[:2]]
    assert told.answer_tokens >= held.answer_tokens - 1 and groups_of(told, rolled.name) == {old}
    only_pairs_of(rolled, [*traffic.turns, told, *again], {old, new})
    assert again[1].read_tokens >= 64, "the new group reads back, too"
    assert set(rolled.pods("router")) == router, "the router was not touched"
    assert claim_key(rolled, new) != key
    wait_until(lambda: not _of_group(rolled, old), "no object of the old revision", 30)


@contextmanager
def paused(small: LiveDeployment) -> Iterator[None]:
    """The operator leaves the objects alone while the block runs."""
    small("annotate", "pdd", small.name, f"{RECONCILE}=paused", "--overwrite")
    try:
        yield
    finally:
        small("annotate", "pdd", small.name, f"{RECONCILE}-")


def begun(pool: ThreadPoolExecutor, conversation: Conversation) -> Future[Turn]:
    """An answer, of which the first tokens are there."""
    first = Event()
    answer = pool.submit(conversation.ask, QUESTIONS[1], on_first_chunk=first.set)
    assert first.wait(60)
    return answer


def outlasts(answer: Future[Turn], small: LiveDeployment, group: str) -> Turn:
    """The answer, which was not done when its group was told to go, and is when the group is gone."""
    wait_until(lambda: not any(map(is_ready, engines(small, group).values())), "the old group's end to begin", 15)
    assert not answer.done(), "it was to outlast the decision"
    wait_until(lambda: not engines(small, group), "the old group's end", 90)
    return answer.result(timeout=1)


def only_pairs_of(small: LiveDeployment, turns: list[Turn], groups: set[str]) -> None:
    """By receipts and by the router's metrics: every group has served, none together with another."""
    assert not mixed(turns, small.name)
    assert {group for turn in turns for group in groups_of(turn, small.name)} == groups
    served = pairs(router_metrics(small))
    assert {(group, group) for group in groups} <= set(served)
    assert all(prefill == decode for prefill, decode in served)


@pytest.mark.budget(IN_PLACE_SECONDS)
def test_in_place_never_has_more_engines_than_wanted_and_says_that_it_interrupts(rolled: LiveDeployment) -> None:
    """Another revision in place: never a second engine of a role; users are told 503 and when to come again, and are served."""
    old, router = revision(rolled), set(rolled.pods("router"))
    back = "revision" in rolled.kubectl.get("--namespace", rolled.namespace, "pdd", rolled.name)["spec"]["model"]
    changes = {"rollout": {"strategy": "InPlace"}, "model": {} if back else {"revision": "v2"}}
    with (
        rolled.router_url() as url,
        looking(rolled) as seen,
        talking(url, ["Grace"], patient=True) as traffic,
    ):
        wait_until(lambda: bool(traffic.turns), "an answer of the old engines", 60)
        applied(rolled, changes)
        wait_until(lambda: revision(rolled) != old, "another revision", 15)
        rolled.wait("Ready", timeout_seconds=ENGINES_SECONDS)
        served = len(traffic.turns)
        wait_until(lambda: len(traffic.turns) > served + 1, "answers of the new engines", 60)
    new = revision(rolled)
    assert seen.most_engines == dict.fromkeys(ROLES, 1), "those on their way out count, too"
    assert ("Reconciled", "Unknown", "RollingOut") in seen.conditions
    told = {(kind, truth) for kind, truth, _ in seen.conditions}
    assert {("Ready", "False"), ("PrefillAvailable", "False"), ("DecodeAvailable", "False")} <= told
    assert traffic.refusals, "one engine of a role: there is an interruption, as documented"
    assert max(refusal.seconds for refusal in traffic.refusals) < REFUSAL_SECONDS
    assert all(refusal.retry_after_seconds is not None for refusal in traffic.refusals)
    only_pairs_of(rolled, traffic.turns, {old, new})
    assert set(rolled.pods("router")) == router
    assert [group["revision"] for group in status(rolled)["groups"]] == [new]
    wait_until(lambda: not _of_group(rolled, old), "no object of the old revision", 30)


@dataclass(slots=True)
class Seen:
    """Of a deployment over a time: the most engines of each role that were there at once, and all conditions with their reasons."""

    most_engines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))
    conditions: set[tuple[str, str, str]] = field(default_factory=set)

    def look(self, small: LiveDeployment) -> None:
        roles = Counter(pod["metadata"]["labels"]["pdserve.io/role"] for pod in small.pods().values())
        self.most_engines = {role: max(most, roles[role]) for role, most in self.most_engines.items()}
        self.conditions |= {(kind, item["status"], item["reason"]) for kind, item in small.conditions().items()}


@contextmanager
def looking(small: LiveDeployment) -> Iterator[Seen]:
    """Again and again while the block runs."""
    seen, stop = Seen(), Event()

    def look() -> None:
        while not stop.wait(LOOK_SECONDS):
            seen.look(small)

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(look)
        try:
            yield seen
        finally:
            stop.set()
        going.result()


def _of_group(small: LiveDeployment, group: str) -> list[str]:
    """What is there with the group in its name."""
    return sorted(item for item in of_namespace(small.kubectl, small.namespace) if group in item)
