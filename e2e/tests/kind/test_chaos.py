"""Pods are killed under traffic: who notices, and what.

Steps, once: prefill 2, decode 2, router 2; users hold conversations of three turns through the Service, from a pod in the cluster, and one
has a long answer streamed all the time, one a long prompt prefilled. Actions: the tests, in their order, each in a part of the time that PDD_E2E_CHAOS_SECONDS gives
(300); PDD_E2E_SEED repeats what was done at random. Result: what each test says; in all of it nothing hangs, no word is wrong, no answer ends
in a way that a client could take for whole, and afterwards everything is as before.
"""

import os
import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.control_plane.binaries import Say
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.faults import Fault, Harm, Standing, draw, table
from pdd_e2e.kind_suite.installation import SYSTEM
from pdd_e2e.kind_suite.traffic import Traffic, arranged, conversing
from pdd_e2e.kind_suite.traffic_plan import LONG, READER
from pdd_e2e.kind_suite.traffic_verdict import Attempt, Heard, failures, kinds, wrong

USERS = 3
GROWN_SECONDS = 300
BACK_SECONDS = 180
QUIET_SECONDS = 60
TOLD_SECONDS = 15
ENDPOINTS_SECONDS = 15
AT_RANDOM_SECONDS = 60  # at least, where what is done in turn took the time
BETWEEN_FAULTS_SECONDS = (4.0, 16.0)
RETRIES = "pdd_router_retries_total"
OPERATOR = "deployment/pdd-operator"
RESULTS = ROOT / "out" / "kind"

# A decode engine that dies takes the streams that it has begun with it; its router says so and logs it.
ENGINE_DIED = ("Broke stream", "Lost engine")
# What users of a router that dies see: it cannot tell them any more.
ROUTER_DIED = {"Cut", "Dropped", "Unreachable"}


@dataclass(slots=True)
class Scene:
    """What the tests of this module share."""

    small: LiveDeployment
    traffic: Traffic
    harm: Harm
    chance: random.Random
    began: float = field(default_factory=time.time)
    heard: Heard | None = None

    @property
    def left_seconds(self) -> float:
        """Of the time for chaos."""
        return self.began + float(os.environ.get("PDD_E2E_CHAOS_SECONDS", "300")) - time.time()


@pytest.fixture(scope="module")
def scene(small: LiveDeployment, say: Say) -> Iterator[Scene]:
    seed = os.environ.get("PDD_E2E_SEED") or secrets.token_hex(4)
    say(f"to do the same again: PDD_E2E_SEED={seed}")
    with arranged(small, routers=2) as keys:
        small.patch({"prefill": {"replicas": 2}, "decode": {"replicas": 2}})
        try:
            with conversing(small, keys, USERS, LONG, READER) as traffic:
                small.wait("Ready", timeout_seconds=GROWN_SECONDS)
                wait_for_engines(small, BACK_SECONDS)
                traffic.wait_for_answers(4, timeout_seconds=90)
                yield Scene(small, traffic, Harm(small), random.Random(seed))
        finally:
            small.patch({"prefill": {"replicas": 1}, "decode": {"replicas": 1}})
    wait_until(lambda: len(small.pods()) == 3, "the pods of the beginning", BACK_SECONDS, lambda: small("get", "pods"))
    small.wait("Ready", timeout_seconds=BACK_SECONDS)


@pytest.mark.may_log(*ENGINE_DIED)
@pytest.mark.may_restart("prefill")
def test_without_operator_prefill_engines_die_and_nobody_notices(scene: Scene, say: Say) -> None:
    """R7, R8: no operator; one prefill engine dies, then both in the midst of prefilling: every answer whole, all back by their StatefulSet."""
    small, harm = scene.small, scene.harm
    since = time.time()
    small.kubectl("--namespace", SYSTEM, "scale", OPERATOR, "--replicas=0")
    try:
        wait_until(lambda: not harm.operators(), "no operator", 30)
        harm.delete("prefill", small.ready_pods("prefill")[0])
        wait_for_engines(small, BACK_SECONDS)
        victims = small.ready_pods("prefill")
        before = {pod: harm.life("prefill", pod) for pod in victims}
        scene.traffic.wait(lambda heard: heard.waits(READER), "a prompt that is prefilled", 60)
        for fault in [harm.crash("prefill", pod) for pod in victims]:
            harm.wait_for_another_life(fault, before[fault.pod])
        scene.traffic.wait_for_answers(6, timeout_seconds=90)
    finally:
        small.kubectl("--namespace", SYSTEM, "scale", OPERATOR, "--replicas=2")
    small.kubectl("--namespace", SYSTEM, "rollout", "status", OPERATOR, "--timeout=60s", timeout_seconds=90)
    asked = since_then(scene.traffic.heard(), since)
    retried = sum(small.counter(pod, RETRIES, having='role="Prefill"') for pod in small.pods("router"))
    say(f"{len(asked)} answers without operator, three prefill engines killed, {retried:.0f} prefills made elsewhere")
    assert failures(asked) == []
    assert retried >= 1, "a prefill engine died while it prefilled"


