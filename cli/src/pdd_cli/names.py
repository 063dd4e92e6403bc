"""Names that a person gives, before they become part of a URL: as Kubernetes has them. Pure."""

from __future__ import annotations

import re
from typing import Final

from pdd_cli.errors import InvalidUsageError

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAMESPACE: Final = re.compile(_LABEL)
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_ALLOWED: Final = "lower case letters, digits and -, beginning and ending with a letter or digit"


def is_namespace(text: str) -> bool:
    return len(text) <= 63 and _NAMESPACE.fullmatch(text) is not None


def check_namespace(namespace: str | None) -> None:
    """Of --namespace; None: it was not given. Raises InvalidUsageError."""
    if namespace is not None and not is_namespace(namespace):
        raise InvalidUsageError(f"--namespace must be a DNS label ({_ALLOWED}), not {namespace[:80]!r}")


def check_name(name: str) -> None:
    """Of a PDDeployment. Raises InvalidUsageError."""
    if len(name) > 253 or _NAME.fullmatch(name) is None:
        raise InvalidUsageError(f"NAME must be a DNS name ({_ALLOWED}; with dots between such), not {name[:80]!r}")
