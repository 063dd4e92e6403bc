"""Every kind that the operator touches: where the API server has it, and what of it is a child. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pdd_operator.api import labels


@dataclass(frozen=True, slots=True)
class Kind:
    """``optional``: comes with somebody else's CustomResourceDefinition and may be missing."""

    api_version: str
    kind: str
    plural: str
    optional: bool = False

    @property
    def group(self) -> str:
        """Empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


DEPLOYMENT: Final = Kind(labels.API_VERSION, labels.KIND, labels.PLURAL)
POD: Final = Kind("v1", "Pod", "pods")
SECRET: Final = Kind("v1", "Secret", "secrets")
EVENT: Final = Kind("v1", "Event", "events")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
SELF_REVIEW: Final = Kind("authentication.k8s.io/v1", "SelfSubjectReview", "selfsubjectreviews")
POD_MONITOR: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", optional=True)
GRAFANA_DASHBOARD: Final = Kind(
    "grafana.integreatly.org/v1beta1", "GrafanaDashboard", "grafanadashboards", optional=True
)

CHILD_KINDS: Final = (
    Kind("apps/v1", "StatefulSet", "statefulsets"),
    Kind("apps/v1", "Deployment", "deployments"),
    Kind("v1", "Service", "services"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    POD_MONITOR,
    GRAFANA_DASHBOARD,
)
"""What is listed, watched, restored and pruned. Secrets are not: the operator may only create them."""

BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in (*CHILD_KINDS, DEPLOYMENT, POD, SECRET, EVENT, LEASE)}
