"""The Grafana dashboard of one PDDeployment, as JSON types: what a person looks at to see whether reuse works and pays.

Pure. Metrics are vLLM's, the connector's (``vllm:pdd_*``) and the router's (``pdd_router_*``); tests hold the names equal
to where they are made. The labels ``pdserve_io_*`` come from the PodMonitors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2


@dataclass(frozen=True, slots=True)
class _Query:
    """``expression`` has ``$scope`` where the labels of this deployment go."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    description: str
    unit: str
    queries: tuple[_Query, ...]
    stacked: bool = False


def _quantile(percent: int, metric: str, by: str) -> str:
    return f"histogram_quantile(0.{percent}, sum by (le, {by}) (rate({metric}_bucket{{$scope}}[5m])))"


_PANELS: Final = (
    _Panel(
        "Time to first event, at the router",
        "From a request's arrival to decode's first event, queue included, by the way the turn took.",
        "s",
        (
            _Query(_quantile(50, "pdd_router_time_to_first_event_seconds", "arm"), "p50 {{arm}}"),
            _Query(_quantile(95, "pdd_router_time_to_first_event_seconds", "arm"), "p95 {{arm}}"),
        ),
    ),
    _Panel(
        "Time to first token, at the engines",
        "Prefill: its whole leg. Decode: waiting for KV and the first step.",
        "s",
        (
            _Query(_quantile(50, "vllm:time_to_first_token_seconds", "pdserve_io_role"), "p50 {{pdserve_io_role}}"),
            _Query(_quantile(95, "vllm:time_to_first_token_seconds", "pdserve_io_role"), "p95 {{pdserve_io_role}}"),
        ),
    ),
    _Panel(
        "KV read from other engines",
        "DecodeToPrefill is history that was not computed again: where it is 0 under multi-turn traffic, reuse does not work.",
        "Bps",
        (_Query("sum by (direction) (rate(vllm:pdd_read_bytes_total{$scope}[5m]))", "{{direction}}"),),
        stacked=True,
    ),
    _Panel(
        "Prompt tokens read instead of computed",
        "By who read from whom.",
        "short",
        (_Query("sum by (direction) (rate(vllm:pdd_read_tokens_total{$scope}[5m]))", "{{direction}}"),),
        stacked=True,
    ),
    _Panel(
        "Claims by outcome",
        "Read and Local are good. Late, Unconnected, Failed and Refused cost a computation each.",
        "reqps",
        (
            _Query(
                "sum by (pdserve_io_role, outcome) (rate(vllm:pdd_claim_outcomes_total{$scope}[5m]))",
                "{{pdserve_io_role}} {{outcome}}",
            ),
        ),
        stacked=True,
    ),
    _Panel(
        "Refused and failed",
        "Why owners refused, and what became of reads that were begun.",
        "reqps",
        (
            _Query("sum by (reason) (rate(vllm:pdd_claims_refused_total{$scope}[5m]))", "refused {{reason}}"),
            _Query("sum by (reason) (rate(vllm:pdd_reads_failed_total{$scope}[5m]))", "failed {{reason}}"),
            _Query("sum(rate(vllm:pdd_retain_expired_total{$scope}[5m]))", "retained, expired unread"),
            _Query("sum(rate(vllm:nixl_num_failed_transfers_total{$scope}[5m]))", "NIXL transfer failed"),
        ),
    ),
    _Panel(
        "Queue",
        "Requests that wait, at the router and at engines.",
        "short",
        (
            _Query("sum(pdd_router_queued_requests{$scope})", "router"),
            _Query("sum by (pod) (vllm:num_requests_waiting{$scope})", "{{pod}}"),
        ),
    ),
    _Panel(
        "KV cache in use",
        "What running requests, claims and retained turns hold.",
        "percentunit",
        (_Query("max by (pod) (vllm:kv_cache_usage_perc{$scope})", "{{pod}}"),),
    ),
    _Panel(
        "Blocks held for others",
        "Claims hold for seconds, Retain for minutes. What grows and never falls is a leak.",
        "short",
        (
            _Query("sum by (pod) (vllm:pdd_blocks_held{$scope})", "{{pod}} claimed"),
            _Query("sum by (pod) (vllm:pdd_blocks_retained{$scope})", "{{pod}} retained"),
        ),
    ),
    _Panel(
        "Turns by arm",
        "PrefillDecode, or the whole turn on decode, and why.",
        "reqps",
        (_Query("sum by (arm, why) (rate(pdd_router_turns_total{$scope}[5m]))", "{{arm}} {{why}}"),),
        stacked=True,
    ),
    _Panel(
        "Router retries",
        "Legs that were tried elsewhere, and retries that the budget forbade.",
        "reqps",
        (
            _Query("sum by (role) (rate(pdd_router_retries_total{$scope}[5m]))", "{{role}}"),
            _Query("sum(rate(pdd_router_retries_refused_total{$scope}[5m]))", "refused"),
        ),
    ),
    _Panel(
        "Requests by outcome",
        "What clients saw.",
        "reqps",
        (_Query("sum by (outcome) (rate(pdd_router_requests_total{$scope}[5m]))", "{{outcome}}"),),
        stacked=True,
    ),
)


def dashboard(namespace: str, deployment: str) -> dict[str, Any]:
    """Grafana's own format; one page, the data source chosen by the viewer."""
    scope = f'namespace="{namespace}", pdserve_io_deployment="{deployment}"'
    return {
        "title": f"PDDeployment {namespace}/{deployment}",
        "tags": ["pdserve"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": [_panel(index, panel, scope) for index, panel in enumerate(_PANELS)],
    }


def _panel(index: int, panel: _Panel, scope: str) -> dict[str, Any]:
    row, column = divmod(index, _COLUMNS)
    custom = {"stacking": {"mode": "normal" if panel.stacked else "none"}, "fillOpacity": 20 if panel.stacked else 0}
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATASOURCE,
                "expr": query.expression.replace("$scope", scope),
                "legendFormat": query.legend,
            }
            for number, query in enumerate(panel.queries)
        ],
    }
