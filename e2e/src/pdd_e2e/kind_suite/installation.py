"""The product in a cluster, as docs/install.md has users install it: Helm, the chart, a namespace, a PDDeployment of e2e/samples."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdd_e2e.cluster.engine_files import volume_objects
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.product_images import REGISTRY, ROOT, ProductImages
from pdd_e2e.cluster.shell import run
from pdd_e2e.kind_suite.deployment import wait_until

SAMPLES = ROOT / "e2e" / "samples"
SYSTEM = "pdd-system"
RELEASE = "pdd-operator"
_ROLLOUT_SECONDS = 120
_CLEAR_SECONDS = 240
_ORPHANS_SECONDS = 60
_ENFORCED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True, slots=True)
class Release:
    """The chart in `sources`, installed as `pdd-operator` in `pdd-system` with these images."""

    helm: Path
    kubectl: Kubectl
    images: ProductImages
    sources: Path = ROOT

    def install(self) -> None:
        """`helm upgrade --install`; returns when the operator's pods are ready. Raises ClusterError."""
        command = ("upgrade", "--install", RELEASE, self.sources / "charts" / "pdd-operator", "--create-namespace")
        run([*self._helm(), *command, *self.values])
        waiting = ["rollout", "status", f"deployment/{RELEASE}", f"--timeout={_ROLLOUT_SECONDS}s"]
        self.kubectl("--namespace", SYSTEM, *waiting, timeout_seconds=_ROLLOUT_SECONDS + 10)

    @property
    def values(self) -> list[str]:
        """Helm's arguments that name the images."""
        tags = [f"--set-string=images.{part}.tag={tag}" for part, tag in self.images.tags.items()]
        return [f"--set=images.registry={REGISTRY}", *tags]

    def uninstall(self) -> None:
        """Returns when what Helm installed is gone, without the CRDs, which it keeps. Raises ClusterError."""
        run([*self._helm(), "uninstall", RELEASE, "--wait"], timeout_seconds=_ROLLOUT_SECONDS)

    def _helm(self) -> list[str | Path]:
        place = (f"--kubeconfig={self.kubectl.kubeconfig}", f"--kube-context={self.kubectl.context}")
        return [self.helm, *place, f"--namespace={SYSTEM}"]


@contextmanager
def own_namespaces(kubectl: Kubectl, labels: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """New namespaces, by name, with all that each has from Kubernetes. Afterwards they go, and nobody waits for that. Raises ClusterError."""
    kubectl("delete", "namespace", *labels, "--ignore-not-found", timeout_seconds=_CLEAR_SECONDS)  # of an earlier run
    metadata = [{"name": name, "labels": dict(its)} for name, its in labels.items()]
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": item} for item in metadata])
    try:
        for name in labels:
            kubectl("--namespace", name, "wait", "--for=create", "serviceaccount/default", "configmap/kube-root-ca.crt")
        yield
    finally:
        kubectl("delete", "namespace", *labels, "--wait=false")


def make_tenant(kubectl: Kubectl, namespace: str) -> None:
    """A namespace that enforces Pod Security's restricted profile, with the claims that samples name."""
    metadata = {"name": namespace, "labels": _ENFORCED}
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, *volume_objects(namespace)])


def clear_tenant(kubectl: Kubectl, namespace: str) -> None:
    """Takes away the namespace with its engines, and the volumes that its claims were bound to. Returns when they are gone."""
    end_tenant(kubectl, namespace)
    gone = [f"namespace/{namespace}", *(f"persistentvolume/{name}" for name in _volumes(namespace))]
    kubectl("wait", "--for=delete", *gone, f"--timeout={_CLEAR_SECONDS}s", timeout_seconds=_CLEAR_SECONDS + 10)


def end_tenant(kubectl: Kubectl, namespace: str) -> None:
    """Has Kubernetes take it away, which takes seconds more.

    Nobody talks to its engines, so pods go at once: a namespace with pods that end at their leisure takes minutes.
    """
    if kubectl("get", "namespace", namespace, "--ignore-not-found"):
        place = ("--namespace", namespace)
        kubectl(*place, "delete", "pdd", "--all")
        starters = "statefulsets,deployments"
        wait_until(lambda: not kubectl.get(*place, starters)["items"], "nothing to start pods", _ORPHANS_SECONDS)
        kubectl(*place, "delete", "pods", "--all", "--force", "--grace-period=0")
        kubectl("delete", "namespace", namespace, "--wait=false")
    kubectl("delete", "persistentvolume", *_volumes(namespace), "--ignore-not-found", "--wait=false")


def _volumes(namespace: str) -> list[str]:
    return [item["metadata"]["name"] for item in volume_objects(namespace) if item["kind"] == "PersistentVolume"]


def apply_sample(kubectl: Kubectl, namespace: str, sample: str) -> None:
    """`kubectl apply` of a file in e2e/samples, as a user would."""
    kubectl("--namespace", namespace, "apply", "--filename", SAMPLES / sample)
