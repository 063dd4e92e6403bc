"""The fit of prefill times, and the prompt length that follows from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd_cli.demo.calibration import MIN_TOKENS, PrefillCost, Probe, fit, longest_prompt

LIMIT = 8000


@given(st.floats(1e-5, 0.05), st.floats(1e-9, 1e-5))
def test_fit_finds_what_made_the_times(linear: float, quadratic: float) -> None:
    cost = PrefillCost(linear, quadratic)
    found = fit([Probe(tokens, cost.seconds(tokens)) for tokens in (300, 1000, 2000)])
    assert found.seconds(4000) == pytest.approx(cost.seconds(4000), rel=1e-6)


@given(
    st.lists(st.tuples(st.integers(10, 3000), st.floats(0.01, 30)), min_size=2, max_size=5, unique_by=lambda p: p[0])
)
def test_fit_never_gets_cheaper_with_length(samples: list[tuple[int, float]]) -> None:
    cost = fit([Probe(tokens, seconds) for tokens, seconds in samples])
    assert cost.linear >= 0
    assert cost.quadratic >= 0
    assert cost.seconds(1000) > 0


def test_fit_wants_two_lengths() -> None:
    with pytest.raises(ValueError, match="different length"):
        fit([Probe(100, 1.0), Probe(100, 1.1)])


@given(st.floats(1e-5, 0.05), st.floats(0, 1e-5), st.floats(1, 30))
def test_longest_prompt_is_the_longest_that_fits(linear: float, quadratic: float, target: float) -> None:
    cost = PrefillCost(linear, quadratic)
    tokens = longest_prompt(cost, target, LIMIT)
    assert MIN_TOKENS <= tokens <= LIMIT
    assert tokens == MIN_TOKENS or cost.seconds(tokens) <= target
    assert tokens == LIMIT or cost.seconds(tokens + 1) > target


def test_machine_of_the_notes() -> None:
    """1,010 tokens in 11.3 s, 404 in 3.3 s: ten seconds are some 900 tokens."""
    cost = fit([Probe(404, 3.3), Probe(1010, 11.3)])
    assert 850 < longest_prompt(cost, 10, LIMIT) < 1010
