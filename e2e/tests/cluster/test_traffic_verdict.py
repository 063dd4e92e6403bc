"""Verdicts on traffic: right and wrong words, kinds of failures, and what reuse saved."""

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from pdd_e2e.kind_suite.faults import Fault, How, Standing, draw, explains
from pdd_e2e.kind_suite.traffic_plan import LONG, READER, dialogues, make_keys, plan
from pdd_e2e.kind_suite.traffic_verdict import Reuse, failures, is_right, kinds, parse, reuse, wrong

SURE = {"text": "Rome is old", "sure": "Rome is old"}
NEAR = {"text": "Rome is old", "sure": "Rome is"}
REFERENCES = [{"kind": "reference", "dialogue": "talk", "turn": at, **SURE} for at in range(3)]


def attempt(**fields: Any) -> dict[str, Any]:
    base: dict[str, Any] = dict.fromkeys(
        ("status", "code", "last_at", "told_at", "finish", "end", "usage", "receipt", "error")
    )
    base |= {"kind": "attempt", "user": "user-0", "dialogue": "talk", "conversation": 0, "turn": 0, "tried": 0}
    return (
        base
        | {"began": 1.0, "ended": 2.0, "outcome": "Whole", "done": 1, "after_end": 0, "text": "Rome is old"}
        | fields
    )


def heard(*lines: Mapping[str, Any]) -> Any:
    return parse([json.dumps(line) for line in (*REFERENCES, *lines)])


@pytest.mark.parametrize(
    ("text", "expected", "whole", "right"),
    [
        ("Rome is old", SURE, True, True),
        ("Rome is", SURE, True, False),
        ("Rome is is old", SURE, True, False),
        ("Rome is", SURE, False, True),
        ("", SURE, False, True),
        ("Rome Rome", SURE, False, False),
        ("Rome is new", NEAR, True, True),
        ("Rome was", NEAR, True, False),
        ("Ro", NEAR, False, True),
        ("Ra", NEAR, False, False),
    ],
)
def test_words_are_right_up_to_the_first_near_tie(
    text: str, expected: Mapping[str, str], whole: bool, right: bool
) -> None:
    assert is_right(text, expected, whole=whole) is right


def test_failures_are_counted_by_kind_and_wrong_words_named() -> None:
    found = heard(attempt(), attempt(outcome="Told", code="stream_broken", text="Rome"), attempt(text="Paris"))
    assert kinds(found.attempts) == {"Whole": 2, "Told stream_broken": 1}
    assert len(failures(found.attempts)) == 1
    (words,) = wrong(found)
    assert "'Paris' instead of 'Rome is old'" in words


def test_a_stream_runs_from_its_opening_to_its_attempt_s_end() -> None:
    opened = {"kind": "opened", "user": LONG, "began": 5.0, "decode": "d-1"}
    other = opened | {"began": 6.0}
    found = heard(opened, attempt(user=LONG, began=5.0), other)
    assert [(stream.began, stream.decode) for stream in found.running(LONG, 6.0)] == [(6.0, "d-1")]
    assert found.running(LONG, 6.1) == []
    assert found.running("user-0", 0.0) == []


def test_a_user_waits_from_asking_to_the_opening() -> None:
    asked = {"kind": "asked", "user": READER, "began": 5.0}
    opened = {"kind": "opened", "user": READER, "began": 5.0, "decode": "d-1"}
    assert heard(asked).waits(READER)
    assert not heard(asked).waits(LONG)
    assert not heard(asked, opened).waits(READER)
    assert not heard(asked, attempt(user=READER, began=5.0)).waits(READER)


def test_what_is_no_line_of_the_program_is_an_error() -> None:
    with pytest.raises(ValueError):
        parse(["Traceback (most recent call last):"])


def test_answers_are_recorded_in_the_order_of_turns() -> None:
    lines = [{"kind": "reference", "dialogue": "talk", "turn": at, "text": str(at), "sure": ""} for at in range(2)]
    found = parse([json.dumps(line) for line in (*lines, {"kind": "ready"})])
    assert found.ready
    assert [answer["text"] for answer in found.answers["talk"]] == ["0", "1"]


def receipt(engine: str, prompt: int, local: int, read: int) -> dict[str, Any]:
    leg = {"engine": engine, "prompt_tokens": prompt, "local_tokens": local, "read_tokens": read}
    return {"prefill": leg, "decode": {"engine": "d-0"}}


