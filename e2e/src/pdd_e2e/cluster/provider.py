"""A cluster that somebody else runs, instead of kind on this machine: a context on an allow-list.

A suite installs, kills and deletes things: a cluster that is not made for it must be named twice, in the kubeconfig and in
`PDD_E2E_ALLOWED_CONTEXTS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.shell import run

ALLOWED_VARIABLE = "PDD_E2E_ALLOWED_CONTEXTS"
CONTEXT_VARIABLE = "PDD_E2E_CONTEXT"


@dataclass(frozen=True, slots=True)
class KubeconfigProvider:
    """A cluster that somebody else runs. Its nodes have the images and the engines' folders already: nothing here reaches them."""

    program: Path
    kubeconfig: Path
    context: str
    allowed: frozenset[str]

    def up(self) -> Kubectl:
        """Raises ClusterError if the context is not allowed or the cluster does not answer."""
        if self.context not in self.allowed:
            raise ClusterError(
                f"context {self.context!r} is not among {ALLOWED_VARIABLE}={','.join(sorted(self.allowed))}: "
                "the suite kills and deletes, so name it there if it is made for that"
            )
        kubectl = Kubectl(self.program, self.kubeconfig, self.context)
        run(kubectl.command("get", "--raw", "/readyz"))
        return kubectl


def allowed_contexts(environment: Mapping[str, str]) -> frozenset[str]:
    """Those of the comma-separated variable."""
    return frozenset(name.strip() for name in environment.get(ALLOWED_VARIABLE, "").split(",") if name.strip())


def named_cluster(environment: Mapping[str, str], kubectl: Path) -> KubeconfigProvider | None:
    """The cluster of `PDD_E2E_CONTEXT` in the file of `KUBECONFIG` or the user's own; None where kind is to be used."""
    context = environment.get(CONTEXT_VARIABLE)
    if not context:
        return None
    kubeconfig = Path(environment.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    return KubeconfigProvider(kubectl, kubeconfig, context, allowed_contexts(environment))
