"""Reads what the checks look at. A thin shell: what cannot be read becomes ``Unread``, and nothing is judged.

Only the version and what there is must be answered: a cluster that does not say so much is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from pdd_cli.cluster.connection import ClusterOptions, connect
from pdd_cli.cluster.installing import OPERATOR_NAMESPACE
from pdd_cli.cluster.reading import ClusterReader, unreadable
from pdd_cli.doctor.rights import rights_asked
from pdd_cli.doctor.snapshot import Objects, Right, Snapshot, Unread, node_of
from pdd_operator.api.labels import GROUP, PLURAL
from pdd_operator.api.objects import Manifest
from pdd_operator.errors import ClusterError, ForbiddenError
from pdd_operator.kube.kinds import GRAFANA_DASHBOARD, POD_MONITOR

OPERATOR_LABELS = "app.kubernetes.io/part-of=pdserve,app.kubernetes.io/component=operator"
_DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
T = TypeVar("T")


def read_snapshot(options: ClusterOptions) -> Snapshot:
    """Raises ClusterReadError."""
    connection = connect(options)
    reader = ClusterReader(connection.api, options.timeout_seconds)
    try:
        version, served = reader.version(), _served(reader)
    except ClusterError as error:
        raise unreadable(error, connection.server) from None
    namespace = connection.namespace
    operators = _or_unread(lambda: reader.items("/apis/apps/v1/deployments", "Deployment", OPERATOR_LABELS))
    return Snapshot(
        now=datetime.now(UTC),
        version=version,
        namespace=namespace,
        definition=_or_unread(lambda: reader.get(_DEFINITION, "CustomResourceDefinition")),
        operators=operators,
        leases=_or_unread(lambda: _leases(reader, operators)),
        rights=_or_unread(lambda: _rights(reader, rights_asked(namespace, OPERATOR_NAMESPACE))),
        nodes=_or_unread(lambda: tuple(map(node_of, reader.items("/api/v1/nodes", "Node")))),
        daemon_sets=_or_unread(lambda: reader.items("/apis/apps/v1/daemonsets", "DaemonSet")),
        space=_or_unread(lambda: reader.get(f"/api/v1/namespaces/{namespace}", "Namespace")),
        served=served,
    )


def _or_unread(read: Callable[[], T]) -> T | Unread:
    try:
        return read()
    except ForbiddenError:
        return Unread("you lack the right to see it")
    except ClusterError as error:
        return Unread(str(error))


def _leases(reader: ClusterReader, operators: Objects | Unread) -> Objects:
    """The lease of each operator has its name."""
    if isinstance(operators, Unread):
        return ()
    found = (_lease(reader, item["metadata"]) for item in operators)
    return tuple(lease for lease in found if lease is not None)


def _lease(reader: ClusterReader, metadata: Manifest) -> Manifest | None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{metadata['namespace']}/leases/{metadata['name']}"
    return reader.get(path, "Lease")


def _rights(reader: ClusterReader, asked: tuple[Right, ...]) -> dict[Right, bool]:
    return {right: _may(reader, right) for right in asked}


def _may(reader: ClusterReader, right: Right) -> bool:
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "namespace": right.namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return reader.review(review)


def _served(reader: ClusterReader) -> frozenset[str]:
    """Groups, and the two kinds that the operator makes objects of where they are there."""
    groups = reader.names("/apis", "APIGroupList", "groups")
    kinds = [kind for kind in (POD_MONITOR, GRAFANA_DASHBOARD) if kind.group in groups]
    served = {
        f"{kind.plural}.{kind.group}"
        for kind in kinds
        if kind.plural in reader.names(f"/apis/{kind.api_version}", "APIResourceList", "resources")
    }
    return groups | served
