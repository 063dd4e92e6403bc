"""Words that options take. Apart from what the commands import, so that help is quick."""

from __future__ import annotations

from enum import StrEnum


class RenderOutput(StrEnum):
    YAML = "yaml"
    NAME = "name"
    SUMMARY = "summary"


class OptionalKind(StrEnum):
    """Kinds that come with somebody else's definitions."""

    POD_MONITOR = "PodMonitor"
    GRAFANA_DASHBOARD = "GrafanaDashboard"


class ReportOutput(StrEnum):
    TEXT = "text"
    JSON = "json"


class TransportChoice(StrEnum):
    """As `spec.transport.backend`."""

    EFA = "EFA"
    SOCKET = "Socket"
