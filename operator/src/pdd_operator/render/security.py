"""Security contexts. Everything is within the Pod Security profile "restricted", but for engines on EFA.

Pure. The one list of exceptions: an EFA engine adds the capability IPC_LOCK, or runs privileged as root where the object says
so (``transport.privileges``): EFA pins the memory that it transfers. docs/security.md has the same list, and a test compares.
"""

from __future__ import annotations

from typing import Any, Final

from pdd_operator.api.v1alpha1 import Backend, Privileges, Transport

USER_ID: Final = 65532


def pod_security(*, owns_files: bool) -> dict[str, Any]:
    """``owns_files``: whether Secrets that only the group may read are mounted.

    Not on engines: a group on the pod has the node change the owner of every file of a mounted model.
    """
    context: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return context | {"fsGroup": USER_ID} if owns_files else context


def restricted() -> dict[str, Any]:
    """Of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def engine_security(transport: Transport) -> dict[str, Any]:
    """Of the containers that touch the fabric: the engine, and the preflight that judges what the engine will find."""
    context = restricted()
    if transport.backend is not Backend.EFA:
        return context
    if transport.privileges is Privileges.PRIVILEGED:
        # As root: any other user loses its capabilities when the program starts, and would be privileged for nothing.
        # The API server refuses a privileged container that may not escalate.
        root = {"runAsNonRoot": False, "runAsUser": 0}
        return context | root | {"privileged": True, "allowPrivilegeEscalation": True}
    return context | {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}
