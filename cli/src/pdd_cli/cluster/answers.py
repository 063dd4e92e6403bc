"""Whether an answer is what an API server of Kubernetes says, before anybody reads in it: a proxy, a login page or another program answers too.

Pure. Checks what the readers take for granted, and no more: the rest is the API server's to promise.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pdd_operator.api.objects import Manifest
from pdd_operator.errors import ClusterError

_CLUSTER_WIDE: Final = frozenset(("CustomResourceDefinition", "Namespace", "Node"))
_HAVE_SPEC: Final = frozenset(("CustomResourceDefinition", "DaemonSet", "Deployment", "Lease"))
_UNSERVED: Final = "404 page not found"
"""An API server's words for a path that nobody serves; all else it says in a Status."""


class StrangeAnswerError(ClusterError):
    """Something has answered that is no API server of Kubernetes."""


def object_of(answer: object, kind: str, path: str) -> Manifest:
    """Raises StrangeAnswerError."""
    return _checked(_of_kind(answer, kind, path), kind, path)


def items_of(answer: object, kind: str, path: str) -> tuple[Manifest, ...]:
    """Of a list of such objects. Raises StrangeAnswerError."""
    items = _list(_of_kind(answer, f"{kind}List", path), "items", path)
    return tuple(_checked(item, kind, path) for item in items)


def names_of(answer: object, kind: str, key: str, path: str) -> frozenset[str]:
    """What a document of discovery lists under ``key``. Raises StrangeAnswerError."""
    return frozenset(str(item.get("name")) for item in _list(_of_kind(answer, kind, path), key, path))


def version_of(answer: object) -> str:
    """The one answer that has no kind. Raises StrangeAnswerError."""
    version = answer.get("gitVersion") if isinstance(answer, dict) else None
    if not isinstance(version, str):
        raise StrangeAnswerError("/version: the answer has no `gitVersion`")
    return version


def is_allowed(answer: object, path: str) -> bool:
    """Of a SelfSubjectAccessReview. Raises StrangeAnswerError."""
    status = _of_kind(answer, "SelfSubjectAccessReview", path).get("status")
    if not isinstance(status, dict):
        raise StrangeAnswerError(f"{path}: the answer has no `status`")
    return bool(status.get("allowed"))


def is_kubernetes_404(body: bytes | str | None) -> bool:
    """Whether it says that something is not there. Any web server has a page for what it does not have."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body or ""
    if text.strip() == _UNSERVED:
        return True
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(status, dict) and status.get("kind") == "Status"


def _of_kind(answer: object, kind: str, path: str) -> Manifest:
    if not isinstance(answer, dict) or answer.get("kind") != kind:
        raise StrangeAnswerError(f"{path}: the answer is no {kind}")
    return answer


def _list(answer: Manifest, key: str, path: str) -> list[dict[str, Any]]:
    """An empty one may be null."""
    items = answer.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise StrangeAnswerError(f"{path}: `{key}` of the answer is no list of objects")
    return items


def _checked(item: Manifest, kind: str, path: str) -> Manifest:
    metadata = item.get("metadata")
    names = ("name",) if kind in _CLUSTER_WIDE else ("name", "namespace")
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(name), str) for name in names):
        raise StrangeAnswerError(f"{path}: a {kind} of the answer has no {' or no '.join(names)}")
    for part in ("spec", "status"):
        value = item.get(part)
        may_be_absent = part == "status" or kind not in _HAVE_SPEC
        if not isinstance(value, dict) and not (value is None and may_be_absent):
            raise StrangeAnswerError(f"{path}: `{part}` of a {kind} of the answer is no object")
    return item
