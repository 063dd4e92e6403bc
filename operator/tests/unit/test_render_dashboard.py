"""The dashboard asks only for numbers that somebody counts."""

from __future__ import annotations

import json
import re

import pytest
import render_cases as cases

from pdd_connector.recorder import METRICS, Kind
from pdd_operator.api.v1alpha1 import ScalingMetric
from pdd_operator.render.availability import POD_METRICS
from pdd_operator.render.dashboard import dashboard
from pdd_router.metrics import Metrics

# vLLM 0.32's own, as its /metrics shows them.
VLLM = {
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:nixl_num_failed_transfers_total",
}
QUERIES = [
    (panel["title"], target["expr"]) for panel in dashboard("agents", "chat")["panels"] for target in panel["targets"]
]


def counted() -> dict[str, set[str]]:
    """Names on the wire, with the labels that each has."""
    found: dict[str, set[str]] = {name: set() for name in VLLM}
    for metric in METRICS:
        suffix = {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_bucket"}.get(metric.kind, "")
        found[f"vllm:pdd_{metric.name}{suffix}"] = {metric.label} if metric.label else set()
    for collector in Metrics().registry.collect():
        suffix = {"counter": "_total", "histogram": "_bucket"}.get(collector.type, "")
        found[f"{collector.name}{suffix}"] = set()
    for name, labels in (
        ("pdd_router_time_to_first_event_seconds_bucket", {"arm"}),
        ("pdd_router_turns_total", {"arm", "why"}),
        ("pdd_router_retries_total", {"role"}),
        ("pdd_router_requests_total", {"outcome"}),
    ):
        found[name] |= labels
    return found


@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_every_query_is_about_a_number_that_is_counted(title: str, expression: str) -> None:
    names = re.findall(r"((?:vllm:|pdd_router_)[a-z_]+)\{", expression)
    assert names, title
    known = counted()
    assert set(names) <= set(known)
    grouped = re.search(r"by \(([^)]*)\)", expression)
    labels = {label.strip() for label in grouped.group(1).split(",")} if grouped else set()
    assert labels <= known[names[0]] | {"le", "pod", "pdserve_io_role"}


@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_every_query_is_about_this_deployment_alone(title: str, expression: str) -> None:
    scopes = re.findall(r"\{([^}]*)\}", expression)
    assert scopes == ['namespace="agents", pdserve_io_deployment="chat"'] * len(scopes), title
    assert "$scope" not in expression


def test_labels_in_queries_come_from_the_pod_monitor() -> None:
    monitor = cases.find(cases.rendered(cases.sample("cpu")), "PodMonitor", "cpu-router")
    labels = {re.sub(r"[^a-z]", "_", label) for label in monitor["spec"]["podTargetLabels"]}
    assert {"pdserve_io_deployment", "pdserve_io_role"} <= labels


def test_the_object_holds_the_dashboard_as_json() -> None:
    board = cases.find(cases.rendered(cases.sample("cpu")), "GrafanaDashboard", "cpu-dashboard")
    assert json.loads(board["spec"]["json"]) == dashboard("agents", "cpu")


def test_every_pod_metric_of_an_autoscaler_is_known() -> None:
    assert set(POD_METRICS) == set(ScalingMetric) - {ScalingMetric.CPU_UTILIZATION}
