"""cpu, memory and devices of containers: the catalog's share of a node, or what the user asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pdd_operator.api.v1alpha1 import Resources
from pdd_operator.render.catalog import Share


@dataclass(frozen=True, slots=True)
class Defaults:
    """``*_limited``: whether the request is the limit too, where the user gives none."""

    cpu: str
    memory: str
    memory_limited: bool


def engine_resources(share: Share, user: Resources) -> dict[str, Any]:
    """Devices and huge pages cannot be overcommitted: their request is their limit."""
    resources = container_resources(Defaults(share.cpu, f"{share.memory_gib}Gi", share.memory_limited), user)
    limits = resources.get("limits", {}) | share.devices
    requests = resources["requests"] | share.devices
    return {"requests": requests} | ({"limits": limits} if limits else {})


def container_resources(defaults: Defaults, user: Resources) -> dict[str, Any]:
    """A limit without a request is the request too, as Kubernetes has it. No cpu limit unless asked for: it stops threads that others wait for."""
    cpu = requested_cpu(defaults.cpu, user)
    memory = user.requests.memory or user.limits.memory or defaults.memory
    limits = {}
    if user.limits.cpu is not None:
        limits["cpu"] = user.limits.cpu
    if user.limits.memory is not None or defaults.memory_limited:
        limits["memory"] = user.limits.memory or memory
    return {"requests": {"cpu": cpu, "memory": memory}} | ({"limits": limits} if limits else {})


def requested_cpu(default: str, user: Resources) -> str:
    return user.requests.cpu or user.limits.cpu or default
