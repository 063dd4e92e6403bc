"""Times and the root of the set of conditions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from observed_world import LONG_AGO, NOW

from pdd_operator.observe.conditions import (
    DEPENDENTS,
    Finding,
    Truth,
    assemble,
    format_time,
    parse_time,
    previous_conditions,
    shortened,
    stalled_finding,
    with_stalled,
)
from pdd_operator.observe.reasons import ConditionType, Reason

WELL = Finding(Truth.TRUE, Reason.ALL_READY, "well")
LATER = NOW + timedelta(hours=1)


def all_well() -> dict[ConditionType, Finding]:
    return dict.fromkeys(DEPENDENTS, WELL)


def one(conditions: list[dict[str, Any]], kind: ConditionType) -> dict[str, Any]:
    return next(condition for condition in conditions if condition["type"] == kind)


def test_without_findings_everything_is_unknown_from_the_first_visit() -> None:
    conditions = assemble({}, {}, 7, NOW)
    assert {condition["status"] for condition in conditions} == {"Unknown"}
    assert {condition["observedGeneration"] for condition in conditions} == {7}
    assert {condition["lastTransitionTime"] for condition in conditions} == {format_time(NOW)}


def test_the_time_moves_with_the_status_alone() -> None:
    first = assemble(all_well(), {}, 1, NOW)
    other = {**all_well(), ConditionType.ACCEPTED: Finding(Truth.TRUE, Reason.VALID, "in other words")}
    second = assemble(other, previous_conditions({"conditions": first}), 2, LATER)
    assert one(second, ConditionType.ACCEPTED)["message"] == "in other words"
    assert one(second, ConditionType.ACCEPTED)["lastTransitionTime"] == format_time(NOW)
    other[ConditionType.ACCEPTED] = Finding(Truth.FALSE, Reason.INVALID_SPEC, "no")
    third = assemble(other, previous_conditions({"conditions": second}), 2, LATER)
    assert one(third, ConditionType.ACCEPTED)["lastTransitionTime"] == format_time(LATER)
    assert one(third, ConditionType.READY)["lastTransitionTime"] == format_time(LATER)
    assert one(third, ConditionType.DECODE_AVAILABLE)["lastTransitionTime"] == format_time(NOW)


def test_the_newest_unhappy_dependent_is_copied_up_and_false_trumps_unknown() -> None:
    found = {**all_well(), ConditionType.ACCEPTED: Finding(Truth.FALSE, Reason.INVALID_SPEC, "first")}
    first = assemble(found, {}, 1, NOW)
    found[ConditionType.ROUTER_AVAILABLE] = Finding(Truth.FALSE, Reason.CRASH_LOOPING, "second")
    second = assemble(found, previous_conditions({"conditions": first}), 1, LATER)
    assert one(second, ConditionType.READY)["message"] == "second"
    found[ConditionType.DECODE_AVAILABLE] = Finding(Truth.UNKNOWN, Reason.NOT_OBSERVED, "third")
    third = assemble(found, previous_conditions({"conditions": second}), 1, LATER + timedelta(hours=1))
    assert one(third, ConditionType.READY)["message"] == "second"
    assert one(third, ConditionType.READY)["reason"] == Reason.CRASH_LOOPING


def test_control_of_equally_new_the_first_counts_always() -> None:
    found = {kind: Finding(Truth.FALSE, Reason.NOT_ANSWERING, kind.value) for kind in DEPENDENTS}
    assert one(assemble(found, {}, 1, NOW), ConditionType.READY)["message"] == DEPENDENTS[0].value


def stalled(status: str, since: str, progressed: Any = None, deadline_seconds: int = 60) -> Finding:
    ready = {"status": status, "reason": "PodsMissing", "message": "none", "lastTransitionTime": since}
    return stalled_finding({"status": "True"}, ready, progressed, deadline_seconds, NOW)


def test_stalled_counts_from_when_ready_went_and_from_the_last_progress() -> None:
    ago = format_time(NOW - timedelta(seconds=61))
    assert stalled("False", ago).status is Truth.TRUE
    assert stalled("False", format_time(NOW - timedelta(seconds=60))).status is Truth.FALSE
    assert stalled("Unknown", ago, NOW - timedelta(seconds=30)).status is Truth.FALSE
    assert stalled("False", ago, NOW - timedelta(days=9)).status is Truth.TRUE
    assert stalled("True", LONG_AGO).reason is Reason.COMPLETE


def test_stalled_is_last_and_dated_as_the_others() -> None:
    conditions = assemble(all_well(), {}, 1, NOW)
    whole = with_stalled(conditions, Finding(Truth.FALSE, Reason.COMPLETE, "done"), {}, 1, NOW)
    assert whole[-1]["type"] == ConditionType.STALLED
    assert whole[0]["type"] == ConditionType.READY
    again = with_stalled(
        conditions, Finding(Truth.FALSE, Reason.COMPLETE, "done"), previous_conditions({"conditions": whole}), 1, LATER
    )
    assert again == whole


def test_times_that_are_none() -> None:
    assert [parse_time(text) for text in (None, "", "yesterday", "2026-11-29T12:00:00", 3)] == [None] * 5
    assert parse_time("2026-11-29T12:00:00Z") == NOW


def test_messages_are_one_bounded_line() -> None:
    assert shortened("a\n  b\t c") == "a b c"
    assert len(shortened("x" * 5000)) == 1024


def test_a_message_gives_no_orders_to_a_terminal() -> None:
    assert shortened("a\x1b[2J\n b\x7f") == r"a\x1b[2J b\x7f"
