"""What a request asks of the API server, in Kubernetes' own words: verb, group, resource, namespace, name. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
# What follows a namespace's name and is no resource inside it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
MUTATING_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """`resource` is plural and carries a subresource (`pods/status`). A path that is no resource has its path there and the method as verb."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    user_agent: str = ""
    dry_run: bool = False

    @property
    def mutating(self) -> bool:
        """Whether it writes: by its verb, and not as a dry run."""
        return self.verb in MUTATING_VERBS and not self.dry_run


def request_info(method: str, path: str, query: Mapping[str, str], user_agent: str = "") -> RequestInfo:
    """Of a request line; total: what cannot be read as a resource is a path."""
    parts = [unquote(part) for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, rest = "", parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, rest = parts[1], parts[3:]
    else:
        return RequestInfo(method.lower(), "", path, "", "", user_agent)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    resource = "/".join([rest[0], *rest[2:]])
    dry_run = query.get("dryRun") == "All"
    return RequestInfo(_verb(method, name, query), group, resource, namespace, name, user_agent, dry_run)


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if method in ("GET", "HEAD"):
        if query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return _VERBS.get(method, method.lower())
