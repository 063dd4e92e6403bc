"""What is said of an engine that does not answer any more: a warning, but where it was told to go."""

from typing import cast

import pytest
from structlog.testing import capture_logs

from pdd_router.config import Breaker, Direction, Health, Introductions
from pdd_router.endpoints.engine import Engine, EngineId, Listed, Role, Standing
from pdd_router.endpoints.health import HealthChecks
from pdd_router.endpoints.registry import Registry
from pdd_router.errors import EngineFailedError, FailureReason
from pdd_router.upstream import Upstream

D0 = Engine(EngineId("d0", "http://d0", "1"), Role.DECODE, "g", None)


class Dead:
    async def get(self, engine: Engine, path: str, timeout_seconds: float) -> tuple[int, bytes]:
        raise EngineFailedError(engine.id.name, FailureReason.CONNECT)


@pytest.mark.parametrize(
    ("standing", "level"),
    [(Standing.SERVING, "warning"), (Standing.NOT_READY, "warning"), (Standing.DRAINING, "info")],
)
async def test_only_an_engine_that_was_not_told_to_go_is_lost_with_a_warning(standing: Standing, level: str) -> None:
    config = Health()
    registry = Registry(
        clock=lambda: 0.0, breaker=Breaker(), introductions=Introductions(), direction=Direction.BIDIRECTIONAL
    )
    registry.follow([Listed(D0, standing)])
    registry.mark_healthy(D0.id, {"m": {"id": "m"}})
    checks = HealthChecks(registry, cast(Upstream, Dead()), config)
    with capture_logs() as lines:
        for _ in range(config.unhealthy_after + 2):
            await checks.check(D0)
    assert [line["log_level"] for line in lines] == [level]
