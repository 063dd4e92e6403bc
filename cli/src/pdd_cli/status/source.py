"""Reads one PDDeployment and its pods. A thin shell: decides nothing but what is said when something is not there."""

from __future__ import annotations

from datetime import UTC, datetime

from pdd_cli.cluster.connection import ClusterOptions, connect
from pdd_cli.cluster.installing import FIRST_IMAGES, INSTALL
from pdd_cli.cluster.reading import ClusterReader, unreadable
from pdd_cli.errors import NotInClusterError
from pdd_cli.status.report import Report, report_of
from pdd_operator.api.labels import API_VERSION, DEPLOYMENT, KIND, PLURAL
from pdd_operator.errors import ClusterError


class StatusSource:
    """``read`` connects when it is first called, in the thread that calls it."""

    def __init__(self, cluster: ClusterOptions, name: str) -> None:
        self._options = cluster
        self._name = name
        self._reader: ClusterReader | None = None
        self._namespace = ""
        self._server = "the API server"

    def read(self) -> Report:
        """Raises ClusterReadError or NotInClusterError."""
        if self._reader is None:
            connection = connect(self._options)
            self._namespace, self._server = connection.namespace, connection.server
            self._reader = ClusterReader(connection.api, self._options.timeout_seconds)
        try:
            return self._report(self._reader)
        except ClusterError as error:
            raise unreadable(error, self._server) from None

    def _report(self, reader: ClusterReader) -> Report:
        path = f"/apis/{API_VERSION}/namespaces/{self._namespace}/{PLURAL}/{self._name}"
        deployment = reader.get(path, KIND)
        if deployment is None:
            raise NotInClusterError(self._why_missing(reader))
        pods = reader.items(f"/api/v1/namespaces/{self._namespace}/pods", "Pod", f"{DEPLOYMENT}={self._name}")
        return report_of(deployment, pods, datetime.now(UTC))

    def _why_missing(self, reader: ClusterReader) -> str:
        if PLURAL not in reader.names(f"/apis/{API_VERSION}", "APIResourceList", "resources"):
            return (
                f"{self._server} knows no PDDeployments: the chart is not installed. "
                f"Install it: {INSTALL} ({FIRST_IMAGES})"
            )
        return (
            f"There is no PDDeployment {self._name} in namespace {self._namespace}. "
            f"`kubectl{self._options.for_kubectl()} get pdd --all-namespaces` lists those there are."
        )
