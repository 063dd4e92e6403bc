"""The router's own state for probes and scrapes: computed when asked, never kept. Pure reading."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pdd_router.endpoints.engine import Role, Standing
from pdd_router.endpoints.registry import EngineState, Registry
from pdd_router.flow.services import Services


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str
    prefill: int
    decode: int
    introduced: int
    wanted: int

    def render(self) -> dict[str, object]:
        return {
            "ready": self.ready,
            "reason": self.reason,
            "available": {"prefill": self.prefill, "decode": self.decode},
            "pairs": {"introduced": self.introduced, "wanted": self.wanted},
        }


def readiness(registry: Registry, *, draining: bool, listed: bool = True) -> Readiness:
    """``listed``: whether it has been said which engines there are."""
    snapshot = registry.snapshot()
    able = Counter(view.engine.role for view in snapshot.engines if view.available)
    wanted = registry.introductions.wanted(snapshot.engines)
    if draining:
        reason = "Draining"
    elif not listed:
        reason = "EnginesNotListed"
    else:
        reason = "DecodeAvailable" if able[Role.DECODE] else "NoDecode"
    return Readiness(
        ready=reason == "DecodeAvailable",
        reason=reason,
        prefill=able[Role.PREFILL],
        decode=able[Role.DECODE],
        introduced=len(wanted & snapshot.introduced),
        wanted=len(wanted),
    )


def refresh_gauges(services: Services) -> None:
    metrics, registry = services.metrics, services.registry
    if services.discovery is not None:
        services.discovery.refresh_gauges()
    snapshot = registry.snapshot()
    wanted = registry.introductions.wanted(snapshot.engines)
    metrics.in_flight.set(services.admission.in_flight)
    metrics.queued.set(services.admission.queued)
    metrics.conversations.set(len(services.conversations))
    metrics.wanted_pairs.set(len(wanted))
    metrics.introduced_pairs.set(len(wanted & snapshot.introduced))
    states = registry.states()
    metrics.ejections_suppressed.set(sum(state.breaker.suppressed for state in states))
    counts = Counter((state.engine.role, _state_name(state)) for state in states)
    for role in Role:
        for name in ("Available", "Ejected", "Unhealthy", "NotReady", "Draining"):
            metrics.engines.labels(role, name).set(counts[(role, name)])


def _state_name(state: EngineState) -> str:
    if state.draining:
        return "Draining"
    if state.standing is Standing.NOT_READY:
        return "NotReady"
    if not state.healthy:
        return "Unhealthy"
    return "Ejected" if state.breaker.ejected else "Available"
