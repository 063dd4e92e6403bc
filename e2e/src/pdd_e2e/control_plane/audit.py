"""Reads the API server's audit log: who called what, and how often. The server writes it; this only parses.

An event is written when its request is finished, so a call that is under way is not counted yet, and a watch only once it ends.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pdd_e2e.control_plane.api import Json
from pdd_e2e.control_plane.request_info import MUTATING_VERBS


@dataclass(frozen=True, slots=True)
class Call:
    """One finished request. `resource` is plural and carries a subresource (`statefulsets`, `pods/status`); absent parts are empty."""

    audit_id: str
    user: str
    user_agent: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int
    received: str

    @property
    def mutating(self) -> bool:
        """Whether the verb writes; a dry run or a refused call does too, see `code`."""
        return self.verb in MUTATING_VERBS

    @classmethod
    def parse(cls, event: Json) -> Self:
        """From an `audit.k8s.io/v1` Event."""
        reference = event.get("objectRef", {})
        resource = reference.get("resource", "")
        if reference.get("subresource"):
            resource = f"{resource}/{reference['subresource']}"
        return cls(
            audit_id=event["auditID"],
            user=event["user"].get("username", ""),
            user_agent=event.get("userAgent", ""),
            verb=event["verb"],
            group=reference.get("apiGroup", ""),
            resource=resource,
            namespace=reference.get("namespace", ""),
            name=reference.get("name", ""),
            code=event.get("responseStatus", {}).get("code", 0),
            received=event["requestReceivedTimestamp"],
        )


class AuditLog:
    """The log file of a control plane. `flush` makes sure that what was answered before is in it."""

    def __init__(self, path: Path, flush: Callable[[], None]) -> None:
        self._path = path
        self._flush = flush

    def position(self) -> int:
        """Where the log ends now, for `calls(since=...)`."""
        self._flush()
        return self._path.stat().st_size

    def calls(
        self, *, since: int = 0, user: str | None = None, resource: str | None = None, namespace: str | None = None
    ) -> list[Call]:
        """Finished requests after `since` that match all that is given, in the order in which they finished."""
        self._flush()
        with self._path.open("rb") as log:
            log.seek(since)
            found = [Call.parse(json.loads(line)) for line in log.read().splitlines() if line]
        wanted = {"user": user, "resource": resource, "namespace": namespace}
        return [
            call
            for call in found
            if all(value is None or getattr(call, field) == value for field, value in wanted.items())
        ]

    def writes(
        self, *, since: int = 0, user: str | None = None, resource: str | None = None, namespace: str | None = None
    ) -> list[Call]:
        """The mutating ones among `calls`, refused ones included."""
        found = self.calls(since=since, user=user, resource=resource, namespace=namespace)
        return [call for call in found if call.mutating]


def count_by_user_and_resource(calls: Iterable[Call]) -> Counter[tuple[str, str, str]]:
    """(user, verb, resource) → how often."""
    return Counter((call.user, call.verb, call.resource) for call in calls)
