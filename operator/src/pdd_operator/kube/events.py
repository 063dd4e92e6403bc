"""Events on a PDDeployment: one per change, repeats counted instead of repeated. Core/v1, because ``kubectl describe`` shows those.

Failing to write an event never fails a reconcile: it is logged and forgotten. Remembers what it wrote in this process only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol
from uuid import uuid4

import structlog

from pdd_operator.api import labels
from pdd_operator.api.objects import Manifest
from pdd_operator.errors import ClusterError, NamespaceEndingError, NotFoundError
from pdd_operator.observe.events import Event

_log = structlog.stdlib.get_logger(__name__)
_MESSAGE_BYTES = 1024
_REMEMBERED = 2048
_REPEAT_SECONDS = 60.0
"""A repeat is counted at most this often."""


class EventStore(Protocol):
    """Raises ClusterError."""

    def create_event(self, namespace: str, event: Manifest) -> None: ...

    def patch_event(self, namespace: str, name: str, change: Manifest) -> None: ...


@dataclass(slots=True)
class _Written:
    name: str
    count: int
    at: datetime


class EventRecorder:
    """Safe to use from several threads for different objects."""

    def __init__(self, store: EventStore, reporter: str, now: Callable[[], datetime]) -> None:
        self._store = store
        self._reporter = reporter
        self._now = now
        self._written: OrderedDict[tuple[str, Event], _Written] = OrderedDict()

    def record(self, deployment: Manifest, event: Event) -> None:
        """Writes it, or counts it up if it is a repeat. A namespace that is being deleted gets none."""
        metadata = deployment["metadata"]
        # Before it is remembered, too: part of it may be a user's, as long as he likes.
        event = replace(event, message=event.message.encode()[:_MESSAGE_BYTES].decode("utf-8", "ignore"))
        try:
            self._record(deployment, event)
        except NamespaceEndingError:
            return
        except ClusterError as error:
            _log.warning(
                "Could not write an event",
                namespace=metadata["namespace"],
                name=metadata["name"],
                reason=event.reason,
                error=str(error),
            )

    def _record(self, deployment: Manifest, event: Event) -> None:
        metadata = deployment["metadata"]
        namespace, now = metadata["namespace"], self._now()
        key = (str(metadata["uid"]), event)
        before = self._written.get(key)
        if before is not None and (now - before.at).total_seconds() < _REPEAT_SECONDS:
            return
        if before is not None and self._counted_up(namespace, before, now):
            self._remember(key, _Written(before.name, before.count + 1, now))
            return
        name = f"{metadata['name']}.{uuid4().hex[:16]}"
        self._store.create_event(namespace, self._manifest(deployment, event, name, now))
        self._remember(key, _Written(name, 1, now))

    def _counted_up(self, namespace: str, before: _Written, now: datetime) -> bool:
        """False: the event is gone, as events go after an hour."""
        try:
            self._store.patch_event(namespace, before.name, {"count": before.count + 1, "lastTimestamp": _time(now)})
        except NotFoundError:
            return False
        return True

    def _remember(self, key: tuple[str, Event], written: _Written) -> None:
        self._written[key] = written
        self._written.move_to_end(key)
        while len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    def _manifest(self, deployment: Manifest, event: Event, name: str, now: datetime) -> Manifest:
        metadata = deployment["metadata"]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": labels.API_VERSION,
                "kind": labels.KIND,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "message": event.message,
            "count": 1,
            "firstTimestamp": _time(now),
            "lastTimestamp": _time(now),
            "source": {"component": labels.FIELD_MANAGER, "host": self._reporter},
            "reportingComponent": labels.FIELD_MANAGER,
            "reportingInstance": self._reporter,
        }


def _time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
