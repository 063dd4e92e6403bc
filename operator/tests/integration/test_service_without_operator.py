"""R7: with no operator at all users are served, engines that die are replaced and the new ones serve; its return changes nothing.

Real are the API server, its controllers, the operator, the router and its discovery; the engines behind the pods' addresses are fakes.
PDD_R7_SECONDS says how long the operator is away. That an engine which the router does not find would be noticed is shown beside the
router's rights.
"""

from __future__ import annotations

import os
import time

import pytest
from control_world import World
from serving_world import NAME, lose_a_pair, serving
from traffic import Traffic

AWAY_SECONDS = float(os.environ.get("PDD_R7_SECONDS", "10"))
RETURN_SECONDS = 3.0
CHANGE_NO_ENGINE = ("events", "pddeployments/status")


@pytest.mark.timeout(150 + AWAY_SECONDS)
def test_without_an_operator_users_are_served_and_lost_engines_replaced(world: World) -> None:
    operator = world.started()
    with serving(world, replicas=2) as service, service.router:
        service.router.wait_until_ready(prefill=2, decode=2)
        with Traffic(service.router.port, service.model) as users:
            operator.terminate()
            ends, rounds = time.monotonic() + AWAY_SECONDS, 0
            children = world.uids(NAME)
            while time.monotonic() < ends or not rounds:
                for uid in lose_a_pair(service):
                    service.wait_until_serving(uid)
                service.router.wait_until_ready(prefill=2, decode=2)
                rounds += 1
            while_away = users.answered
            since = world.plane.audit.position()
            operator.start()
            world.wait(lambda: _looked(world, since), 20, "it does not look")
            time.sleep(RETURN_SECONDS)  # whatever it would write, it would write now
        assert users.failures == []
        assert while_away >= 10 * rounds, "users were served all the time"
        assert users.reused_tokens > 0
        assert [call for call in world.writes(since) if call.resource not in CHANGE_NO_ENGINE] == []
        assert world.uids(NAME) == children
        print(f"{rounds} pairs lost, {users.answered} turns, the slowest {users.slowest_seconds:.1f} s")


def _looked(world: World, since: int) -> bool:
    calls = world.plane.audit.calls(since=since, user=world.installation.user, namespace=world.namespace)
    return any(call.verb == "list" and call.resource == "pods" and "pdd-operator" in call.user_agent for call in calls)
