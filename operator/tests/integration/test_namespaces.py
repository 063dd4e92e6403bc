"""Several namespaces are watched, each by a Role of its own. What becomes of one concerns no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from control_world import World

from pdd_e2e.control_plane.fixtures import remove_namespace
from pdd_e2e.operators.deployments import Deployments, cpu_deployment

USER = "operator-of-some"
RESYNC_SECONDS = 2
AGAIN_SECONDS = 30.0
GONE_SECONDS = 30.0
WATCHED_SECONDS = 20.0
LEFT_OUT = "Left out namespaces that may not be read"
Grant = Callable[[str], None]


def namespaces(world: World) -> set[str]:
    return {item["metadata"]["name"] for item in world.plane.api.items("/api/v1/namespaces")}


@pytest.fixture
def grant(world: World) -> Grant:
    """Makes a namespace if it is missing, and in it what the chart gives where only some are watched: the operator's ClusterRole as a Role."""
    rbac = "rbac.authorization.k8s.io"
    account = world.installation.account[1]
    bindings = world.plane.api.items(f"/apis/{rbac}/v1/clusterrolebindings")
    role = next(one["roleRef"] for one in bindings if any(who["name"] == account for who in one.get("subjects", ())))

    def bind(namespace: str) -> None:
        if namespace not in namespaces(world):
            made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            world.plane.api.create("/api/v1/namespaces", made)
        binding = {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": USER},
            "roleRef": role,
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": USER}],
        }
        world.plane.api.create(f"/apis/{rbac}/v1/namespaces/{namespace}/rolebindings", binding)

    return bind


def test_a_namespace_that_is_deleted_takes_no_other_along_and_is_watched_again_when_it_is_back(
    world: World, grant: Grant
) -> None:
    """The process that finds it gone ends once, as kopf's watch does; the next one leaves it out, and ends when it may read it again."""
    other = f"{world.namespace}-other"
    grant(world.namespace)
    grant(other)
    some = replace(world, kubeconfig=world.plane.kubeconfig_for(user=USER))
    settings = {"watch_namespaces": f"{world.namespace},{other}", "resync_seconds": str(RESYNC_SECONDS)}
    some.started("before", **settings).terminate()
    remove_namespace(world.plane, other)
    world.wait(lambda: other not in namespaces(world), GONE_SECONDS, "the namespace stays")

    after = some.started("after", **settings)
    some.create_ready(cpu_deployment("small"))
    assert LEFT_OUT in str(after.lines())
    world.plane.api.delete(world.deployments.child_path("Service", "small-router"))
    world.wait(lambda: world.deployments.exists("Service", "small-router"), WATCHED_SECONDS, "it is not watched")

    grant(other)
    after.wait_for_end(AGAIN_SECONDS)
    again = some.started("again", **settings)
    back = Deployments(world.plane.api, other)
    back.create(cpu_deployment("small"))
    back.wait_for_condition("small", "Accepted")
    assert LEFT_OUT not in str(again.lines())
    remove_namespace(world.plane, other)
