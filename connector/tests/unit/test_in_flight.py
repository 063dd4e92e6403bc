"""Blocks of steps under way: lent only after the last step that writes them has ended."""

from hypothesis import given
from hypothesis import strategies as st

from pdd_connector.claims.in_flight import InFlightSteps, written_blocks


def test_a_block_is_in_flight_until_its_steps_output_is_back() -> None:
    steps = InFlightSteps()
    steps.scheduled([1, 2])
    assert 1 in steps
    steps.finished()
    assert 1 not in steps


def test_a_block_written_by_two_steps_waits_for_the_second() -> None:
    steps = InFlightSteps()
    steps.scheduled([1])
    steps.scheduled([1, 2])
    steps.finished()
    assert 1 in steps
    steps.finished()
    assert 1 not in steps


@given(st.lists(st.one_of(st.frozensets(st.integers(0, 9), max_size=4), st.none()), max_size=40))
def test_membership_is_the_union_of_the_open_steps(events: list[frozenset[int] | None]) -> None:
    steps, model = InFlightSteps(), list[frozenset[int]]()
    for event in events:
        if event is not None:
            steps.scheduled(event)
            model.append(event)
        elif model:
            steps.finished()
            model.pop(0)
        assert {block for block in range(10) if block in steps} == set().union(*model)
        assert len(steps) == len(model)


@given(st.integers(1, 64), st.integers(0, 300), st.integers(1, 300))
def test_every_block_a_step_writes_is_named(block_size: int, first_token: int, tokens: int) -> None:
    last_token = first_token + tokens - 1
    blocks = list(range(100, 100 + last_token // block_size + 3))
    needed = blocks[first_token // block_size : last_token // block_size + 1]
    written = written_blocks(blocks, first_token, block_size)
    assert set(needed) <= set(written)
    assert set(blocks[: first_token // block_size]).isdisjoint(written), "what is behind the step may be lent"
