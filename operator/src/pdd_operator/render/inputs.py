"""What rendering depends on beside the PDDeployment itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pdd_operator.api.accelerators import Platform as Platform
from pdd_operator.api.labels import Component

API_SERVER_PORTS: Final = (443, 6443)


@dataclass(frozen=True, slots=True)
class Images:
    """Default images. ``connector`` has ``/copy.sh FOLDER``, which copies the connector's package into an engine pod (connector/Dockerfile)."""

    router: str
    connector: str
    engine: Mapping[Platform, str]


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """The operator's own settings as far as they show in objects. ``operator_labels`` select its pods: they may read engines' metrics."""

    images: Images
    operator_namespace: str
    operator_labels: Mapping[str, str] = field(default_factory=dict)
    allow_privileged: bool = False
    """Whether an object may ask for privileged engines (``render.permissions``)."""
    api_server_ports: tuple[int, ...] = API_SERVER_PORTS
    """Those of its Service and of what is behind it: plugins judge by either."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Kinds that the cluster has."""

    pod_monitors: bool = False
    grafana_dashboards: bool = False


@dataclass(frozen=True, slots=True)
class Replicas:
    """Pods of the current revision group. None: somebody else decides (an autoscaler), the field is not sent.

    ``autoscaled_groups``: which group's StatefulSet the autoscaler of a role targets although the rollout sends a size for the current one.
    """

    prefill: int | None
    decode: int | None
    autoscaled_groups: Mapping[Component, str] = field(default_factory=dict)
