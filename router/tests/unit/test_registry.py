"""What a listing does to engines: who gets requests, who is still asked, who is forgotten."""

from dataclasses import replace

from pdd_router.config import Breaker, Direction, Introductions
from pdd_router.endpoints.engine import ClaimAddress, Engine, EngineId, Listed, Role, Standing
from pdd_router.endpoints.registry import Registry

MODELS: dict[str, dict[str, object]] = {"m": {"id": "m"}}
D0 = Engine(EngineId("d0", "http://d0", "1"), Role.DECODE, "g", ClaimAddress("10.0.0.1", 6600))


def make(*listing: Listed) -> Registry:
    registry = Registry(
        clock=lambda: 0.0, breaker=Breaker(), introductions=Introductions(), direction=Direction.BIDIRECTIONAL
    )
    registry.follow(listing)
    for item in listing:
        registry.mark_healthy(item.engine.id, MODELS)
    return registry


def available(registry: Registry) -> list[str]:
    return [view.id.incarnation for view in registry.snapshot().engines if view.available]


def test_only_serving_engines_get_requests_and_none_loses_its_life() -> None:
    registry = make(Listed(D0))
    life = registry.snapshot().engines[0].living
    for standing in (Standing.NOT_READY, Standing.SERVING, Standing.DRAINING):
        registry.follow([Listed(D0, standing)])
        assert available(registry) == (["1"] if standing is Standing.SERVING else [])
        assert registry.snapshot().find(life) is not None, "it may still be named as an owner"
        assert bool(registry.models()) is (standing is Standing.SERVING)


def test_engine_that_is_gone_is_forgotten_with_its_last_request() -> None:
    registry = make(Listed(D0, Standing.DRAINING))
    with registry.use(D0.id, 10):
        registry.follow([])
        assert [state.gone for state in registry.states()] == [True]
        registry.follow([Listed(D0)])
        assert available(registry) == ["1"], "listed again"
        registry.follow([])
    assert registry.states() == ()


def test_claim_address_is_that_of_the_engine_that_lives() -> None:
    """A container restarted in its pod: same address, another engine."""
    old, new = Listed(D0), Listed(replace(D0, id=EngineId("d0", "http://d0", "2")))
    registry = make(old)
    assert D0.claim is not None
    with registry.use(D0.id, 10):
        registry.follow([new])
        found = registry.find_claim(D0.claim)
        assert found is not None
        assert found.engine == new.engine
        assert len(registry.states()) == 2
