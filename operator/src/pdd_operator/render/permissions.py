"""What whoever installed the operator must have allowed before anybody's object may have it. Pure.

Whoever may write a PDDeployment decides what its pods run; that alone must not be enough to take a node.
"""

from __future__ import annotations

from pdd_operator.api.v1alpha1 import Privileges, Spec
from pdd_operator.render.catalog import UnsupportedError
from pdd_operator.render.inputs import RenderSettings


def require_permitted(spec: Spec, settings: RenderSettings) -> None:
    """Raises UnsupportedError where the specification asks for more than this operator may give."""
    if spec.transport.privileges is Privileges.PRIVILEGED and not settings.allow_privileged:
        raise UnsupportedError(
            "spec.transport.privileges",
            "`transport.privileges` must be IPCLock: this operator was installed without leave for privileged containers (chart value "
            "`allowPrivileged`), which can take over their node",
        )
