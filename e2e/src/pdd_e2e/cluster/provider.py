"""What a test needs of a cluster, and the two ways to have one: kind on this machine, or a context on an allow-list.

A suite installs, kills and deletes things: a cluster that is not made for it must be named twice, in the kubeconfig and in
`PDD_E2E_ALLOWED_CONTEXTS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.shell import run

ALLOWED_VARIABLE = "PDD_E2E_ALLOWED_CONTEXTS"


class Provider(Protocol):
    """A cluster that can be brought up, given images, and taken away."""

    def up(self) -> Kubectl:
        """Brings it up if it is not there. Raises ClusterError."""

    def down(self) -> None:
        """Takes away what `up` made, and nothing else."""

    def load(self, *images: str) -> None:
        """Makes images of this machine's Docker known to all nodes."""


@dataclass(frozen=True, slots=True)
class KubeconfigProvider:
    """A cluster that somebody else runs; its nodes pull images from a registry, so `load` refuses."""

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

    def down(self) -> None:
        """Nothing was made."""

    def load(self, *images: str) -> None:
        """Raises ClusterError: push them to a registry instead."""
        raise ClusterError(f"push {', '.join(images)} to a registry that the nodes of {self.context} can pull from")


def allowed_contexts(environment: Mapping[str, str]) -> frozenset[str]:
    """Those of the comma-separated variable."""
    return frozenset(name.strip() for name in environment.get(ALLOWED_VARIABLE, "").split(",") if name.strip())
