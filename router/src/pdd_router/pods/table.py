"""Events → the pods there are: the state that a list sets and watch events change. Pure but for its own state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pdd_router.endpoints.engine import Listed
from pdd_router.pods.reading import NotListed, Ports, name_and_uid, read_pod


class MalformedEventError(Exception):
    """An event that cannot be applied: what is known may be wrong from here on, so list again."""


@dataclass(frozen=True, slots=True)
class Listing:
    """``faults``: pods that should be engines and are not, by name."""

    engines: tuple[Listed, ...] = ()
    faults: Mapping[str, NotListed] = field(default_factory=dict)


class PodTable:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._pods: dict[str, tuple[str, Listed | NotListed]] = {}

    def reset(self, pods: Iterable[object]) -> None:
        """What a list gave. Anything in it that is no pod at all is kept as a fault without a name."""
        self._pods = {}
        for at, pod in enumerate(pods):
            name, uid = name_and_uid(pod) or (f"#{at}", "")
            self._pods[name] = (uid, read_pod(pod, self._ports))

    def apply(self, kind: str, pod: object) -> None:
        """``kind``: ADDED, MODIFIED or DELETED. Raises MalformedEventError."""
        identity = name_and_uid(pod)
        if identity is None or kind not in ("ADDED", "MODIFIED", "DELETED"):
            raise MalformedEventError
        name, uid = identity
        if kind != "DELETED":
            self._pods[name] = (uid, read_pod(pod, self._ports))
        elif name in self._pods and self._pods[name][0] in ("", uid):
            # A StatefulSet gives the name to another pod, which must not go with the old one.
            del self._pods[name]

    def listing(self) -> Listing:
        read = [(name, value) for name, (_, value) in sorted(self._pods.items())]
        return Listing(
            engines=tuple(value for _, value in read if isinstance(value, Listed)),
            faults={name: value for name, value in read if isinstance(value, NotListed) and value.is_fault},
        )
