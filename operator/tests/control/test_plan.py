"""What is to be done, and above all what is not: nothing in the steady state, nothing to what is not ours."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pdd_operator.api import labels
from pdd_operator.api.labels import Component, object_labels
from pdd_operator.api.names import ObjectRef
from pdd_operator.api.objects import Apply, CreateOnce, Delete, HandOver, Rendered, Scale, SecretOnce, ref_of
from pdd_operator.observe.outcome import RolloutPlan
from pdd_operator.plan import Plan, plan
from pdd_operator.render.inputs import Replicas

UID = "uid-of-a"
STEADY = RolloutPlan(Replicas(1, 1))


def owned(kind: str, name: str, *, uid: str = UID, group: str | None = None, role: Component | None = None) -> Any:
    return {
        "apiVersion": "apps/v1" if kind == "StatefulSet" else "v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "agents",
            "labels": object_labels("a", uid, role, group),
            "ownerReferences": [{"uid": uid, "controller": True, "kind": "PDDeployment"}],
        },
        "spec": {"replicas": 1} if kind == "StatefulSet" else {"x": 1},
    }


def live(manifest: Any) -> Any:
    found = copy.deepcopy(manifest)
    found["metadata"] |= {"uid": f"uid-of-{manifest['metadata']['name']}", "resourceVersion": "7"}
    return found


CONFIG = owned("ConfigMap", "a-engine-111111", group="111111")
SET = owned("StatefulSet", "a-decode-111111", group="111111", role=Component.DECODE)
OLD_SET = owned("StatefulSet", "a-decode-000000", group="000000", role=Component.DECODE)
OLD_CONFIG = owned("ConfigMap", "a-engine-000000", group="000000")
KEY = SecretOnce({"metadata": {"name": "a-claim-111111"}}, "key", 32, ref_of(CONFIG))
SALT = SecretOnce({"metadata": {"name": "a-tenant-salt"}}, "salt", 32, None)
RENDERED = Rendered("111111", (CONFIG, SET), (KEY, SALT))


def planned(*children: Any, rendered: Rendered = RENDERED, rollout: RolloutPlan = STEADY, missing: str = "") -> Plan:
    found = {ref_of(child): child for child in children}
    return plan(rendered, found, rollout, name="a", uid=UID, missing_secrets=missing.split())


def test_what_is_as_desired_needs_nothing() -> None:
    assert planned(live(CONFIG), live(SET)) == Plan((), ())


def test_everything_is_made_in_order_and_secrets_come_after_their_owner() -> None:
    actions = planned(missing="a-claim-111111 a-tenant-salt").actions
    assert actions == (
        CreateOnce(SALT),
        Apply(CONFIG, "it was missing"),
        CreateOnce(KEY),
        Apply(SET, "it was missing"),
    )


def test_a_missing_secret_is_made_although_its_owner_is_as_it_should_be() -> None:
    assert planned(live(CONFIG), live(SET), missing="a-claim-111111").actions == (CreateOnce(KEY),)


def test_drift_is_named() -> None:
    edited = live(CONFIG)
    edited["spec"]["x"] = 2
    assert planned(edited, live(SET)).actions == (Apply(CONFIG, "`spec.x` differed"),)


@pytest.mark.parametrize("uid", ["uid-of-its-predecessor", "uid-of-b"])
def test_what_another_owns_is_named_and_left_alone(uid: str) -> None:
    theirs = live(owned("ConfigMap", "a-engine-111111", uid=uid))
    assert planned(theirs, live(SET)) == Plan((), (ref_of(CONFIG),))


def test_an_object_that_only_lost_its_owner_is_taken_back() -> None:
    """Called foreign, with the advice to remove it, it would be removed while it serves."""
    lost = live(SET)
    del lost["metadata"]["ownerReferences"]
    assert planned(live(CONFIG), lost) == Plan((Apply(SET, "`metadata.ownerReferences` differed"),), ())


@pytest.mark.parametrize("owner_uid", ["uid-of-its-predecessor", None])
@pytest.mark.parametrize("controlled", [True, False])
def test_an_object_is_not_taken_over_by_its_name(owner_uid: str | None, controlled: bool) -> None:
    theirs = live(CONFIG)
    theirs["metadata"]["ownerReferences"] = [{"uid": "x", "controller": controlled, "kind": "Helm"}]
    theirs["metadata"]["labels"]["pdserve.io/owner-uid"] = owner_uid
    assert planned(theirs, live(SET)) == Plan((), (ref_of(CONFIG),))


def with_pods(name: str, account: str, config: str) -> Any:
    found = owned("StatefulSet", name, group=name[-6:], role=Component.DECODE)
    pod = {"serviceAccountName": account, "volumes": [{"name": "c", "configMap": {"name": config}}]}
    found["spec"]["template"] = {"spec": pod}
    return found


ACCOUNT = owned("ServiceAccount", "a-engine")
ROLE = owned("Role", "a-engine")
BINDING = owned("RoleBinding", "a-engine") | {
    "subjects": [{"kind": "ServiceAccount", "name": "a-engine"}],
    "roleRef": {"kind": "Role", "name": "a-engine"},
}
POD_SET = with_pods("a-decode-111111", "a-engine", "a-engine-111111")
SCALER = owned("HorizontalPodAutoscaler", "a-decode")
SCALER["spec"] = {"scaleTargetRef": {"kind": "StatefulSet", "name": "a-decode-111111"}}
ALL = Rendered("111111", (ACCOUNT, ROLE, BINDING, CONFIG, POD_SET, SCALER), (KEY,))


@pytest.mark.parametrize(
    ("foreign", "left"),
    [
        (ACCOUNT, {"Role", "ConfigMap"}),
        (ROLE, {"ServiceAccount", "ConfigMap"}),
        (BINDING, {"ServiceAccount", "Role", "ConfigMap"}),
        (CONFIG, {"ServiceAccount", "Role", "RoleBinding"}),
        (POD_SET, {"ServiceAccount", "Role", "RoleBinding", "ConfigMap"}),
        (SCALER, {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "StatefulSet"}),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_made_or_changed_that_would_use_what_is_somebody_else_s(
    foreign: Any, left: set[str], there: bool
) -> None:
    theirs = live(foreign)
    theirs["metadata"] |= {"ownerReferences": [], "labels": {}}
    children = {ref_of(one): edited(one) for one in ALL.manifests if there} | {ref_of(theirs): theirs}
    found = planned(*children.values(), rendered=ALL)
    assert {action.manifest["kind"] for action in found.actions if isinstance(action, Apply)} == left
    assert found.foreign == (ref_of(foreign),)
    assert set(found.blocked.values()) <= {ref_of(foreign)}


def edited(manifest: Any) -> Any:
    found = live(manifest)
    found["metadata"]["labels"]["app.kubernetes.io/part-of"] = "edited"
    return found


def test_an_older_group_makes_no_room_for_one_that_cannot_come() -> None:
    theirs = live(ACCOUNT)
    theirs["metadata"] |= {"ownerReferences": [], "labels": {}}
    smaller = RolloutPlan(Replicas(1, 1), old_replicas={("000000", Component.DECODE): 0})
    found = planned(theirs, live(CONFIG), live(OLD_SET), rendered=ALL, rollout=smaller)
    assert not [action for action in found.actions if isinstance(action, Scale)]


NAMES = ("a-prefill", "a-decode", "a-router")


def test_only_what_is_ours_is_pruned() -> None:
    ours, theirs, unowned = (
        live(owned("Service", name, uid=u)) for name, u in zip(NAMES, (UID, "other", UID), strict=True)
    )
    del unowned["metadata"]["ownerReferences"]
    found = planned(live(CONFIG), live(SET), ours, theirs, unowned)
    assert found.actions == (Delete(ref_of(ours), "uid-of-a-prefill", "it is not part of the deployment any more"),)


@pytest.mark.parametrize("kind", ["Service", "ConfigMap", "StatefulSet"])
def test_a_copy_under_another_name_is_its_maker_s(kind: str) -> None:
    copied = live(owned(kind, "a-decode-debug1", group="debug1", role=Component.DECODE))
    assert planned(live(CONFIG), live(SET), copied).actions == ()
    everything = RolloutPlan(Replicas(1, 1), {("debug1", Component.DECODE): 0}, frozenset({"debug1", ""}))
    assert planned(live(CONFIG), live(SET), copied, rollout=everything).actions == ()


@pytest.mark.parametrize("mark", [None, "111111"])
@pytest.mark.parametrize("victim", [OLD_SET, OLD_CONFIG])
def test_a_label_that_was_lost_or_changed_deletes_nothing(victim: Any, mark: str | None) -> None:
    """It is the set that serves in the middle of a rollout."""
    edited = live(victim)
    edited["metadata"]["labels"] |= {labels.REVISION_GROUP: mark} if mark else {}
    if mark is None:
        edited["metadata"]["labels"] = {}
    assert planned(live(CONFIG), live(SET), edited).actions == ()
    done = planned(live(CONFIG), live(SET), edited, rollout=RolloutPlan(Replicas(1, 1), finished=frozenset({"000000"})))
    assert [type(action) for action in done.actions] == [Delete]


def test_what_is_being_deleted_is_not_deleted_again() -> None:
    leaving = live(owned("Service", "a-prefill"))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert planned(live(CONFIG), live(SET), leaving).actions == ()


def test_an_older_group_is_kept_until_the_rollout_says_that_it_is_finished() -> None:
    world = (live(CONFIG), live(SET), live(OLD_CONFIG), live(OLD_SET))
    assert planned(*world).actions == ()
    finished = planned(*world, rollout=RolloutPlan(Replicas(1, 1), finished=frozenset({"000000"}))).actions
    assert [type(action) for action in finished] == [Delete, Delete]
    assert {action.ref.name for action in finished if isinstance(action, Delete)} == {
        "a-engine-000000",
        "a-decode-000000",
    }


def test_an_older_group_is_scaled_only_where_its_size_differs() -> None:
    world = (live(CONFIG), live(SET), live(OLD_SET))
    smaller = RolloutPlan(Replicas(1, 1), old_replicas={("000000", Component.DECODE): 0})
    (action,) = planned(*world, rollout=smaller).actions
    assert isinstance(action, Scale)
    assert (action.ref, action.replicas) == (ref_of(OLD_SET), 0)
    same = RolloutPlan(Replicas(1, 1), old_replicas={("000000", Component.DECODE): 1})
    assert planned(*world, rollout=same).actions == ()


def autoscaled() -> Rendered:
    manifest = copy.deepcopy(SET)
    del manifest["spec"]["replicas"]
    return Rendered("111111", (CONFIG, manifest), ())


def sized_by(manager: str, operation: str, replicas: int = 5) -> Any:
    found = live(SET)
    found["spec"]["replicas"] = replicas
    found["metadata"]["managedFields"] = [
        {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    ]
    return found


def test_a_size_is_handed_over_before_it_is_sent_no_more() -> None:
    actions = planned(live(CONFIG), sized_by(labels.FIELD_MANAGER, "Apply"), rendered=autoscaled()).actions
    assert [type(action) for action in actions] == [HandOver, Apply]
    assert isinstance(actions[0], HandOver)
    assert (actions[0].ref, actions[0].replicas) == (ObjectRef("apps/v1", "StatefulSet", "a-decode-111111"), 5)


@pytest.mark.parametrize(
    ("manager", "operation"),
    [("kube-controller-manager", "Update"), (labels.HANDOVER_MANAGER, "Apply"), (labels.FIELD_MANAGER, "Update")],
)
def test_a_size_that_others_own_is_left_to_them(manager: str, operation: str) -> None:
    assert planned(live(CONFIG), sized_by(manager, operation), rendered=autoscaled()).actions == ()
