"""The breaker, on a clock of its own; and the registry's share of it."""

from pdd_router.config import Breaker as BreakerConfig
from pdd_router.config import Direction, Introductions
from pdd_router.endpoints.breaker import Breaker, BreakerState
from pdd_router.endpoints.engine import Engine, EngineId, Listed, Role, Standing
from pdd_router.endpoints.registry import NotAdmittedError, Registry


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock, *, may_eject: bool = True) -> Breaker:
    return Breaker(clock=clock, may_eject=lambda: may_eject, failures=3, base_seconds=5, max_seconds=15)


def fail(breaker: Breaker) -> None:
    breaker.end(probe=breaker.begin(), success=False)


def half_open() -> tuple[Clock, Breaker]:
    """Just now: the first time out is over."""
    clock = Clock()
    breaker = make(clock)
    for _ in range(3):
        fail(breaker)
    clock.now += 5
    return clock, breaker


def test_opens_after_failures_in_a_row_only() -> None:
    breaker = make(Clock())
    for outcome in (False, False, True, False, False, None):
        breaker.end(probe=breaker.begin(), success=outcome)
    assert breaker.state is BreakerState.CLOSED
    fail(breaker)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.admits


def test_half_open_lets_exactly_one_through_and_its_outcome_decides() -> None:
    clock, breaker = half_open()
    assert breaker.state is BreakerState.HALF_OPEN
    probe = breaker.begin()
    assert probe is not None
    assert not breaker.admits, "a second one must wait for the first"
    breaker.end(probe=probe, success=False)
    assert breaker.state is BreakerState.OPEN
    clock.now += 9.9
    assert not breaker.admits, "twice as long after a failed probe"
    clock.now += 0.1
    breaker.end(probe=breaker.begin(), success=None)
    assert breaker.admits, "a probe that says nothing is no verdict: the next request may probe"
    breaker.end(probe=breaker.begin(), success=True)
    assert breaker.state is BreakerState.CLOSED


def test_probe_that_takes_long_keeps_no_other_from_trying() -> None:
    """A whole answer may take half an hour; whichever ends first decides, and the others say nothing then."""
    for success in (True, False):
        clock, breaker = half_open()
        slow = breaker.begin()
        clock.now += 4.9
        assert not breaker.admits
        clock.now += 0.1
        quick = breaker.begin()
        assert not breaker.admits, "one more, not any number"
        breaker.end(probe=quick, success=success)
        assert breaker.state is (BreakerState.CLOSED if success else BreakerState.OPEN)
        breaker.end(probe=slow, success=not success)
        assert breaker.state is (BreakerState.CLOSED if success else BreakerState.OPEN)


def test_probe_that_others_did_not_wait_for_counts_all_the_same() -> None:
    """Else an engine of which all answers take long would stay ejected for ever."""
    clock, breaker = half_open()
    slow = breaker.begin()
    clock.now += 5
    breaker.begin()
    breaker.end(probe=slow, success=True)
    assert breaker.state is BreakerState.CLOSED


def test_late_success_of_an_old_request_does_not_close_it() -> None:
    breaker = make(Clock())
    old = breaker.begin()
    for _ in range(3):
        fail(breaker)
    breaker.end(probe=old, success=True)
    assert breaker.state is BreakerState.OPEN


def test_probe_of_an_earlier_life_says_nothing_of_the_next() -> None:
    """The engine was replaced while it was probed: it is closed, and a later probe is its own."""
    clock, breaker = half_open()
    old = breaker.begin()
    breaker.reset()
    breaker.end(probe=old, success=False)
    assert breaker.state is BreakerState.CLOSED
    for _ in range(3):
        fail(breaker)
    clock.now += 5
    new = breaker.begin()
    breaker.end(probe=old, success=True)
    assert breaker.state is BreakerState.HALF_OPEN
    assert not breaker.admits, "the new probe is under way"
    breaker.end(probe=new, success=True)
    assert breaker.state is BreakerState.CLOSED


