"""Everything that a cluster or a namespace has, of every kind that can be listed, but events. Reads only."""

from pdd_e2e.cluster.kubectl import Kubectl

_EVENTS = ("events", "events.events.k8s.io")
_LINE = r'{range .items[*]}{.kind}.{.apiVersion} {.metadata.namespace}/{.metadata.name}{"\n"}{end}'


def of_namespace(kubectl: Kubectl, namespace: str) -> frozenset[str]:
    """Each as `KIND.GROUP/VERSION NAMESPACE/NAME`. Raises ClusterError."""
    return _listed(kubectl, namespaced=True, place=("--namespace", namespace))


def of_cluster(kubectl: Kubectl) -> frozenset[str]:
    """Of all namespaces and of none. Raises ClusterError."""
    everywhere = _listed(kubectl, namespaced=True, place=("--all-namespaces",))
    return everywhere | _listed(kubectl, namespaced=False, place=())


def _listed(kubectl: Kubectl, *, namespaced: bool, place: tuple[str, ...]) -> frozenset[str]:
    kinds = kubectl("api-resources", "--verbs=list", f"--namespaced={str(namespaced).lower()}", "--output=name")
    wanted = ",".join(kind for kind in kinds.split() if kind not in _EVENTS)
    found = kubectl("get", wanted, *place, f"--output=jsonpath={_LINE}", timeout_seconds=120)
    return frozenset(line for line in found.splitlines() if line)
