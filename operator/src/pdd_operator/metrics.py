"""Metrics of the operator itself, in a registry of their own. Labels are bounded: kinds, verbs, reasons; never names of objects."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_DURATIONS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """One instance per process; handed to whoever counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = Counter(
            "pdd_operator_reconciles",
            "Reconciles by result: unchanged, changed, failed, retried, paused, invalid, left, gone.",
            ["result"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "pdd_operator_reconcile_duration_seconds",
            "Time of one reconcile, waiting in the queue not counted.",
            buckets=_DURATIONS,
            registry=self.registry,
        )
        self._writes = Counter(
            "pdd_operator_writes", "Writes that succeeded, by kind and verb.", ["kind", "verb"], registry=self.registry
        )
        self._errors = Counter(
            "pdd_operator_api_errors",
            "Calls of the API server that failed, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._drift = Counter(
            "pdd_operator_drift",
            "Children that were not as rendered although the spec had not changed, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self._leader = Gauge("pdd_operator_leader", "1 while this process may write.", registry=self.registry)
        self._depth = Gauge("pdd_operator_queue_depth", "Objects that wait to be reconciled.", registry=self.registry)
        self._oldest = Gauge(
            "pdd_operator_queue_oldest_item_seconds",
            "How long the object that waits longest has waited.",
            registry=self.registry,
        )

    def observe_reconcile(self, result: str, seconds: float) -> None:
        self._reconciles.labels(result).inc()
        self._duration.observe(seconds)

    def count_call(self, verb: str, kind: str, error: str) -> None:
        """``error``: empty for success. NotFound is an answer, not an error."""
        if error and error != "NotFound":
            self._errors.labels(error).inc()
        elif not error and verb not in ("get", "list", "discover", "dry-run"):
            self._writes.labels(kind, verb).inc()

    def count_drift(self, kind: str) -> None:
        self._drift.labels(kind).inc()

    def watch(self, leader: Callable[[], bool], depth: Callable[[], int], oldest_seconds: Callable[[], float]) -> None:
        """What is asked at each scrape."""
        self._leader.set_function(lambda: float(leader()))
        self._depth.set_function(lambda: float(depth()))
        self._oldest.set_function(oldest_seconds)

    def expose(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
