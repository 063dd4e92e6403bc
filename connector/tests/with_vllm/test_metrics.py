"""Our numbers through vLLM's real path: worker and scheduler statistics, the dict between processes, Prometheus."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

from pdd_connector.metrics import PddConnectorStats, PddPromMetrics, Recorder, collect
from pdd_connector.recorder import METRICS, Kind

LABELS = {"model_name": "m", "engine": "0"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def prom(registry: CollectorRegistry) -> PddPromMetrics:
    def registered(kind: Any) -> Any:
        return lambda **arguments: kind(**arguments, registry=registry)

    types = {kind: registered(kind) for kind in (Gauge, Counter, Histogram)}
    return PddPromMetrics(SimpleNamespace(kv_transfer_config=None), types, [*LABELS], {0: [*LABELS.values()]})


def _transfer() -> NixlKVConnectorStats:
    stats = NixlKVConnectorStats()
    stats.record_transfer(SimpleNamespace(xferDuration=1e6, postDuration=1e3, totalBytes=4096, descCount=3))
    return stats


def _step(worker: Recorder, base: NixlKVConnectorStats | None, scheduler: Recorder) -> dict[str, Any]:
    """As `Scheduler.update_from_output` joins both sides and `make_stats` sends them."""
    stats, ours = collect(worker, base), collect(scheduler, None)
    if ours is not None and not ours.is_empty():
        stats = stats.aggregate(ours) if stats is not None else ours
    return json.loads(json.dumps(stats.to_dict())) if stats is not None else {}


def test_both_sides_arrive_in_one_dict(prom: PddPromMetrics, registry: CollectorRegistry) -> None:
    worker, scheduler = Recorder(), Recorder()
    scheduler.claim_asked()
    scheduler.claim_ended("Refused", "Group")
    scheduler.claim_answered(0.02)
    scheduler.held(2, 9)
    prom.observe(_step(worker, _transfer(), scheduler))
    assert registry.get_sample_value("vllm:nixl_bytes_transferred_sum", LABELS) == 4096
    assert registry.get_sample_value("vllm:pdd_claims_asked_total", LABELS) == 1
    assert registry.get_sample_value("vllm:pdd_claims_refused_total", {**LABELS, "reason": "Group"}) == 1
    assert registry.get_sample_value("vllm:pdd_claims_refused_total", {**LABELS, "reason": "Asleep"}) == 0
    assert registry.get_sample_value("vllm:pdd_claim_answer_seconds_sum", LABELS) == pytest.approx(0.02)
    assert registry.get_sample_value("vllm:pdd_blocks_held", LABELS) == 9
    scheduler.held(0, 0)
    prom.observe(_step(worker, None, scheduler))
    assert registry.get_sample_value("vllm:pdd_blocks_held", LABELS) == 0


def test_stock_statistics_would_not_take_ours() -> None:
    """The control: why a worker's statistics are made ours before the scheduler's are added to them."""
    recorder = Recorder()
    recorder.claim_asked()
    ours = collect(recorder, None)
    with pytest.raises(KeyError):
        _transfer().aggregate(ours)
    recorder.claim_asked()
    joined = collect(Recorder(), _transfer()).aggregate(collect(recorder, None))
    assert joined.data["pdd:claims_asked"] == 1
    assert joined.num_successful_transfers == 1


def test_workers_of_one_engine_are_joined() -> None:
    left, right = Recorder(), Recorder()
    left.claim_asked()
    right.claim_asked()
    joined = collect(left, _transfer()).aggregate(collect(right, _transfer()))
    assert joined.data["pdd:claims_asked"] == 2
    assert joined.num_successful_transfers == 2


def test_every_metric_is_shown_from_the_start(prom: PddPromMetrics, registry: CollectorRegistry) -> None:
    suffix = {Kind.COUNTER: "_total", Kind.GAUGE: "", Kind.HISTOGRAM: "_count"}
    for metric in METRICS:
        for value in metric.values if metric.label else (None,):
            labels = LABELS | ({metric.label: value} if metric.label and value else {})
            assert registry.get_sample_value(f"vllm:pdd_{metric.name}{suffix[metric.kind]}", labels) == 0, metric.name


def test_label_values_that_nobody_foresaw_are_shown(prom: PddPromMetrics, registry: CollectorRegistry) -> None:
    recorder = Recorder()
    recorder.claim_refused_by_us("Brandnew")
    prom.observe(_step(recorder, None, Recorder()))
    assert registry.get_sample_value("vllm:pdd_claims_rejected_total", {**LABELS, "reason": "Brandnew"}) == 1


def test_empty_and_not() -> None:
    assert collect(Recorder(), None) is None
    assert PddConnectorStats().is_empty()
    recorder = Recorder()
    recorder.held(1, 1)
    assert not collect(recorder, None).is_empty()
    assert not PddConnectorStats(data=_transfer().data).is_empty()


def test_line_in_the_log() -> None:
    recorder = Recorder()
    recorder.claim_ended("Refused", "Group")
    recorder.claim_answered(0.1)
    line = collect(recorder, _transfer()).reduce()
    assert line["claims_refused Group"] == 1
    assert line["Num successful transfers"] == 1
    assert "claim_answer_seconds" not in line
