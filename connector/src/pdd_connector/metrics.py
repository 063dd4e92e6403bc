"""The recorder's numbers on vLLM's own /metrics, beside the base connector's.

vLLM adds a worker's statistics and the scheduler side's into one object per step, sends its dict to the API server and
observes it there. Nothing is sent from an engine that takes no step: whoever changes a gauge while the engine is idle
must have it take one (`Recorder.has_news`).
"""

from collections.abc import Mapping
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics

from pdd_connector.recorder import METRICS, PREFIX, Kind, Metric, Recorder, add_up, metric_of

__all__ = ["PddConnectorStats", "PddPromMetrics", "Recorder", "collect"]

_BUCKETS: Final = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)


class PddConnectorStats(NixlKVConnectorStats):  # type: ignore[misc]  # vLLM ships no types
    """One step's numbers: the base connector's lists, and ours under keys of our own in the same flat dict."""

    def is_empty(self) -> bool:
        return super().is_empty() and not _ours(self.data)

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another's numbers, in place; the base connector's own statistics are as welcome."""
        add_up(self.data, _ours(other.data))
        for key, values in other.data.items():
            if not key.startswith(PREFIX):
                self.data[key].extend(values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """For the line in the log: the base connector's, then every count and gauge of ours that is there."""
        ours = {key: value for key, value in _ours(self.data).items() if metric_of(key)[0].kind is not Kind.HISTOGRAM}
        line: dict[str, int | float] = super().reduce()
        return line | {key.removeprefix(PREFIX).replace(":", " "): ours[key] for key in sorted(ours)}


def collect(recorder: Recorder, base: NixlKVConnectorStats | None) -> PddConnectorStats | None:
    """This side's numbers since last time: the recorder's and the base connector's; None where there are none."""
    taken = recorder.take()
    if base is None and taken is None:
        return None
    stats = PddConnectorStats()
    if base is not None:
        stats.aggregate(base)
    add_up(stats.data, taken or {})
    return stats


class PddPromMetrics(NixlPromMetrics):  # type: ignore[misc]  # vLLM ships no types
    """Registers every metric of the table, and observes what arrives."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._parents: Final = {metric.name: self._register(metric, labelnames) for metric in METRICS}
        self._children: Final[dict[tuple[int, str, str | None], Any]] = {}
        for engine in per_engine_labelvalues:
            for metric in METRICS:
                for value in metric.values if metric.label else (None,):
                    self._child(engine, metric, value)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        super().observe(transfer_stats_data, engine_idx)
        for key, value in _ours(transfer_stats_data).items():
            metric, label = metric_of(key)
            child = self._child(engine_idx, metric, label)
            if metric.kind is Kind.COUNTER:
                child.inc(value)
            elif metric.kind is Kind.GAUGE:
                child.set(value)
            else:
                for seconds in value:
                    child.observe(seconds)

    def _register(self, metric: Metric, labelnames: list[str]) -> Any:
        arguments: dict[str, Any] = {
            "name": f"vllm:pdd_{metric.name}",
            "documentation": metric.documentation,
            "labelnames": [*labelnames, metric.label] if metric.label else labelnames,
        }
        if metric.kind is Kind.COUNTER:
            return self._counter_cls(**arguments)
        if metric.kind is Kind.GAUGE:
            return self._gauge_cls(**arguments, multiprocess_mode="mostrecent")
        return self._histogram_cls(**arguments, buckets=list(_BUCKETS))

    def _child(self, engine: int, metric: Metric, value: str | None) -> Any:
        key = (engine, metric.name, value)
        if key not in self._children:
            labels = [*self.per_engine_labelvalues[engine], *([] if value is None else [value])]
            self._children[key] = self._parents[metric.name].labels(*labels)
        return self._children[key]


def _ours(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key.startswith(PREFIX)}
