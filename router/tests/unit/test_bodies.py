"""What is held of requests is bounded, in all and of one tenant, and given back."""

import pytest

from pdd_router import bodies
from pdd_router.bodies import Bodies
from pdd_router.errors import QueueFullError


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Bodies:
    """400 bytes, 300 for one tenant."""
    monkeypatch.setattr(bodies, "_LEAST_BYTES", 0)
    return Bodies(100)


def test_no_tenant_has_all_and_all_have_no_more_than_there_is(small: Bodies) -> None:
    with small.held_for("flood") as flood, small.held_for("calm") as calm:
        flood(300)
        with pytest.raises(QueueFullError):
            flood(1)
        calm(100)
        with pytest.raises(QueueFullError):
            calm(1)
        assert small.held == 400
    assert small.held == 0
    with small.held_for("flood") as flood:
        flood(300)


def test_without_keys_one_may_have_all(small: Bodies) -> None:
    with small.held_for("anonymous") as more:
        more(400)
        with pytest.raises(QueueFullError):
            more(1)


def test_what_was_refused_is_not_held(small: Bodies) -> None:
    with pytest.raises(QueueFullError), small.held_for("flood") as more:
        more(200)
        more(200)
    assert small.held == 0
