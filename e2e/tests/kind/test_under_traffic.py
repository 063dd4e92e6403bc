"""Engines come, die, are restarted and go under traffic: who notices, and what.

Steps, once: two routers; users hold conversations of three turns through the Service, from a pod in the cluster, and one has a long answer
streamed all the time, one a long prompt prefilled. Actions: the tests, in their order, each of which brings about the engines that it needs;
PDD_E2E_CHAOS_SECONDS (300) is how long pods are restarted and killed in all, PDD_E2E_SEED repeats what was done at random. Result: what each test says; in
all of it nothing hangs, no word is wrong, no answer ends in a way that a client could take for whole, and afterwards everything is as before.
"""

import os
import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.control_plane.binaries import Say
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.faults import ENDPOINTS_SECONDS, Harm, Standing, draw, explains, table
from pdd_e2e.kind_suite.installation import SYSTEM
from pdd_e2e.kind_suite.traffic import Traffic, arranged, conversing
from pdd_e2e.kind_suite.traffic_plan import LONG, READER, RETURNING
from pdd_e2e.kind_suite.traffic_verdict import Attempt, Heard, failures, kinds, reuse, wrong

USERS = 4
COME_BACK = 6  # two for each prefill engine, if routers spread them evenly
HANDED_OVER = 2
WORK_FOR_ALL_SECONDS = 120
PREFILL_DEATHS = 3
GROWN_SECONDS = 300
BACK_SECONDS = 180
QUIET_SECONDS = 60
TOLD_SECONDS = 15
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
    upset_since: float | None = None

    @property
    def left_seconds(self) -> float:
        """Of the time for chaos, which begins with the first restart or kill."""
        return (self.upset_since or time.time()) + float(os.environ.get("PDD_E2E_CHAOS_SECONDS", "300")) - time.time()

    def asks_for(self, *, prefill: int, decode: int) -> None:
        """Of the operator, and waits for nobody."""
        self.small.patch({"prefill": {"replicas": prefill}, "decode": {"replicas": decode}})

    def stands(self, *, prefill: int, decode: int) -> None:
        """Brings about so many ready engines, and no others. Raises ClusterError."""
        self.asks_for(prefill=prefill, decode=decode)
        self.small.wait_for_only(GROWN_SECONDS, prefill=prefill, decode=decode)


@pytest.fixture(scope="module")
def scene(small: LiveDeployment, say: Say) -> Iterator[Scene]:
    seed = os.environ.get("PDD_E2E_SEED") or secrets.token_hex(4)
    say(f"to do the same again: PDD_E2E_SEED={seed}")
    with arranged(small, routers=2) as keys:
        try:
            with conversing(small, keys, USERS, LONG, READER, returning=COME_BACK) as traffic:
                say("users are being answered")
                yield Scene(small, traffic, Harm(small), random.Random(seed))
        finally:
            small.patch({"prefill": {"replicas": 1}, "decode": {"replicas": 1}})
    small.wait_for_only(BACK_SECONDS, prefill=1, decode=1, router=1)
    small.wait("Ready", timeout_seconds=BACK_SECONDS)


def test_more_engines_share_the_work(scene: Scene, say: Say) -> None:
    """1→3 and 1→2, then one less: no failed request, no other word; conversations of the one that goes are read by others, in figures."""
    traffic, began = scene.traffic, time.time()
    scene.stands(prefill=3, decode=2)
    grown = time.time()
    say(f"3 and 2 engines after {grown - began:.0f} s")
    traffic.wait(lambda heard: all_worked(heard, grown, 3, 2), "work for all engines", WORK_FOR_ALL_SECONDS)
    traffic.call(0)
    traffic.wait(lambda heard: all_asked(heard, 0), "answers to all who return", WORK_FOR_ALL_SECONDS)
    shrinking = time.time()
    scene.asks_for(prefill=2, decode=2)
    wait_until(lambda: len(scene.small.ready_pods("prefill")) == 2, "one that is leaving", 30)
    traffic.call(1)
    heard = traffic.wait(lambda heard: all_came_back(heard, grown), "turns handed over", WORK_FOR_ALL_SECONDS)
    scene.stands(prefill=2, decode=2)
    say(f"2 and 2 after {time.time() - shrinking:.0f} s")
    assert wrong(heard) == []
    assert failures(heard.attempts) == [], kinds(heard.attempts)
    check_reuse(heard, grown, say)


def all_worked(heard: Heard, since: float, prefills: int, decodes: int) -> bool:
    """Whether so many engines of each role have served a turn."""
    served = [item for item in heard.attempts if item.began >= since and item.outcome == "Whole"]
    return (len({item.prefill for item in served} - {""}), len({item.decode for item in served})) == (prefills, decodes)


