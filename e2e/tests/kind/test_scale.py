"""More and fewer engines under traffic: nobody notices, and conversations are reused by whichever prefill engine takes the next turn.

Steps: users hold conversations of three turns through the Service, from a pod in the cluster. Action: prefill 1→3 and decode 1→2, then back.
Result: every answer whole and word for word that of the quiet deployment; turns that change the prefill engine read their history.
"""

import time

from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.control_plane.binaries import Say
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.traffic import Traffic, arranged, conversing
from pdd_e2e.kind_suite.traffic_verdict import Attempt, Heard, failures, kinds, reuse, wrong

USERS = 5  # engines are busy often enough that turns go to another one
HANDED_OVER = 3
GROWN_SECONDS = 300
WORK_FOR_ALL_SECONDS = 90
SHRUNK_SECONDS = 150
RESULTS = ROOT / "out" / "kind"


def test_engines_come_and_go_under_traffic(small: LiveDeployment, say: Say) -> None:
    """1→3 and 1→2 and back: no failed request, no other word, reuse across prefill engines in figures, what stays is what was there."""
    first = engines(small)
    with arranged(small) as keys, conversing(small, keys, USERS) as traffic:
        traffic.wait_for_answers(3, timeout_seconds=90)
        say("users are being answered")
        try:
            began = time.monotonic()
            resize(small, prefill=3, decode=2)
            wait_until(
                lambda: ready(small) == (3, 2), "3 and 2 ready engines", GROWN_SECONDS, lambda: small("get", "pods")
            )
            grown = time.time()
            say(f"3 and 2 engines after {time.monotonic() - began:.0f} s")
            wait_for_work(traffic, grown, prefills=3, decodes=2)
            shrinking = time.time()
        finally:
            resize(small, prefill=1, decode=1)
        wait_until(lambda: engines(small) == first, "the engines of the beginning", SHRUNK_SECONDS)
        small.wait("Ready", timeout_seconds=60)
        say(f"1 and 1 again after {time.time() - shrinking:.0f} s")
        traffic.wait_for_answers(4, timeout_seconds=60)
        heard = traffic.stop()
    assert wrong(heard) == []
    assert failures(heard.attempts) == [], kinds(heard.attempts)
    check_reuse(heard, grown, shrinking, say)


def check_reuse(heard: Heard, grown: float, shrinking: float, say: Say) -> None:
    """While there were three: turns that another engine took read their history, and less was computed than own caches alone would have left."""
    found = reuse(while_grown(heard, grown, shrinking))
    table = (
        f"{kinds(heard.attempts)['Whole']} answers; while there were 3 prefill and 2 decode engines:\n{found.table()}"
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "reuse-across-prefill-engines.txt").write_text(f"{table}\n")
    say(table)
    assert found.read_over >= 0.8 * found.handed_over.turns
    assert found.handed_over.computed < 0.75 * found.handed_over.own_cache_only
    assert found.all.computed < found.all.own_cache_only


def while_grown(heard: Heard, grown: float, shrinking: float) -> list[Attempt]:
    return [item for item in heard.attempts if item.began >= grown and item.ended <= shrinking]


def engines(small: LiveDeployment) -> dict[str, str]:
    """Uids of engines, by name."""
    pods = {**small.pods("prefill"), **small.pods("decode")}
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


def ready(small: LiveDeployment) -> tuple[int, int]:
    """Prefill and decode engines that are."""
    return len(small.ready_pods("prefill")), len(small.ready_pods("decode"))


def resize(small: LiveDeployment, *, prefill: int, decode: int) -> None:
    small.patch({"prefill": {"replicas": prefill}, "decode": {"replicas": decode}})


def wait_for_work(traffic: Traffic, since: float, *, prefills: int, decodes: int) -> None:
    """Until so many engines of each role have served a turn, and some turns were taken by another prefill engine than the one before."""

    def all_worked(heard: Heard) -> bool:
        served = [item for item in while_grown(heard, since, time.time()) if item.outcome == "Whole"]
        engines = len({i.prefill for i in served} - {""}), len({i.decode for i in served})
        return engines == (prefills, decodes) and reuse(served).handed_over.turns >= HANDED_OVER

    traffic.wait(all_worked, f"work for {prefills} and {decodes} engines", WORK_FOR_ALL_SECONDS)
