"""One pod → one engine, or why not. Pure; knows neither the API server nor what became of the pod before.

A pod is untrusted here as far as its form goes: whatever is not as Kubernetes has it is Malformed, never an exception.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import StrEnum

from pdd_router.endpoints.engine import ClaimAddress, Engine, EngineId, Listed, Role, Standing

DEPLOYMENT_LABEL = "pdserve.io/deployment"
ROLE_LABEL = "pdserve.io/role"
GROUP_LABEL = "pdserve.io/revision-group"
DRAINING_ANNOTATION = "pdserve.io/draining"
ENGINE_CONTAINER = "engine"

_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}
_ENDED_PHASES = ("Succeeded", "Failed")


class NotListed(StrEnum):
    """Why a pod is no engine; a metric label."""

    PENDING = "Pending"  # has no address yet
    ENDED = "Ended"  # its address may be another pod's already
    MISSING_LABEL = "MissingLabel"
    UNKNOWN_ROLE = "UnknownRole"
    MALFORMED = "Malformed"

    @property
    def is_fault(self) -> bool:
        """Somebody should look at it; the others are the ordinary course of a pod's life."""
        return self not in (NotListed.PENDING, NotListed.ENDED)


@dataclass(frozen=True, slots=True)
class Ports:
    """``claim`` None: the engines cannot be claimed from."""

    engine: int
    claim: int | None


class _MalformedError(Exception):
    pass


def read_pod(pod: object, ports: Ports) -> Listed | NotListed:
    try:
        return _read(_mapping(pod), ports)
    except _MalformedError:
        return NotListed.MALFORMED


def name_and_uid(pod: object) -> tuple[str, str] | None:
    """None where the object is no pod that could be told from others."""
    try:
        metadata = _mapping(_mapping(pod).get("metadata"))
        return _text(metadata.get("name")), _text(metadata.get("uid"))
    except _MalformedError:
        return None


def _read(pod: dict[str, object], ports: Ports) -> Listed | NotListed:
    metadata, status = _mapping(pod.get("metadata")), _mapping(pod.get("status", {}))
    labels = _mapping(metadata.get("labels", {}))
    if ROLE_LABEL not in labels or not labels.get(GROUP_LABEL):
        return NotListed.MISSING_LABEL
    role = _ROLES.get(_text(labels[ROLE_LABEL]))
    if role is None:
        return NotListed.UNKNOWN_ROLE
    if status.get("phase") in _ENDED_PHASES:
        return NotListed.ENDED
    if not status.get("podIP"):
        return NotListed.PENDING
    address = _address(status["podIP"])
    engine = Engine(
        id=EngineId(
            name=_text(metadata.get("name")),
            url=f"http://{f'[{address}]' if ':' in address else address}:{ports.engine}",
            incarnation=f"{_text(metadata.get('uid'))}.{_restarts(status)}",
        ),
        role=role,
        group=_text(labels[GROUP_LABEL]),
        claim=None if ports.claim is None else ClaimAddress(address, ports.claim),
    )
    return Listed(engine, _standing(metadata, status))


def _standing(metadata: dict[str, object], status: dict[str, object]) -> Standing:
    annotations = _mapping(metadata.get("annotations", {}))
    if metadata.get("deletionTimestamp") is not None or annotations.get(DRAINING_ANNOTATION) == "true":
        return Standing.DRAINING
    conditions = [_mapping(item) for item in _sequence(status.get("conditions", []))]
    ready = any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
    return Standing.SERVING if ready else Standing.NOT_READY


def _restarts(status: dict[str, object]) -> int:
    """How often the engine was started again within its pod: each time it has lost its cache."""
    for item in _sequence(status.get("containerStatuses", [])):
        container = _mapping(item)
        if container.get("name") == ENGINE_CONTAINER:
            count = container.get("restartCount", 0)
            if not isinstance(count, int) or isinstance(count, bool):
                raise _MalformedError
            return count
    return 0


def _address(value: object) -> str:
    try:
        return str(ipaddress.ip_address(_text(value)))
    except ValueError:
        raise _MalformedError from None


def _mapping(value: object) -> dict[str, object]:
    if value is None:  # Go writes an empty map as null
        return {}
    if not isinstance(value, dict):
        raise _MalformedError
    return value


def _sequence(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _MalformedError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _MalformedError
    return value