def all_asked(heard: Heard, turn: int) -> bool:
    """Whether all who return were answered this turn."""
    asked = [item for item in heard.attempts if item.user.startswith(RETURNING) and item.turn == turn]
    return sum(item.outcome == "Whole" for item in asked) == COME_BACK


def all_came_back(heard: Heard, since: float) -> bool:
    """And some of all users' turns were taken by another prefill engine than the one before, which has gone or was busy."""
    return all_asked(heard, 1) and reuse(heard.attempts, since).handed_over.turns >= HANDED_OVER


def check_reuse(heard: Heard, grown: float, say: Say) -> None:
    """Turns that another engine took read their history: less was computed than own caches alone would have left."""
    found = reuse(heard.attempts, grown)
    told = (
        f"{kinds(heard.attempts)['Whole']} answers; since there were 3 prefill and 2 decode engines:\n{found.table()}"
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "reuse-across-prefill-engines.txt").write_text(f"{told}\n")
    say(told)
    assert found.read_over >= max(1, 0.8 * (found.handed_over.turns - found.late))
    assert found.handed_over.computed < 0.75 * found.handed_over.own_cache_only
    assert found.all.computed < found.all.own_cache_only


def test_restarts_with_grace_cut_nothing(scene: Scene, say: Say) -> None:
    """R13: routers and decode engines are restarted one by one, as `kubectl rollout restart` does: every answer whole."""
    small = scene.small
    scene.stands(prefill=2, decode=2)
    before = small.uids()
    scene.upset_since = since = time.time()
    decodes = next(iter(small.pods("decode").values()))["metadata"]["ownerReferences"][0]["name"]
    small("rollout", "restart", f"deployment/{small.name}-router")
    small("rollout", "restart", f"statefulset/{decodes}")
    small("rollout", "status", f"deployment/{small.name}-router", "--timeout=120s", timeout_seconds=130)
    small("rollout", "status", f"statefulset/{decodes}", "--timeout=300s", timeout_seconds=310)
    scene.traffic.wait_for_answers(3, timeout_seconds=90)
    after = small.uids()
    asked = ended_since(scene.traffic.heard(), since)
    say(f"{len(asked)} answers during restarts of {time.time() - since:.0f} s: {dict(kinds(asked))}")
    assert failures(asked) == []
    assert not set(before.values()) & {uid for name, uid in after.items() if "prefill" not in name}


@pytest.mark.may_log(*ENGINE_DIED)
@pytest.mark.may_restart("prefill")
def test_without_operator_prefill_engines_die_and_nobody_notices(scene: Scene, say: Say) -> None:
    """R7, R8: no operator; both prefill engines die in the midst of prefilling: every answer whole, both back by their StatefulSet."""
    small, harm = scene.small, scene.harm
    scene.stands(prefill=2, decode=2)
    since, retried_before = time.time(), retried_prefills(small)
    small.kubectl("--namespace", SYSTEM, "scale", OPERATOR, "--replicas=0")
    try:
        wait_until(lambda: not harm.operators(), "no operator", 30)
        for _ in range(PREFILL_DEATHS):  # until one is met in the midst
            small.wait_for_only(GROWN_SECONDS, prefill=2)
            crashed, deleted = small.ready_pods("prefill")
            before = {pod: harm.life("prefill", pod) for pod in (crashed, deleted)}
            scene.traffic.wait(lambda heard: heard.waits(READER), "a prompt that is prefilled", 60)
            for fault in [harm.crash("prefill", crashed), harm.delete("prefill", deleted)]:
                harm.wait_for_another_life(fault, before[fault.pod])
            scene.traffic.wait_for_answers(6, timeout_seconds=90)
            retried = retried_prefills(small) - retried_before
            if retried:
                break
    finally:
        small.kubectl("--namespace", SYSTEM, "scale", OPERATOR, "--replicas=2")
    small.kubectl("--namespace", SYSTEM, "rollout", "status", OPERATOR, "--timeout=60s", timeout_seconds=90)
    asked = ended_since(scene.traffic.heard(), since)
    say(f"{len(asked)} answers without operator, prefill engines killed, {retried:.0f} prefills made elsewhere")
    assert failures(asked) == []
    assert retried >= 1, "a prefill engine died while it prefilled"


@pytest.mark.may_log(*ENGINE_DIED)
def test_who_reads_a_stream_of_a_dying_decode_engine_is_told(scene: Scene, say: Say) -> None:
    """R9: a decode engine dies under a long stream: error event and close, no [DONE], in time; whoever waits is served by the other."""
    harm = scene.harm
    scene.asks_for(prefill=2, decode=2)
    scene.small.wait_for_only(GROWN_SECONDS, decode=2)
    since = time.time()
    (stream,) = scene.traffic.wait(lambda heard: bool(heard.running(LONG, since)), "a long stream", 90).running(
        LONG, since
    )
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
    failed = failures(ended_since(scene.traffic.heard(), since))
    assert {(item.kind, item.decode) for item in failed} == {("Told stream_broken", stream.decode)}


