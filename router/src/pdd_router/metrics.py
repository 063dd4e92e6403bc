"""The router's numbers, in a registry of its own per application. Must not label by tenant, prompt or path of a client."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pdd_router_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"pdd_router_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"pdd_router_{name}", text, labels, buckets=_SECONDS, registry=self.registry)

        self.requests = counter("requests", "Requests ended, by what the client saw", "endpoint", "outcome")
        self.in_flight = gauge("in_flight_requests", "Requests that hold a place")
        self.queued = gauge("queued_requests", "Requests that wait for a place")
        self.turns = counter("turns", "Turns planned, by arm and why", "arm", "why")
        self.legs = counter("legs", "Legs sent to engines, by how they ended", "role", "engine", "result")
        self.pairs = counter(
            "pairs", "Decode legs sent after a prefill leg, by revision groups", "prefill_group", "decode_group"
        )
        self.retries = counter("retries", "Legs tried again elsewhere", "role")
        self.retries_refused = counter("retries_refused", "Retries that the budget or the request's limit forbade")
        self.first_event = histogram("time_to_first_event_seconds", "Request's arrival to decode's first event", "arm")
        self.prefill_seconds = histogram("prefill_leg_seconds", "Duration of prefill legs that succeeded")
        self.claims = counter("claims", "Receipts of claims, by who read from whom", "direction", "outcome", "reason")
        self.read_tokens = counter("claim_read_tokens", "Prompt tokens read instead of computed", "direction")
        self.read_bytes = counter("claim_read_bytes", "Bytes of KV read", "direction")
        self.handles = counter("retained_handles", "Retained handles, by what became of them", "event")
        self.engines = gauge("engines", "Engines by role and state", "role", "state")
        self.ejections_suppressed = gauge("ejections_suppressed", "Ejections not done, as half of the role was out")
        self.introduced_pairs = gauge("introduced_pairs", "Pairs of engines that are connected (reader to owner)")
        self.wanted_pairs = gauge("wanted_pairs", "Pairs of engines that should be connected")
        self.introductions = counter("introductions", "Introductions sent, by how they ended", "result")
        self.files = counter("file_reloads", "Followed files that changed", "file", "result")
        self.conversations = gauge("conversation_entries", "Entries of the conversation index")

    def render(self) -> bytes:
        return generate_latest(self.registry)


class DiscoveryMetrics:
    """Of discovery on Kubernetes; a router that follows a file has none of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected = Gauge(
            "pdd_router_discovery_connected", "1 while the API server answers, else 0", registry=registry
        )
        self.age = Gauge(
            "pdd_router_discovery_age_seconds",
            "Since the API server last answered a list or watch; +Inf before the first list",
            registry=registry,
        )
        self.age.set(math.inf)
        self.events = Counter("pdd_router_discovery_events", "Watch events, by type", ("type",), registry=registry)
        self.errors = Counter(
            "pdd_router_discovery_errors", "Lists and watches that failed, by reason", ("reason",), registry=registry
        )
        self.ignored_pods = Gauge(
            "pdd_router_discovery_ignored_pods",
            "Pods of the deployment that are no engines although they should be, by reason",
            ("reason",),
            registry=registry,
        )
