"""The operator with nothing but the rights that the chart gives it: enough for all it does, none too many, and each is missed."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import yaml
from grants import Grant, granted, refused, used, without
from operator_process import OperatorProcess
from release import Release, get_or_none, is_served, wait_until
from world import PATIENCE, World, kind_path

from pdd_e2e.control_plane.api import KubeApi
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_operator.api.names import lasting_names
from pdd_operator.kube.kinds import CHILD_KINDS, GRAFANA_DASHBOARD, POD_MONITOR, Kind

ACCOUNT = "pdd-pdd-operator"
RBAC = "/apis/rbac.authorization.k8s.io/v1"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def optional_kinds(control_plane: LocalControlPlane) -> Iterator[None]:
    """PodMonitors and dashboards, as their operators would define them."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for kind in (POD_MONITOR, GRAFANA_DASHBOARD):
        control_plane.api.create(path, definition(kind))
    for kind in (POD_MONITOR, GRAFANA_DASHBOARD):
        served = f"/apis/{kind.api_version}/{kind.plural}"
        wait_until(partial(is_served, control_plane.api, served), f"{kind.kind} to be served")
    yield
    for kind in (POD_MONITOR, GRAFANA_DASHBOARD):
        control_plane.api.delete(f"{path}/{kind.plural}.{kind.group}")


def definition(kind: Kind) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural},
            "versions": [{"name": kind.version, "served": True, "storage": True, "schema": schema}],
        },
    }


def everything_it_does(world: World, wait: Callable[[Callable[[], bool], str], None]) -> None:
    """Create, repair, scale, hand over, roll out, prune, delete."""
    autoscaling = {"minReplicas": 1, "maxReplicas": 2, "target": {"metric": "CPUUtilization", "value": "50"}}
    world.create("probe")
    wait(partial(world.is_done, "probe"), "the first reconcile")
    world.change("probe", decode={"replicas": 2}, prefill={"autoscaling": autoscaling})
    wait(partial(world.is_done, "probe"), "scaling")
    strays = [leave_behind(world, kind) for kind in CHILD_KINDS]
    for stray in strays:
        wait(partial(is_gone, world.api, stray), f"{stray} to be pruned")
    service = f"/api/v1/namespaces/{world.namespace}/services/probe-router"
    for _ in range(2):  # the second time, the event is a repeat
        old = world.api.get(service)["metadata"]["uid"]
        world.api.delete(service)
        wait(partial(is_new, world.api, service, old), "the Service to be back")
    world.change("probe", engine={"blockSize": 32})
    wait(partial(world.is_done, "probe"), "the rollout")
    world.remove("probe")
    world.create("refused", prefill={"accelerator": {"type": "CPU"}, "podTemplate": {"priorityClassName": "missing"}})
    wait(partial(tells_why, world, "refused"), "why its pods are refused")
    world.remove("refused")


def tells_why(world: World, name: str) -> bool:
    conditions = world.get(name).get("status", {}).get("conditions", ())
    return any("`spec.prefill.podTemplate.priorityClassName` names it" in one["message"] for one in conditions)


def is_gone(api: KubeApi, path: str) -> bool:
    return get_or_none(api, path) is None


def is_new(api: KubeApi, path: str, uid: str) -> bool:
    found = get_or_none(api, path)
    return found is not None and found["metadata"]["uid"] != uid


def leave_behind(world: World, kind: Kind) -> str:
    """The path of a child that the operator does not want any more, under a name that an older version of it could have given."""
    children = world.children(kind, "probe")
    model = children[0]
    name = min(lasting_names("probe") - {child["metadata"]["name"] for child in children})
    metadata = {key: model["metadata"][key] for key in ("labels", "ownerReferences")}
    body = {key: value for key, value in model.items() if key not in ("metadata", "status")}
    body |= {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {**metadata, "name": name}}
    if kind.plural == "services":
        body["spec"] = {"clusterIP": "None", "selector": {"nobody": "here"}}
    if kind.plural in ("deployments", "statefulsets"):
        body["spec"]["replicas"] = 0
    path = kind_path(kind, world.namespace)
    world.api.create(path, body)
    return f"{path}/{name}"


def rules_of(release: Release) -> list[dict[str, Any]]:
    """Of the operator's account in the release."""
    objects = list(yaml.safe_load_all(release.manifest()))
    names = {item["roleRef"]["name"] for item in objects if item["kind"] in ("ClusterRoleBinding", "RoleBinding")}
    return [
        rule
        for item in objects
        if item["kind"] in ("ClusterRole", "Role") and item["metadata"]["name"] in names
        for rule in item["rules"]
    ]


@pytest.mark.usefixtures("optional_kinds", "fake_kubelet")
def test_every_right_is_used_and_every_right_that_is_used_is_granted(
    control_plane: LocalControlPlane, release: Release, user: str, start: Callable[..., OperatorProcess]
) -> None:
    release.install()
    since = control_plane.audit.position()
    with start() as operator:
        everything_it_does(World(release.api, release.namespace), operator.wait_until)
    calls = control_plane.audit.calls(since=since, user=user)
    rights = granted(rules_of(release))
    assert sorted(map(str, refused(calls))) == []
    assert sorted(map(str, used(calls) - rights)) == [], "used, though granted by another role"
    assert sorted(map(str, rights - used(calls))) == [], "granted and never used"


