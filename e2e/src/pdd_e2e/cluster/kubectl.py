"""kubectl bound to one cluster and one context: every call names both, so that no default of this machine can be meant by accident."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdd_e2e.cluster.shell import run


@dataclass(frozen=True, slots=True)
class Kubectl:
    """`program` with `kubeconfig` and `context`."""

    program: Path
    kubeconfig: Path
    context: str

    def command(self, *arguments: str | Path) -> list[str]:
        """The words of a command line."""
        return [
            str(self.program),
            f"--kubeconfig={self.kubeconfig}",
            f"--context={self.context}",
            *map(str, arguments),
        ]

    def __call__(self, *arguments: str | Path, stdin: str | None = None, timeout_seconds: float = 60) -> str:
        """Its output. Raises ClusterError."""
        return run(self.command(*arguments), stdin=stdin, timeout_seconds=timeout_seconds)

    def get(self, *arguments: str) -> dict[str, Any]:
        """What `kubectl get ... -o json` prints."""
        found: dict[str, Any] = json.loads(self("get", *arguments, "-o", "json"))
        return found

    def apply(self, objects: Sequence[dict[str, Any]], *, namespace: str | None = None) -> None:
        """Applies on the server's side."""
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        place = [] if namespace is None else ["--namespace", namespace]
        self("apply", "--server-side", "--force-conflicts", *place, "-f", "-", stdin=document)
