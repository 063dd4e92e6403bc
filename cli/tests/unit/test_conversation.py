"""The script: its shape, its sizes, and that each turn extends what was sent before."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd_cli.demo.conversation import (
    Message,
    TokenRates,
    extend,
    log_lines,
    plan_new_tokens,
    prose,
    script,
)

RATES = TokenRates(prose=4.0, log=2.0)


def hold(turns: int, longest: int) -> list[list[Message]]:
    """Every message list that is sent, with made-up replies."""
    history: list[Message] = []
    sent = []
    for turn in script(plan_new_tokens(turns, longest), RATES):
        messages = extend(history, turn)
        sent.append(messages)
        history = [*messages, {"role": "assistant", "content": f"reply {turn.number}"}]
    return sent


@given(st.integers(3, 40), st.integers(512, 7900))
def test_plan_adds_up(turns: int, longest: int) -> None:
    sizes = plan_new_tokens(turns, longest)
    assert len(sizes) == turns
    assert min(sizes) > 0
    if longest > 60 * turns:
        assert sum(sizes) == pytest.approx(longest, rel=0.1)


@pytest.mark.parametrize("turns", [3, 4, 7, 8])
def test_last_turn_is_a_short_question(turns: int) -> None:
    made = script(plan_new_tokens(turns, 2000), RATES)
    assert not made[-1].is_tool_result
    assert len(made[-1].added[0]["content"]) < 200
    assert any(turn.is_tool_result for turn in made)


def test_every_turn_extends_the_one_before() -> None:
    sent = hold(7, 1500)
    for before, after in itertools.pairwise(sent):
        # The template of the model renders role and content only.
        assert [(m["role"], m["content"]) for m in after[: len(before)]] == [(m["role"], m["content"]) for m in before]


def test_tool_results_answer_a_call_of_the_message_before() -> None:
    messages = hold(7, 1500)[-1]
    results = [index for index, message in enumerate(messages) if message["role"] == "tool"]
    assert len(results) == 3
    for index in results:
        (call,) = messages[index - 1]["tool_calls"]
        assert messages[index - 1]["role"] == "assistant"
        assert call["id"] == messages[index]["tool_call_id"]
        json.loads(call["function"]["arguments"])


def test_extend_leaves_the_history_alone() -> None:
    history: list[Message] = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    turn = script(plan_new_tokens(4, 800), RATES)[1]
    extend(history, turn)
    assert history == [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


@given(st.integers(0, 20_000), st.integers(0, 9))
def test_texts_have_the_length_asked_for(characters: int, seed: int) -> None:
    assert characters - 1 <= len(prose(characters)) <= characters + 200
    assert characters - 1 <= len(log_lines(characters, seed)) <= characters + 120


def test_same_script_every_time_and_other_logs_every_turn() -> None:
    assert script(plan_new_tokens(7, 1500), RATES) == script(plan_new_tokens(7, 1500), RATES)
    assert log_lines(500, 2) != log_lines(500, 4)
