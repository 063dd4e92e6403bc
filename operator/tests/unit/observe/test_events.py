"""Events: one per change, none without one."""

from __future__ import annotations

import itertools

import pytest
from condition_case import Case
from condition_cases import CASES as CONDITION_CASES
from event_cases import CASES, TRUE, EventCase, groups, said
from observed_world import config_map

from pdd_operator.api.objects import Apply
from pdd_operator.observe.events import MAX_OBJECTS, Event, events_between
from pdd_operator.observe.reasons import EventReason


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.reason.value)
def test_tells_the_change_once(case: EventCase) -> None:
    (event,) = events_between(case.old, case.new, case.actions)
    assert (event.reason, event.warning) == (case.reason, case.warning)
    assert case.contains in event.message
    assert events_between(case.new, case.new, ()) == ()


def test_every_reason_that_a_difference_may_give_has_a_case() -> None:
    assert {case.reason for case in CASES} == set(EventReason) - {
        EventReason.CLAIM_KEY_REPLACED,
        EventReason.TENANT_SALT_REPLACED,
        EventReason.SECRET_FOUND,
        EventReason.LEFT_TO_ANOTHER,
    }  # reconcile's own


@pytest.mark.parametrize("case", CONDITION_CASES, ids=lambda case: f"{case.kind}-{case.name}")
def test_a_status_that_stays_tells_nothing(case: Case) -> None:
    status = case.compute()
    assert events_between(status, status, ()) == ()


def test_a_message_alone_is_no_change() -> None:
    assert events_between(TRUE, said("Ready", "True", "AllAvailable", "in other words"), ()) == ()


def test_what_is_well_at_first_sight_is_told_and_nothing_else() -> None:
    new = TRUE | {"prefill": {"replicas": 2}} | groups("a")
    assert [event.reason for event in events_between({}, new, ())] == ["BecameReady"]
    assert events_between({}, said("ReuseActive", "Unknown", "NotObserved"), ()) == ()


def test_an_engine_on_its_way_up_is_no_event() -> None:
    steps = [
        said("PrefillAvailable", "False", reason) for reason in ("PodsMissing", "ContainerStarting", "ModelLoading")
    ]
    for old, new in itertools.pairwise(({}, *steps, said("PrefillAvailable", "True", "AllReady"))):
        assert events_between(old, new, ()) == ()


def test_many_objects_are_one_event() -> None:
    actions = [Apply(config_map(f"g{number:05}"), "it was missing") for number in range(25)]
    (event,) = events_between({}, {}, actions)
    assert event.message.endswith(f"and {25 - MAX_OBJECTS} more")
    assert isinstance(event, Event)