@pytest.mark.may_log(*ENGINE_DIED)
def test_who_reads_a_stream_of_a_dying_decode_engine_is_told(scene: Scene, say: Say) -> None:
    """R9: a decode engine dies under a long stream: error event and close, no [DONE], in time; whoever waits is served by the other."""
    small, harm = scene.small, scene.harm
    wait_for_decode(small)
    since = time.time()
    (stream, *_) = scene.traffic.wait(long_stream, "a long stream", 60).running(LONG)
    before = harm.life("decode", stream.decode)
    fault = harm.delete("decode", stream.decode)
    harm.wait_for_another_life(fault, before)

    def ended(heard: Heard) -> bool:
        return any(item.began == stream.began for item in heard.attempts)

    heard = scene.traffic.wait(ended, "the end of the stream", TOLD_SECONDS + 15)
    scene.traffic.wait_for_answers(4, timeout_seconds=90)
    (broken,) = [item for item in heard.attempts if item.began == stream.began]
    say(
        f"told {broken.ended - fault.at:.1f} s after the kill, {broken.ended - (broken.last_at or 0):.1f} s after the last word"
    )
    assert broken.kind == "Told stream_broken"
    assert broken.ended - fault.at < TOLD_SECONDS
    failed = [item for item in failures(scene.traffic.heard().attempts) if item.ended >= since]
    assert {(item.kind, item.decode) for item in failed} == {("Told stream_broken", stream.decode)}


def test_a_router_dies_and_the_next_request_is_served(scene: Scene, say: Say) -> None:
    """One of two routers dies: its own streams end at once, nothing else; soon every request gets to the other."""
    small, since = scene.small, time.time()
    busiest = max(small.ready_pods("router"), key=lambda pod: small.counter(pod, "pdd_router_in_flight_requests"))
    fault = scene.harm.delete("router", busiest)
    scene.traffic.wait_for_answers(6, timeout_seconds=90)
    wait_until(lambda: len(small.ready_pods("router")) == 2, "two routers", 60)
    failed = [item for item in failures(scene.traffic.heard().attempts) if item.ended >= since]
    late = [item for item in failed if item.ended > fault.at + ENDPOINTS_SECONDS]
    say(f"a router was killed: {dict(kinds(failed))}")
    assert failed, "it served nobody"
    assert {item.outcome for item in failed} <= ROUTER_DIED
    assert late == []


def test_restarts_with_grace_cut_nothing(scene: Scene, say: Say) -> None:
    """R13: routers and decode engines are restarted one by one, as `kubectl rollout restart` does: every answer whole."""
    small = scene.small
    wait_for_engines(small, BACK_SECONDS)
    before = small.uids()
    since = time.time()
    decodes = next(iter(small.pods("decode").values()))["metadata"]["ownerReferences"][0]["name"]
    small("rollout", "restart", f"deployment/{small.name}-router")
    small("rollout", "restart", f"statefulset/{decodes}")
    small("rollout", "status", f"deployment/{small.name}-router", "--timeout=120s", timeout_seconds=130)
    small("rollout", "status", f"statefulset/{decodes}", "--timeout=300s", timeout_seconds=310)
    scene.traffic.wait_for_answers(3, timeout_seconds=90)
    after = small.uids()
    asked = since_then(scene.traffic.heard(), since)
    say(f"{len(asked)} answers during restarts of {time.time() - since:.0f} s: {dict(kinds(asked))}")
    assert failures(asked) == []
    assert not set(before.values()) & {uid for name, uid in after.items() if "prefill" not in name}


