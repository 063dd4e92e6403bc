"""The product in a cluster, as docs/install.md has users install it: Helm, the chart, a namespace, a PDDeployment of e2e/samples."""

from pathlib import Path

from pdd_e2e.cluster.engine_files import volume_objects
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.product_images import ROOT, TAG
from pdd_e2e.cluster.shell import run

SAMPLES = ROOT / "e2e" / "samples"
SYSTEM = "pdd-system"
RELEASE = "pdd-operator"
_ROLLOUT_SECONDS = 120
_CLEAR_SECONDS = 240
_ENFORCED = {"pod-security.kubernetes.io/enforce": "restricted"}


def install(helm: Path, kubectl: Kubectl) -> None:
    """`helm upgrade --install` with the images that were loaded; returns when the operator's pods are ready. Raises ClusterError."""
    images = [f"--set=images.{part}.tag={TAG}" for part in ("operator", "router", "connector")]
    command: list[str | Path] = [
        "upgrade",
        "--install",
        RELEASE,
        ROOT / "charts" / "pdd-operator",
        "--create-namespace",
    ]
    run([*_helm(helm, kubectl), *command, "--set=images.registry=localhost", *images])
    waiting = ["rollout", "status", f"deployment/{RELEASE}", f"--timeout={_ROLLOUT_SECONDS}s"]
    kubectl("--namespace", SYSTEM, *waiting, timeout_seconds=_ROLLOUT_SECONDS + 10)


def uninstall(helm: Path, kubectl: Kubectl) -> None:
    """Returns when what Helm installed is gone. Raises ClusterError."""
    run([*_helm(helm, kubectl), "uninstall", RELEASE, "--wait"], timeout_seconds=_ROLLOUT_SECONDS)


def make_tenant(kubectl: Kubectl, namespace: str) -> None:
    """A namespace that enforces Pod Security's restricted profile, with the claims that samples name."""
    metadata = {"name": namespace, "labels": _ENFORCED}
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, *volume_objects(namespace)])


def clear_tenant(kubectl: Kubectl, namespace: str) -> None:
    """Takes away what an earlier run left: the namespace with its engines, and the volumes that its claims were bound to."""
    kubectl("delete", "namespace", namespace, "--ignore-not-found", timeout_seconds=_CLEAR_SECONDS)
    volumes = [item["metadata"]["name"] for item in volume_objects(namespace) if item["kind"] == "PersistentVolume"]
    kubectl("delete", "persistentvolume", *volumes, "--ignore-not-found")


def apply_sample(kubectl: Kubectl, namespace: str, sample: str) -> None:
    """`kubectl apply` of a file in e2e/samples, as a user would."""
    kubectl("--namespace", namespace, "apply", "--filename", SAMPLES / sample)


def _helm(helm: Path, kubectl: Kubectl) -> list[str | Path]:
    return [helm, f"--kubeconfig={kubectl.kubeconfig}", f"--kube-context={kubectl.context}", f"--namespace={SYSTEM}"]
