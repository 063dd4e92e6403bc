"""A change of pod templates never replaces pods of both engine roles at once, and never waits for nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pdd_operator.api.labels import INPUT_HASH, TEMPLATE_HASH, Component, object_labels
from pdd_operator.api.names import engine_set_name
from pdd_operator.api.objects import Apply, Rendered, Scale, ref_of
from pdd_operator.observe.outcome import RolloutPlan
from pdd_operator.plan import Plan, plan
from pdd_operator.render.inputs import Replicas

UID, GROUP = "uid-of-a", "111111"
P, D = Component.PREFILL, Component.DECODE


def engine_set(part: Component, grace_seconds: int = 60, replicas: int = 1, **template: Any) -> Any:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": engine_set_name("a", part, GROUP),
            "namespace": "agents",
            "labels": object_labels("a", UID, part, GROUP),
            "annotations": {
                INPUT_HASH: f"{grace_seconds}-{replicas}-{sorted(template)}",
                TEMPLATE_HASH: f"{grace_seconds}-{sorted(template)}",
            },
            "ownerReferences": [{"uid": UID, "controller": True, "kind": "PDDeployment"}],
        },
        "spec": {
            "replicas": replicas,
            "template": {"spec": {"terminationGracePeriodSeconds": grace_seconds, **template}},
        },
    }


def live(manifest: Any, *, updating: bool = False, ready: int = 1, seen: bool = True, updated: int = 1) -> Any:
    found = copy.deepcopy(manifest)
    found["metadata"] |= {"uid": "1", "generation": 2}
    found["status"] = {
        "observedGeneration": 2 if seen else 1,
        "replicas": 1,
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "currentRevision": "one",
        "updateRevision": "two" if updating else "one",
    }
    return found


def planned(desired: list[Any], *found: Any) -> Plan:
    children = {ref_of(child): child for child in found}
    steady = RolloutPlan(Replicas(1, 1))
    return plan(Rendered(GROUP, tuple(desired), ()), children, steady, name="a", uid=UID, missing_secrets=())


def applied(found: Plan) -> list[str]:
    return [action.manifest["metadata"]["name"] for action in found.actions if isinstance(action, Apply)]


BOTH = [engine_set(P, 90), engine_set(D, 90)]
OLD_P, OLD_D = engine_set(P), engine_set(D)


def test_of_two_roles_that_change_one_goes_first() -> None:
    found = planned(BOTH, live(OLD_P), live(OLD_D))
    assert applied(found) == ["a-prefill-111111"]
    (held,) = found.held
    assert (held.apply.manifest, held.behind) == (BOTH[1], ref_of(OLD_P))


@pytest.mark.parametrize("busy", [{"updating": True, "ready": 0}, {"updating": True}, {"seen": False}])
def test_the_second_waits_until_the_first_is_replaced_and_ready(busy: dict[str, Any]) -> None:
    found = planned(BOTH, live(BOTH[0], **busy), live(OLD_D))
    assert (found.actions, [held.behind for held in found.held]) == ((), [None])
    done = planned(BOTH, live(BOTH[0]), live(OLD_D))
    assert (applied(done), done.held) == (["a-decode-111111"], ())


def test_what_is_taken_out_of_a_template_counts_as_a_change() -> None:
    before = [engine_set(part, nodeSelector={"zone": "a"}) for part in (P, D)]
    found = planned([OLD_P, OLD_D], *map(live, before))
    assert (applied(found), len(found.held)) == (["a-prefill-111111"], 1)


def test_a_size_that_changes_with_it_hides_no_change() -> None:
    before = [engine_set(part, replicas=2, nodeSelector={"zone": "a"}) for part in (P, D)]
    found = planned([OLD_P, OLD_D], *map(live, before))
    assert (applied(found), len(found.held)) == (["a-prefill-111111"], 1)
    assert [action.ref for action in found.actions if isinstance(action, Scale)] == [ref_of(OLD_D)]


def test_a_correction_of_what_is_being_replaced_does_not_wait() -> None:
    """Otherwise a template that never gets ready could not be mended."""
    found = planned(BOTH, live(OLD_P, updating=True, ready=0), live(OLD_D))
    assert (applied(found), len(found.held)) == (["a-prefill-111111"], 1)
    stuck = planned(BOTH, live(OLD_P, updating=True, ready=0), live(OLD_D, updating=True, ready=0))
    assert (applied(stuck), stuck.held) == (["a-prefill-111111", "a-decode-111111"], ())


@pytest.mark.parametrize("pods", [{"updated": 0, "ready": 0}, {"updated": 0}, {"ready": 0}])
def test_what_was_changed_back_is_waited_for_until_its_pods_serve_again(pods: dict[str, int]) -> None:
    """Its controller finds the former revision, which it never left by name: the set seems to be at rest from then on."""
    found = planned([OLD_P, BOTH[1]], live(OLD_P, **pods), live(OLD_D))
    assert (found.actions, [held.behind for held in found.held]) == ((), [None])


def test_a_role_that_is_wanted_in_no_number_is_not_waited_for() -> None:
    none_wanted = engine_set(P, replicas=0)
    found = planned([none_wanted, BOTH[1]], live(none_wanted, ready=0), live(OLD_D))
    assert (applied(found), found.held) == (["a-decode-111111"], ())


def test_a_role_without_a_ready_pod_has_nothing_to_lose() -> None:
    found = planned(BOTH, live(BOTH[0], updating=True), live(OLD_D, ready=0))
    assert (applied(found), found.held) == (["a-decode-111111"], ())


def test_a_size_is_set_although_the_template_waits() -> None:
    desired = [BOTH[0], engine_set(D, 90, replicas=3)]
    found = planned(desired, live(BOTH[0], updating=True), live(OLD_D))
    (action,) = found.actions
    assert isinstance(action, Scale)
    assert (action.ref, action.replicas) == (ref_of(OLD_D), 3)


def test_sizes_alone_do_not_wait_for_each_other() -> None:
    desired = [engine_set(P, replicas=2), engine_set(D, replicas=2)]
    found = planned(desired, live(OLD_P), live(OLD_D))
    assert (len(applied(found)), found.held) == (2, ())


def test_a_new_set_waits_for_nothing() -> None:
    assert len(applied(planned(BOTH))) == 2
    assert applied(planned(BOTH, live(OLD_P, updating=True), live(BOTH[1]))) == ["a-prefill-111111"]