def test_reuse_is_counted_against_own_caches_and_against_none() -> None:
    turns = [
        attempt(turn=0, ended=2.0, receipt=receipt("p-0", 100, 0, 0)),
        attempt(turn=1, ended=3.0, receipt=receipt("p-1", 200, 0, 96)),
        attempt(turn=2, ended=4.0, receipt=receipt("p-0", 300, 96, 96)),
        attempt(turn=2, ended=5.0, outcome="Told", receipt=receipt("p-0", 300, 0, 0)),
        attempt(turn=3, ended=6.0, receipt={"prefill": None, "decode": {"engine": "d-0"}}),
    ]
    found = reuse(heard(*turns).attempts)
    assert found.all == Reuse(3, 600, 100 + 104 + 108, 100 + 200 + (300 - 96))
    assert found.handed_over == Reuse(2, 500, 104 + 108, 200 + (300 - 96))
    assert (found.read_over, found.late) == (2, 0)
    assert "312 (52 %)" in found.table()


def test_a_history_that_comes_too_late_is_counted() -> None:
    missed = receipt("p-1", 200, 0, 0)
    missed["prefill"]["reason"] = "Timeout"
    turns = [attempt(turn=0, ended=2.0, receipt=receipt("p-0", 100, 0, 0)), attempt(turn=1, ended=3.0, receipt=missed)]
    found = reuse(heard(*turns).attempts)
    assert (found.handed_over.turns, found.read_over, found.late) == (1, 0, 1)


def test_reuse_since_a_time_minds_what_engines_took_before() -> None:
    turns = [
        attempt(turn=0, began=1.0, ended=2.0, receipt=receipt("p-0", 100, 0, 0)),
        attempt(turn=1, began=3.0, ended=4.0, receipt=receipt("p-0", 200, 96, 0)),
        attempt(turn=2, began=5.0, ended=6.0, receipt=receipt("p-1", 300, 0, 192)),
    ]
    found = reuse(heard(*turns).attempts, 3.0)
    assert found.all == Reuse(2, 500, 104 + 108, (200 - 96) + 300)
    assert found.handed_over == Reuse(1, 300, 108, 300)


@pytest.mark.parametrize(
    ("fields", "explained"),
    [
        ({"outcome": "Told", "code": "stream_broken", "receipt": receipt("p-0", 1, 0, 0)}, True),
        ({"outcome": "Told", "code": "stream_broken", "receipt": receipt("p-0", 1, 0, 0), "ended": 9.0}, False),
        ({"outcome": "Told", "code": "stream_broken", "receipt": receipt("p-0", 1, 0, 0), "began": 16.0}, False),
        ({"outcome": "Told", "code": "internal_error"}, False),
        ({"outcome": "Cut", "ended": 21.0}, True),
        ({"outcome": "Dropped", "began": 36.0, "ended": 37.0}, False),
        ({"outcome": "Unreachable", "began": 34.0, "ended": 34.0}, True),
        ({"outcome": "Cut", "ended": 19.0}, False),
        ({"outcome": "Hang", "ended": 21.0}, False),
        ({"outcome": "Refused", "code": "no_engine", "ended": 21.0}, False),
    ],
)
def test_failures_are_explained_by_what_died_while_they_lasted(fields: dict[str, Any], explained: bool) -> None:
    """d-0 dies at 10, a router at 20."""
    faults = [Fault("decode", "d-0", How.CRASHED, 10.0), Fault("router", "r-0", How.DELETED, 20.0)]
    (failed,) = heard(attempt(**({"began": 8.0, "ended": 11.0} | fields))).attempts
    assert explains(faults, failed) is explained


def test_plans_have_a_key_for_each_conversation_and_one_for_references() -> None:
    keys = make_keys()
    told = plan("http://router", keys, 5, LONG, READER)
    assert len(set(keys)) == len(keys)
    assert told["reference_key"] not in told["keys"]
    names = {dialogue["name"] for dialogue in told["dialogues"]}
    assert {name for spoken in told["users"].values() for name in spoken} == names
    assert names == {dialogue["name"] for dialogue in dialogues()}
    assert set(plan("http://router", keys, 1, returning=2)["returning"]) == {"returning-0", "returning-1"}
    talkers = plan("http://router", keys, 1)
    assert LONG not in {dialogue["name"] for dialogue in talkers["dialogues"]}


def test_only_roles_that_are_whole_are_harmed() -> None:
    standing = {"decode": Standing(2, ["d-0"]), "prefill": Standing(2, ["p-0", "p-1"]), "router": Standing(2, [])}
    drawn = {draw(random.Random(seed), standing) for seed in range(40)}
    assert drawn == {("prefill", pod, how) for pod in ("p-0", "p-1") for how in How}
    assert draw(random.Random(1), {"decode": Standing(2, ["d-0"])}) is None


def test_routers_are_deleted_and_never_crashed() -> None:
    drawn = {draw(random.Random(seed), {"router": Standing(1, ["r"])}) for seed in range(20)}
    assert drawn == {("router", "r", How.DELETED)}
