"""Puts into a control plane what the chart installs, without its pods: the CRD, the ServiceAccount and its roles."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from pdd_e2e.control_plane.api import Json
from pdd_e2e.control_plane.errors import ControlPlaneError
from pdd_e2e.control_plane.helm import find_helm
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane

ROOT = Path(__file__).parents[4]
CHART = ROOT / "charts" / "pdd-operator"
RELEASE = "pdd"
LEASE_NAME = "pdd-operator"
_INSTALLED = frozenset(
    {"CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
)


@dataclass(frozen=True, slots=True)
class Installation:
    """``account``: namespace and name of the operator's ServiceAccount."""

    account: tuple[str, str]
    lease_name: str

    @property
    def user(self) -> str:
        """As the audit log names it."""
        return "system:serviceaccount:" + ":".join(self.account)


def chart_objects(namespace: str) -> list[Json]:
    """Everything that `helm install` would make in `namespace`, watching the whole cluster."""
    helm = find_helm(say=lambda line: print(line, file=sys.stderr))
    command = [str(helm), "template", RELEASE, str(CHART), "--namespace", namespace, "--kube-version", "1.37.2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)  # noqa: S603  # a Helm that was found, no shell
    if done.returncode != 0:
        raise ControlPlaneError(f"helm template ended with {done.returncode}: {done.stderr}")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def install(plane: LocalControlPlane, namespace: str) -> Installation:
    """Makes `namespace` and, in it and beside it, what the operator needs. Returns when the CRD is served."""
    plane.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    wanted = [item for item in chart_objects(namespace) if item["kind"] in _INSTALLED]
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(wanted))
    plane.wait_for_definition("pddeployments.pdserve.io")
    account = next(item for item in wanted if item["kind"] == "ServiceAccount")["metadata"]["name"]
    lease = next(
        rule["resourceNames"][0] for item in wanted for rule in item.get("rules", ()) if rule.get("resourceNames")
    )
    return Installation((namespace, account), lease)