def test_a_router_dies_and_the_next_request_is_served(scene: Scene, say: Say) -> None:
    """One of two routers dies: its own streams end at once, nothing else; soon every request gets to the other."""
    small, since = scene.small, time.time()
    scene.traffic.wait(lambda heard: bool(heard.running(LONG, since)), "a long stream", 90)
    busiest = max(small.ready_pods("router"), key=lambda pod: small.counter(pod, "pdd_router_in_flight_requests"))
    fault = scene.harm.delete("router", busiest)
    scene.traffic.wait_for_answers(6, timeout_seconds=90)
    wait_until(lambda: len(small.ready_pods("router")) == 2, "two routers", 60)
    failed = failures(ended_since(scene.traffic.heard(), since))
    late = [item for item in failed if item.ended > fault.at + ENDPOINTS_SECONDS]
    say(f"a router was killed: {dict(kinds(failed))}")
    assert failed, "it served nobody"
    assert {item.outcome for item in failed} <= ROUTER_DIED
    assert late == []


@pytest.mark.may_log(*ENGINE_DIED)
@pytest.mark.may_restart("decode", "prefill")
def test_pods_are_killed_at_random(scene: Scene, say: Say) -> None:
    """What is left of the time: any pod of a role that is whole, deleted or crashed; what fails was a killed decode engine's, or a killed router's."""
    scene.asks_for(prefill=2, decode=2)
    since = time.time()
    seconds = max(scene.left_seconds, AT_RANDOM_SECONDS)
    while time.time() < since + seconds:
        drawn = draw(scene.chance, standing(scene))
        if drawn is not None:
            role, pod, how = drawn
            (scene.harm.crash if how == "Crashed" else scene.harm.delete)(role, pod)
        time.sleep(scene.chance.uniform(*BETWEEN_FAULTS_SECONDS))  # the rhythm of the chaos; nothing is waited for
    killed = [fault for fault in scene.harm.done if fault.at >= since]
    say(f"killed at random:\n{table(killed, since)}")
    assert killed
    failed = failures(ended_since(scene.traffic.heard(), since))
    assert [item for item in failed if not explains(scene.harm.done, item)] == []


@pytest.mark.may_log(*ENGINE_DIED)
def test_afterwards_everything_is_as_before(scene: Scene, say: Say) -> None:
    """Ready in time, and from then on every answer whole; no hang, no wrong word, no false end in all that was asked; nothing held, nothing in flight."""
    small, began = scene.small, time.time()
    scene.stands(prefill=2, decode=2)
    small.wait_for_only(BACK_SECONDS, router=2)
    small.wait("Ready", timeout_seconds=BACK_SECONDS)
    say(f"Ready {time.time() - began:.0f} s after the last kill")
    calm = time.time()
    scene.traffic.wait_for_answers(4, timeout_seconds=90)
    heard = scene.traffic.stop()
    report(scene, heard, say)
    assert wrong(heard) == []
    assert [item for item in heard.attempts if item.outcome in ("Hang", "Malformed", "Refused")] == []
    assert failures([item for item in heard.attempts if item.began >= calm]) == []
    wait_until(lambda: is_quiet(small), "quiet engines and routers", QUIET_SECONDS)


def report(scene: Scene, heard: Heard, say: Say) -> None:
    """Requests by how they ended, and what was done, for people."""
    counted = "\n".join(f"{number:>6}  {kind}" for kind, number in kinds(heard.attempts).most_common())
    longest = max(item.ended - item.began for item in heard.attempts)
    began = min((fault.at for fault in scene.harm.done), default=0.0)
    text = (
        f"requests by how they ended (longest {longest:.1f} s):\n{counted}\n\nkilled:\n{table(scene.harm.done, began)}"
    )
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


def ended_since(heard: Heard, since: float) -> list[Attempt]:
    """With those that were under way then."""
    return [item for item in heard.attempts if item.ended >= since]


def retried_prefills(small: LiveDeployment) -> float:
    """By all routers, since they run."""
    return sum(small.counter(pod, RETRIES, having='role="Prefill"') for pod in small.pods("router"))


def standing(scene: Scene) -> dict[str, Standing]:
    """Of all roles."""
    ours = {role: Standing(2, scene.small.ready_pods(role)) for role in ("prefill", "decode", "router")}
    return ours | {"operator": Standing(2, scene.harm.operators())}