def test_time_out_is_bounded() -> None:
    clock = Clock()
    breaker = make(clock)
    for _ in range(3):
        fail(breaker)
    for _ in range(6):
        clock.now += 15
        assert breaker.state is BreakerState.HALF_OPEN
        fail(breaker)


def test_not_ejected_where_the_role_cannot_spare_it() -> None:
    breaker = make(Clock(), may_eject=False)
    for _ in range(9):
        fail(breaker)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.suppressed == 3


def registry_of(count: int) -> Registry:
    registry = Registry(
        clock=Clock(),
        breaker=BreakerConfig(failures=1),
        introductions=Introductions(),
        direction=Direction.BIDIRECTIONAL,
    )
    registry.replace(Engine(EngineId(f"p{at}", f"http://p{at}"), Role.PREFILL, "", None) for at in range(count))
    for state in registry.states():
        registry.mark_healthy(state.engine.id, {"m": {}})
    return registry


def test_at_most_half_of_a_role_is_out() -> None:
    for count, most in ((1, 0), (2, 1), (3, 1), (4, 2), (5, 2)):
        registry = registry_of(count)
        for state in registry.states():
            with registry.use(state.engine.id, 1) as use:
                use.success = False
        assert sum(state.breaker.ejected for state in registry.states()) == most


def eject(registry: Registry, *names: str) -> None:
    for state in registry.states():
        if state.engine.id.name in names:
            with registry.use(state.engine.id, 1) as use:
                use.success = False


def out(registry: Registry) -> set[str]:
    return {state.engine.id.name for state in registry.states() if state.breaker.ejected}


def test_engines_that_are_down_are_no_peers() -> None:
    registry = registry_of(2)
    registry.mark_unhealthy(registry.states()[0].engine.id, 1)
    eject(registry, "p1")
    assert out(registry) == set(), "nobody else is there"


def test_where_peers_go_ejected_ones_come_back() -> None:
    registry = registry_of(4)
    eject(registry, "p0", "p1")
    assert out(registry) == {"p0", "p1"}
    registry.mark_unhealthy(registry.states()[2].engine.id, 1)
    assert out(registry) == {"p1"}, "one of three"
    registry.replace([state.engine for state in registry.states() if state.engine.id.name in ("p1", "p2")])
    assert out(registry) == set(), "it is the only one"


def test_ejected_engines_that_come_back_are_not_more_than_half() -> None:
    registry = registry_of(4)
    engines = [state.engine for state in registry.states()]
    eject(registry, "p0", "p1")
    registry.follow(
        Listed(one, Standing.NOT_READY if one.id.name in ("p0", "p1") else Standing.SERVING) for one in engines
    )
    eject(registry, "p2")
    assert out(registry) == {"p0", "p1", "p2"}
    registry.replace(engines)
    assert len(out(registry)) == 2


def test_use_gives_everything_back_whatever_happens() -> None:
    registry = registry_of(1)
    (state,) = registry.states()
    for error in (ValueError, KeyboardInterrupt):
        try:
            with registry.use(state.engine.id, 7):
                assert (state.in_flight, state.in_flight_tokens) == (1, 7)
                raise error
        except error:
            pass
        assert (state.in_flight, state.in_flight_tokens) == (0, 0)
    try:
        with registry.use(EngineId("gone", "http://gone"), 1):
            raise AssertionError("not reached")
    except NotAdmittedError:
        pass


def test_engine_that_goes_away_and_comes_back_lives_another_life() -> None:
    registry = registry_of(1)
    (state,) = registry.states()
    before = state.view().living
    assert not registry.mark_unhealthy(state.engine.id, 2)
    assert state.view().living == before, "one missed check is no death"
    assert registry.mark_unhealthy(state.engine.id, 2)
    assert not state.view().available
    assert registry.mark_healthy(state.engine.id, {"m": {}})
    assert state.view().living != before


def test_removed_engine_stays_until_its_last_request_has_ended() -> None:
    registry = registry_of(2)
    first, second = registry.states()
    with registry.use(first.engine.id, 1):
        registry.replace([second.engine])
        assert not first.view().available
        assert registry.find(first.engine.id) is first
    assert registry.find(first.engine.id) is None
