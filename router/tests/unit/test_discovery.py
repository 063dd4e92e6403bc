"""What discovery says when the API server does not answer: once per change, and a refusal in other words than an absence."""

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from pdd_router.config import Breaker, Direction, Introductions
from pdd_router.endpoints.registry import Registry
from pdd_router.metrics import DiscoveryMetrics
from pdd_router.pods.discovery import Discovery
from pdd_router.pods.watching import Failed, Heard, Trouble

HEARD = Heard()
LOST, REFUSED = Failed(Trouble.CONNECT, 1.0, "list"), Failed(Trouble.REFUSED, 1.0, "watch")
GONE = Failed(Trouble.GONE, 1.0, "watch")


@pytest.fixture
def discovery() -> Discovery:
    registry = Registry(
        clock=lambda: 0.0, breaker=Breaker(), introductions=Introductions(), direction=Direction.BIDIRECTIONAL
    )
    return Discovery(registry, DiscoveryMetrics(CollectorRegistry()), lambda: 0.0)


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ([LOST, LOST, LOST], ["Connect"]),
        ([REFUSED, REFUSED], ["Refused"]),
        ([LOST, REFUSED, REFUSED, LOST], ["Connect", "Refused", "Connect"]),
        ([HEARD, LOST, HEARD, LOST], ["Connect", "Connect"]),
        ([HEARD, REFUSED, HEARD, REFUSED], ["Refused", "Refused"]),
        ([HEARD, GONE], []),
    ],
)
def test_each_change_for_the_worse_is_said_once(
    discovery: Discovery, reports: list[Heard | Failed], said: list[str]
) -> None:
    with capture_logs() as logs:
        for report in reports:
            discovery.take(report)
    assert [line["reason"] for line in logs if line["log_level"] == "warning"] == said


def test_a_refusal_names_the_role_and_the_verb(discovery: Discovery) -> None:
    with capture_logs() as logs:
        discovery.take(REFUSED)
    assert "Role must allow" in logs[0]["event"]
    assert logs[0]["verb"] == "watch"