@pytest.mark.may_log(*ENGINE_DIED)
@pytest.mark.may_restart("decode", "prefill")
def test_pods_are_killed_at_random(scene: Scene, say: Say) -> None:
    """What is left of the time: any pod of a role that is whole, deleted or crashed; users see broken streams of killed engines and routers only."""
    since = time.time()
    seconds = max(scene.left_seconds, AT_RANDOM_SECONDS)
    while time.time() < since + seconds:
        drawn = draw(scene.chance, standing(scene))
        if drawn is not None:
            role, pod, how = drawn
            (scene.harm.crash if how == "Crashed" else scene.harm.delete)(role, pod)
        time.sleep(scene.chance.uniform(*BETWEEN_FAULTS_SECONDS))  # the rhythm of the chaos; nothing is waited for
    say(f"killed at random:\n{table(since_faults(scene, since), scene.began)}")
    seen = failures(since_then(scene.traffic.heard(), since))
    assert since_faults(scene, since)
    assert {item.kind for item in seen} <= ROUTER_DIED | {"Told stream_broken"}


@pytest.mark.may_log(*ENGINE_DIED)
def test_afterwards_everything_is_as_before(scene: Scene, say: Say) -> None:
    """Ready in time; no hang, no wrong word, no false end in all that was asked; nothing held, nothing in flight."""
    began = time.monotonic()
    scene.small.wait("Ready", timeout_seconds=BACK_SECONDS)
    wait_for_engines(scene.small, BACK_SECONDS)
    say(f"Ready {time.monotonic() - began:.0f} s after the last kill")
    scene.traffic.wait_for_answers(4, timeout_seconds=90)
    heard = scene.traffic.stop()
    report(scene, heard, say)
    assert wrong(heard) == []
    assert [item for item in heard.attempts if item.outcome in ("Hang", "Malformed", "Refused")] == []
    wait_until(lambda: is_quiet(scene.small), "quiet engines and routers", QUIET_SECONDS)


def report(scene: Scene, heard: Heard, say: Say) -> None:
    """Requests by how they ended, and what was done, for people."""
    counted = "\n".join(f"{number:>6}  {kind}" for kind, number in kinds(heard.attempts).most_common())
    longest = max(item.ended - item.began for item in heard.attempts)
    text = f"requests by how they ended (longest {longest:.1f} s):\n{counted}\n\nkilled:\n{table(scene.harm.done, scene.began)}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "chaos.txt").write_text(f"{text}\n")
    say(text)


def is_quiet(small: LiveDeployment) -> bool:
    """No block in use on any engine, no request in any router."""
    used = [
        small.samples(pod, "vllm:kv_cache_usage_perc") for role in ("prefill", "decode") for pod in small.pods(role)
    ]
    asked = [small.samples(pod, "pdd_router_in_flight_requests") for pod in small.pods("router")]
    return all(values == [0.0] for values in [*used, *asked])


def wait_for_engines(small: LiveDeployment, timeout_seconds: float) -> None:
    """Until all four are ready."""

    def whole() -> bool:
        return len(small.ready_pods("prefill")) == len(small.ready_pods("decode")) == 2

    wait_until(whole, "two and two engines", timeout_seconds, lambda: small("get", "pods"))


def wait_for_decode(small: LiveDeployment) -> None:
    wait_until(lambda: len(small.ready_pods("decode")) == 2, "two decode engines", BACK_SECONDS)


def long_stream(heard: Heard) -> bool:
    """Whether one is under way and has long to go."""
    return bool(heard.running(LONG))


def since_then(heard: Heard, since: float) -> list[Attempt]:
    return [item for item in heard.attempts if item.began >= since]


def since_faults(scene: Scene, since: float) -> list[Fault]:
    return [fault for fault in scene.harm.done if fault.at >= since]


def standing(scene: Scene) -> dict[str, Standing]:
    """Of all roles."""
    ours = {role: Standing(2, scene.small.ready_pods(role)) for role in ("prefill", "decode", "router")}
    return ours | {"operator": Standing(2, scene.harm.operators())}
