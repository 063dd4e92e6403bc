"""The router's ServiceAccount, with the Role that the operator renders: enough to find engines, none too many, and each right is missed.

The router is the real process with that account's token; whoever made the Role is gone, as it would put the missing right back.
"""

from __future__ import annotations

import pytest
from control_world import World
from serving_world import NAME, Serving, lose_a_pair, serving
from traffic import Traffic

from pdd_e2e.control_plane.errors import ControlPlaneError

CONTROL_SECONDS = 4.0
REFUSALS = 'pdd_router_discovery_errors_total{reason="Refused"}'


def rights(world: World) -> set[tuple[str, str, str]]:
    """Group, resource, verb."""
    role = world.plane.api.get(world.deployments.child_path("Role", f"{NAME}-router"))
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def take_away(world: World, verb: str) -> None:
    kept = sorted(one for _, _, one in rights(world) if one != verb)
    path = world.deployments.child_path("Role", f"{NAME}-router")
    world.plane.api.patch(path, {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": kept}]})


def says_what_it_lacks(service: Serving, verb: str) -> bool:
    return any(
        line["level"] == "warning" and "Role must allow" in line["event"] and line["verb"] == verb
        for line in service.router.lines()
        if "level" in line
    )


def test_the_role_is_all_that_discovery_uses(world: World) -> None:
    operator = world.started()
    since = world.plane.audit.position()
    with serving(world, replicas=1) as service:
        granted = rights(world)
        assert {(group, resource) for group, resource, _ in granted} == {("", "pods")}
        with service.router:
            service.router.wait_until_ready(prefill=1, decode=1)
        calls = world.plane.audit.calls(since=since, user=service.router.user)  # a watch is there since it ended
        assert {(call.group, call.resource, call.verb) for call in calls} == granted
        assert {call.namespace for call in calls} == {world.namespace}
        assert {call.code for call in calls} == {200}

        operator.terminate()
        take_away(world, "list")
        since, asked = world.plane.audit.position(), [service.engines.asked(uid) for uid in service.engines.uids]
        with service.router:
            world.wait(lambda: says_what_it_lacks(service, "list"), 15, "the log does not say what is lacking")
            assert service.router.readiness()["reason"] == "EnginesNotListed"
            assert service.router.metric(REFUSALS) >= 1
            assert service.router.metric("pdd_router_discovery_connected") == 0
            assert service.router.ask("/ready")[0] == 503
        assert [service.engines.asked(uid) for uid in service.engines.uids] == asked, "no engine is guessed"
        refused = {call.verb for call in world.plane.audit.calls(since=since, user=service.router.user)}
        assert refused == {"list"}


def test_without_watch_engines_that_came_later_are_never_asked(world: World) -> None:
    """Also the control of R7: what serves there is what the watch found, and an engine that it did not find would fail that test."""
    operator = world.started()
    with serving(world, replicas=1) as service:
        operator.terminate()
        take_away(world, "watch")
        with service.router, Traffic(service.router.port, service.model) as users:
            service.router.wait_until_ready(prefill=1, decode=1)
            new = lose_a_pair(service, drained=False)  # this router would not let it become idle
            with pytest.raises(ControlPlaneError, match="serves nothing"):
                service.wait_until_serving(new[1], CONTROL_SECONDS)
            assert [service.engines.asked(uid) for uid in new] == [0, 0]
            assert users.failures, "those who ask are refused, not kept waiting"
            assert says_what_it_lacks(service, "watch")
            assert service.router.metric(REFUSALS) >= 1
            assert service.router.metric("pdd_router_discovery_connected") == 0
