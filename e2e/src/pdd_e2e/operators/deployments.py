"""PDDeployments on a control plane: makes them, reads them and everything that belongs to them, waits for what they should become."""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pdd_e2e.control_plane.api import Json, KubeApi
from pdd_e2e.control_plane.errors import ApiError, ControlPlaneError

_POLL_SECONDS = 0.1
GROUP_PATH = "/apis/pdserve.io/v1alpha1"
DEPLOYMENT_LABEL = "pdserve.io/deployment"
CHILD_PATHS = {
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "Service": ("/api/v1", "services"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
}
_VOLATILE = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "selfLink")

Found = TypeVar("Found")
Name = tuple[str, str]
"""Kind and name."""


def cpu_deployment(name: str, **spec: Any) -> Json:
    """A small PDDeployment on CPU over sockets; `spec` replaces sections."""
    return {
        "apiVersion": "pdserve.io/v1alpha1",
        "kind": "PDDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "Qwen/Qwen3-0.6B"},
            "engine": {"dtype": "bfloat16", "maxModelLen": 8192},
            "prefill": {"replicas": 1, "accelerator": {"type": "CPU"}},
            "decode": {"replicas": 1, "accelerator": {"type": "CPU"}},
            "transport": {"backend": "Socket"},
            "router": {"replicas": 1},
            **copy.deepcopy(spec),
        },
    }


@dataclass(frozen=True, slots=True)
class Deployments:
    """PDDeployments of one namespace."""

    api: KubeApi
    namespace: str

    @property
    def path(self) -> str:
        return f"{GROUP_PATH}/namespaces/{self.namespace}/pddeployments"

    def create(self, manifest: Json) -> Json:
        return self.api.create(self.path, manifest)

    def get(self, name: str) -> Json:
        return self.api.get(f"{self.path}/{name}")

    def patch(self, name: str, change: Json) -> Json:
        """A merge patch."""
        return self.api.patch(f"{self.path}/{name}", change)

    def delete(self, name: str) -> None:
        self.api.delete(f"{self.path}/{name}")

    def child_path(self, kind: str, name: str = "") -> str:
        prefix, plural = CHILD_PATHS[kind]
        return f"{prefix}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def children(self, name: str) -> dict[Name, Json]:
        """Everything labelled as belonging to it, Secrets too, pods not."""
        selector = f"{DEPLOYMENT_LABEL}={name}"
        return {
            (kind, item["metadata"]["name"]): {"kind": kind, **item}
            for kind in CHILD_PATHS
            for item in self.api.items(self.child_path(kind), labelSelector=selector)
        }

    def pods(self, name: str) -> list[Json]:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return self.api.items(path, labelSelector=f"{DEPLOYMENT_LABEL}={name}")

    def condition(self, name: str, kind: str) -> Json:
        """Empty while it is not there."""
        conditions = self.get(name).get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == kind), {})

    def wait_for_condition(self, name: str, kind: str, status: str = "True", timeout_seconds: float = 30.0) -> Json:
        """Of the newest generation. Raises ControlPlaneError."""

        def holds() -> Json | None:
            live = self.get(name)
            found = self.condition(name, kind)
            current = found.get("observedGeneration") == live["metadata"]["generation"]
            return found if current and found["status"] == status else None

        return wait_for(holds, timeout_seconds, lambda: f"{kind} is not {status}: {self.get(name).get('status', {})}")

    def exists(self, kind: str, name: str) -> Json | None:
        try:
            return self.api.get(self.child_path(kind, name))
        except ApiError as error:
            if error.code != 404:
                raise
            return None


def wait_for(look: Callable[[], Found | None], timeout_seconds: float, complaint: Callable[[], str]) -> Found:
    """The first truthy thing that `look` returns. Raises ControlPlaneError with the complaint."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise ControlPlaneError(complaint())
        time.sleep(_POLL_SECONDS)


def normalised(children: dict[Name, Json], uid: str) -> dict[Name, Json]:
    """What is the same whenever the same PDDeployment is made: without versions, random data and what controllers add.

    `uid`: of the PDDeployment; it is in labels and owners and changes the hash of every manifest.
    """
    return {name: _normalised(item, uid) for name, item in children.items()}


def _normalised(item: Json, uid: str) -> Json:
    found: Json = json.loads(json.dumps(item).replace(uid, "UID"))
    found.pop("status", None)
    metadata = found["metadata"]
    for field in _VOLATILE:
        metadata.pop(field, None)
    for field in ("pdserve.io/input-hash", "deployment.kubernetes.io/revision"):
        metadata.get("annotations", {}).pop(field, None)
    for owner in metadata.get("ownerReferences", ()):
        owner.pop("uid")  # the ConfigMap's, where a Secret goes with it
    if found["kind"] == "Secret":
        found["data"] = {key: len(value) for key, value in found.get("data", {}).items()}
    for field in ("clusterIP", "clusterIPs"):
        found.get("spec", {}).pop(field, None)
    return found
