"""The recorder: what is counted, that gauges come back to 0, and that threads lose nothing."""

import json
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd_connector.claims.messages import RefuseReason
from pdd_connector.claims.params import Outcome
from pdd_connector.recorder import BY_NAME, Kind, Recorder, add_up, metric_of


def test_nothing_recorded_is_nothing_taken() -> None:
    recorder = Recorder()
    assert not recorder.has_news
    assert recorder.take() is None


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (lambda r: r.claim_asked(), {"claims_asked": 1}),
        (lambda r: r.claim_answered(0.25), {"claims_answered": 1, "claim_answer_seconds": [0.25]}),
        (lambda r: r.claim_ended("Empty", None), {"claim_outcomes:Empty": 1, "claims_empty": 1}),
        (lambda r: r.claim_ended("Late", None), {"claim_outcomes:Late": 1, "claims_late": 1}),
        (lambda r: r.claim_ended("Unconnected", None), {"claim_outcomes:Unconnected": 1, "claims_unconnected": 1}),
        (lambda r: r.claim_ended("Refused", "Group"), {"claim_outcomes:Refused": 1, "claims_refused:Group": 1}),
        (lambda r: r.claim_ended("Failed", "Timeout"), {"claim_outcomes:Failed": 1, "reads_failed:Timeout": 1}),
        (lambda r: r.claim_ended("Read", None), {"claim_outcomes:Read": 1}),
        (
            lambda r: r.read("DecodeToPrefill", 32, 640),
            {"read_tokens:DecodeToPrefill": 32, "read_bytes:DecodeToPrefill": 640},
        ),
        (
            lambda r: r.claim_granted(3, 0.5),
            {"claims_granted": 1, "claims_granted_blocks": 3, "claim_grant_seconds": [0.5]},
        ),
        (lambda r: r.claim_granted(0, 0.5), {"claim_grant_seconds": [0.5]}),
        (lambda r: r.claim_refused_by_us("OwnerFull"), {"claims_rejected:OwnerFull": 1}),
        (lambda r: r.claims_released("timer", 2), {"claims_released:timer": 2}),
        (lambda r: r.held(1, 9), {"claims_held": 1, "blocks_held": 9}),
        (lambda r: r.retained(9), {"retained": 1, "blocks_retained": 9}),
        (lambda r: r.retain_refused("Cap"), {"retain_refused:Cap": 1}),
        (lambda r: r.retained_freed(0, expired=True), {"retain_expired": 1}),
        (lambda r: r.proof_mismatch(), {"proof_mismatch": 1}),
    ],
)
def test_each_event_is_counted_under_its_name(record: Callable[[Recorder], None], expected: dict[str, object]) -> None:
    recorder = Recorder()
    record(recorder)
    assert recorder.has_news
    taken = recorder.take()
    assert taken == {f"pdd:{key}": value for key, value in expected.items()}
    assert json.loads(json.dumps(taken)) == taken
    assert recorder.take() is None


def test_gauge_is_told_when_it_changes_and_goes_back_to_zero() -> None:
    recorder = Recorder()
    recorder.held(1, 4)
    assert recorder.take() == {"pdd:claims_held": 1, "pdd:blocks_held": 4}
    recorder.held(1, 4)
    assert not recorder.has_news
    recorder.held(0, 0)
    assert recorder.has_news
    assert recorder.take() == {"pdd:claims_held": 0, "pdd:blocks_held": 0}


def test_every_outcome_and_reason_has_its_metric() -> None:
    recorder = Recorder()
    for outcome in Outcome:
        for reason in RefuseReason:
            recorder.claim_ended(outcome.value, reason.value)
    for key in recorder.take() or {}:
        metric, value = metric_of(key)
        assert (metric.label is None) == (value is None)


def test_a_label_cannot_be_forgotten() -> None:
    with pytest.raises(ValueError, match="takes the label reason"):
        Recorder().claim_ended("Refused", None)


def test_threads_lose_nothing() -> None:
    recorder, taken = Recorder(), dict[str, int]()
    threads = [
        threading.Thread(target=lambda: [recorder.read("DecodeToPrefill", 1, 2) for _ in range(2000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        add_up(taken, recorder.take() or {})
    add_up(taken, recorder.take() or {})
    assert taken == {"pdd:read_tokens:DecodeToPrefill": 8000, "pdd:read_bytes:DecodeToPrefill": 16000}


_COUNTER = st.dictionaries(st.sampled_from(["pdd:claims_asked", "pdd:claims_late"]), st.integers(1, 9))
_HISTOGRAM = st.dictionaries(st.just("pdd:claim_answer_seconds"), st.lists(st.floats(0, 1), max_size=3))
_GAUGE = st.dictionaries(st.just("pdd:blocks_held"), st.integers(0, 9))
_TAKEN = st.builds(lambda *parts: {k: v for part in parts for k, v in part.items()}, _COUNTER, _HISTOGRAM, _GAUGE)


@settings(deadline=None)
@given(st.lists(_TAKEN, max_size=6))
def test_adding_up_sums_counts_collects_observations_and_keeps_the_newest_gauge(parts: list[dict[str, object]]) -> None:
    total: dict[str, object] = {}
    for part in parts:
        add_up(total, {key: list(value) if isinstance(value, list) else value for key, value in part.items()})
    for key in {key for part in parts for key in part}:
        values = [part[key] for part in parts if key in part]
        kind = BY_NAME[key.removeprefix("pdd:")].kind
        if kind is Kind.HISTOGRAM:
            assert total[key] == [item for value in values for item in value]  # type: ignore[attr-defined]  # lists here
        else:
            assert total[key] == (values[-1] if kind is Kind.GAUGE else sum(values))  # type: ignore[arg-type]  # integers