# Without these the operator cannot even tell how an object stands, or not write it down.
UNSAID = [
    Grant("pdserve.io", "pddeployments", "get"),
    Grant("pdserve.io", "pddeployments/status", "patch"),
    Grant("", "pods", "list"),
    Grant("apps", "deployments", "list"),
]
SAID = [
    Grant("", "secrets", "create"),
    Grant("", "configmaps", "get"),
    Grant("", "services", "create"),
    Grant("apps", "statefulsets", "patch"),
    Grant("networking.k8s.io", "networkpolicies", "create"),
    Grant("rbac.authorization.k8s.io", "roles", "patch"),
]


def is_missed(plane: LocalControlPlane, user: str, since: int, grant: Grant) -> bool:
    """Whether a call was refused for want of ``grant``. An apply that may not create is logged as the patch that it is."""
    found = refused(plane.audit.calls(since=since, user=user))
    patch = Grant(grant.group, grant.resource, "patch")
    return grant in found or (grant.verb == "create" and patch in found)


@pytest.mark.usefixtures("fake_kubelet")
def test_without_a_right_the_operator_does_not_finish_and_says_what_it_lacks(
    control_plane: LocalControlPlane, release: Release, user: str, start: Callable[..., OperatorProcess]
) -> None:
    release.install()
    path = f"{RBAC}/clusterroles/{release.namespace}-{ACCOUNT}"
    rules = release.api.get(path)["rules"]
    world = World(release.api, release.namespace)
    with start() as operator:
        for number, grant in enumerate((*UNSAID, *SAID)):
            name = f"lacks-{number}"
            since = control_plane.audit.position()
            release.api.patch(path, {"rules": without(rules, grant)})
            world.create(name)

            operator.wait_until(partial(is_missed, control_plane, user, since, grant), f"a call that needs {grant}")
            assert not world.is_done(name), f"done without {grant}"
            if grant in SAID:
                operator.wait_until(partial(world.says, name, "Forbidden", grant.resource), f"{name} to say so")
            release.api.patch(path, {"rules": rules})
            world.touch(name, "restored")
            operator.wait_until(partial(world.is_done, name), f"{name} after giving {grant} back")
            world.remove(name)


def test_a_watch_that_is_refused_is_logged_with_what_is_lacking(
    control_plane: LocalControlPlane, release: Release, user: str, start: Callable[..., OperatorProcess]
) -> None:
    """Watches begin with the process and last: these rights are missed at its start only."""
    release.install()
    path = f"{RBAC}/clusterroles/{release.namespace}-{ACCOUNT}"
    grant = Grant("apps", "statefulsets", "watch")
    release.api.patch(path, {"rules": without(release.api.get(path)["rules"], grant)})
    since = control_plane.audit.position()
    with start() as operator:
        operator.wait_until(partial(is_missed, control_plane, user, since, grant), f"a call that needs {grant}")
        operator.wait_until(lambda: "cannot watch resource" in operator.tail(), "the log to say so")


def test_without_the_right_to_the_lease_nobody_leads(
    control_plane: LocalControlPlane, release: Release, user: str, start: Callable[..., OperatorProcess]
) -> None:
    release.install()
    path = f"{RBAC}/namespaces/{release.namespace}/roles/{ACCOUNT}-leader"
    release.api.delete(path)
    since = control_plane.audit.position()
    lease = Grant("coordination.k8s.io", "leases", "get")
    with start():
        World(release.api, release.namespace).create("waits")
        wait_until(lambda: lease in refused(control_plane.audit.calls(since=since, user=user)), "the lease", PATIENCE)
    assert control_plane.audit.writes(since=since, user=user, namespace=release.namespace) == []


@pytest.mark.usefixtures("fake_kubelet")
def test_namespaced_rights_are_enough_for_their_namespaces(
    control_plane: LocalControlPlane, release: Release, user: str, start: Callable[..., OperatorProcess]
) -> None:
    flags = ("--set", f"watchNamespaces={{{release.namespace}}}")
    release.install(*flags)
    assert "kind: ClusterRoleBinding" not in release.manifest()
    since = control_plane.audit.position()
    world, elsewhere = World(release.api, release.namespace), World(release.api, "default")
    elsewhere.create("not-mine")
    with start(*flags) as operator:
        world.create("mine")
        operator.wait_until(partial(world.is_done, "mine"), "the reconcile")
        world.remove("mine")
    calls = control_plane.audit.calls(since=since, user=user)
    assert sorted(map(str, refused(calls))) == []
    assert {call.namespace for call in calls if call.resource != "selfsubjectreviews"} == {release.namespace}


def test_the_lease_goes_with_the_release(release: Release, start: Callable[..., OperatorProcess]) -> None:
    """The operator makes it, so Helm knows nothing of it: it belongs to the operator's ServiceAccount."""
    release.install()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases/{ACCOUNT}"
    with start():
        wait_until(lambda: get_or_none(release.api, lease) is not None, "the lease", PATIENCE)
    release.uninstall()
    wait_until(lambda: get_or_none(release.api, lease) is None, "the lease to go", PATIENCE)
