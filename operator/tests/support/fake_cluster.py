"""An API server of thirty lines that stores what is applied to it as it is, and the clock that both it and the operator go by."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pdd_operator.api import labels
from pdd_operator.api.names import NamespacedName, ObjectRef
from pdd_operator.api.objects import ref_of
from pdd_operator.errors import ConflictError
from pdd_operator.kube.kinds import Kind

SPEC = {
    "model": {"name": "Qwen/Qwen3-0.6B"},
    "prefill": {"accelerator": {"type": "CPU"}},
    "decode": {"accelerator": {"type": "CPU"}},
    "transport": {"backend": "Socket"},
}


class FakeCluster:
    """Stores what is applied as it is. ``refuse``: what a write of that kind and name raises."""

    def __init__(self) -> None:
        self.deployment: Any = {
            "apiVersion": labels.API_VERSION,
            "kind": labels.KIND,
            "metadata": {
                "name": "small",
                "namespace": "agents",
                "uid": "uid-1",
                "generation": 1,
                "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": copy.deepcopy(SPEC),
        }
        self.objects: dict[ObjectRef, Any] = {}
        self.clock = Clock()
        self.pods: tuple[Any, ...] = ()
        self.refusals: dict[str, str] = {}
        self.secrets: set[str] = set()
        self.writes: list[str] = []
        self.dry_runs: list[str] = []
        self.refuse: dict[str, Exception] = {}
        self.drop_field: str | None = None
        self.version = 0

    def get_deployment(self, key: NamespacedName) -> Any:
        return copy.deepcopy(self.deployment)

    def list_children(self, key: NamespacedName) -> dict[ObjectRef, Any]:
        return copy.deepcopy(
            {ref: item for ref, item in self.objects.items() if labels.DEPLOYMENT in item["metadata"].get("labels", {})}
        )

    def list_pods(self, key: NamespacedName) -> tuple[Any, ...]:
        return copy.deepcopy(self.pods)

    def last_refusal(self, namespace: str, uid: str) -> str:
        return self.refusals.get(uid, "")

    def get(self, namespace: str, ref: ObjectRef) -> Any:
        return copy.deepcopy(self.objects.get(ref))

    def apply(self, namespace: str, manifest: Any, manager: str = labels.FIELD_MANAGER) -> Any:
        ref = ref_of(manifest)
        self._write(f"apply {ref}")
        stored = copy.deepcopy(manifest)
        if self.drop_field is not None:
            stored.get("spec", {}).pop(self.drop_field, None)
        before = self.objects.get(ref)
        if before is not None and _content(before) == _content(stored):
            return copy.deepcopy(before)
        self.version += 1
        made = {"uid": f"uid-{ref}-{self.version}", "creationTimestamp": self.clock.utc().isoformat()}
        kept = made if before is None else {key: before["metadata"][key] for key in made}
        stored["metadata"] |= kept | {"resourceVersion": str(self.version)}
        self.objects[ref] = stored
        return copy.deepcopy(stored)

    def scale(self, namespace: str, ref: ObjectRef, replicas: int) -> Any:
        self._write(f"scale {ref}")
        self.objects[ref]["spec"]["replicas"] = replicas
        return self.objects[ref]

    def delete(self, namespace: str, ref: ObjectRef, uid: str) -> bool:
        self._write(f"delete {ref}")
        return self.objects.pop(ref, None) is not None

    def create_secret(self, namespace: str, manifest: Any, *, dry_run: bool = False) -> bool:
        name = manifest["metadata"]["name"]
        if dry_run:
            self.dry_runs.append(name)
            if (error := self.refuse.get(f"dry-run {name}")) is not None:
                raise error
            return name not in self.secrets
        self._write(f"secret {name}")
        is_new = name not in self.secrets
        self.secrets.add(name)
        return is_new

    def apply_status(self, key: NamespacedName, status: Mapping[str, Any], of_version: str | None = None) -> Any:
        metadata = self.deployment["metadata"]
        if of_version is not None and of_version != metadata["resourceVersion"]:
            raise ConflictError("it has changed", status=409)
        self._write("claim" if of_version is not None else "status")
        self.deployment["status"] = copy.deepcopy(dict(status))
        metadata["resourceVersion"] += "1"
        return copy.deepcopy(self.deployment)

    def create_event(self, namespace: str, event: Any) -> None:
        self._write(f"event {event['reason']}")

    def patch_event(self, namespace: str, name: str, change: Any) -> None:
        self._write("event again")

    def has_kind(self, kind: Kind) -> bool:
        return False

    def take_call_count(self) -> int:
        return 1

    def _write(self, what: str) -> None:
        if (error := self.refuse.get(what)) is not None:
            raise error
        self.writes.append(what)


def _content(item: Any) -> Any:
    found = copy.deepcopy(item)
    found["metadata"].pop("uid", None)
    found["metadata"].pop("resourceVersion", None)
    found["metadata"].pop("creationTimestamp", None)
    return found


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)
