"""Stands in for scheduler and kubelet: assigns pods to a fake node, reports their status, and ends those that are deleted.

What a pod does is said per label selector by a `Script`; without one it runs and is ready at once. No container runs anywhere. Two threads:
one watches, the other decides (pod_status.py) and writes; an API server that is away is waited for.
"""

import contextlib
import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pdd_e2e.control_plane.api import Json, KubeApi, Watch
from pdd_e2e.control_plane.errors import ApiError, ApiUnreachableError, ControlPlaneError
from pdd_e2e.control_plane.pod_scripts import Runs, Script, Unschedulable
from pdd_e2e.control_plane.pod_status import Node, differs, ready_in_seconds, running_status, unschedulable_status

_RETRY_SECONDS = 0.2
_STOP_SECONDS = 10.0
_GONE = 410


@dataclass(slots=True)
class _Seen:
    """What is remembered of a pod: its last state, since when it is assigned and since when it is to end (monotonic seconds)."""

    pod: Json
    assigned: float | None = None
    ending: float | None = None
    ip: str = ""


class FakeKubelet:
    """Works while its context lasts, on pods of `namespace` or, if that is None, on all.

    A deleted pod goes after the smaller of `grace_seconds` and its own grace period. `pod_network`: the first half of the addresses that new
    pods get; in 127 a process of this machine can stand behind them. Raises ControlPlaneError on exit if it failed meanwhile.
    """

    def __init__(
        self,
        kubeconfig: Path,
        *,
        namespace: str | None = None,
        node_name: str = "fake-node",
        node_labels: Mapping[str, str] | None = None,
        grace_seconds: float = 0.0,
    ) -> None:
        self.grace_seconds = grace_seconds
        self.pod_network = "10.244"
        self.node = Node(name=node_name, address="10.0.0.10")
        self._kubeconfig = kubeconfig
        self._labels = dict(node_labels or {})
        self._path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
        self._scripts: list[tuple[Mapping[str, str], Script]] = []
        self._inbox: queue.Queue[tuple[str, Json] | None] = queue.Queue()
        self._seen: dict[str, _Seen] = {}
        self._due: list[tuple[float, str]] = []
        self._addresses = itertools.count(2)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._failure: Exception | None = None
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop,), name=f"fake-kubelet-{name}", daemon=True)
            for name, loop in (("watch", self._watch_loop), ("work", self._work_loop))
        ]

    def __enter__(self) -> Self:
        self._api = KubeApi(self._kubeconfig, user_agent="pdd-fake-kubelet")
        try:
            self._make_node()
        except BaseException:
            self._api.close()
            raise
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stop.set()
            if self._watch is not None:
                self._watch.close()
        self._inbox.put(None)
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        self._api.close()
        if any(thread.is_alive() for thread in self._threads):
            raise ControlPlaneError(f"the fake kubelet did not stop within {_STOP_SECONDS:.0f} s")
        self.check()

    @property
    def failed(self) -> bool:
        """Whether it does no work any more; `check` says why."""
        return self._failure is not None

    def check(self) -> None:
        """Raises ControlPlaneError if it failed and does no work any more."""
        if self._failure is not None:
            raise ControlPlaneError(f"the fake kubelet failed: {self._failure!r}") from self._failure

    def script(self, labels: Mapping[str, str], script: Script) -> None:
        """From now on pods that have all `labels` do `script`, those that are there too; of several, the last one said holds."""
        with self._lock:
            self._scripts = [*(one for one in self._scripts if one[0] != labels), (dict(labels), script)]
        self._inbox.put(None)

    def clear_scripts(self) -> None:
        """All pods run again."""
        with self._lock:
            self._scripts = []
        self._inbox.put(None)

    # ---- watching -----------------------------------------------------------------------------------------------

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:  # noqa: BLE001  # whatever ends the thread is raised where the test sees it
            self._failure = error

    def _watch_loop(self) -> None:
        version = ""
        while not self._stop.is_set():
            try:
                version = version or self._list()
                version = self._follow(version)
            except ApiUnreachableError:
                self._stop.wait(_RETRY_SECONDS)
            except ApiError as error:
                if error.code != _GONE and error.code < 500 and error.code != 429:
                    raise
                version = ""
                self._stop.wait(_RETRY_SECONDS)

    def _list(self) -> str:
        found = self._api.get(self._path)
        for pod in found["items"]:
            self._inbox.put(("ADDED", pod))
        present = {pod["metadata"]["uid"] for pod in found["items"]}
        for seen in list(self._seen.values()):
            if seen.pod["metadata"]["uid"] not in present:
                self._inbox.put(("DELETED", seen.pod))
        return str(found["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> str:
        """The version to go on from when the watch ended; empty if it is too old."""
        watch = self._api.watch(self._path, version)
        with self._lock:
            self._watch = watch
            if self._stop.is_set():
                watch.close()
        for event in watch:
            if event["type"] == "ERROR":
                return ""
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._inbox.put((event["type"], event["object"]))
        return version

    # ---- working ------------------------------------------------------------------------------------------------

    def _work_loop(self) -> None:
        while not self._stop.is_set():
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            with contextlib.suppress(queue.Empty):  # empty: something is due
                self._take(self._inbox.get(timeout=wait))
            while self._due and self._due[0][0] <= time.monotonic():
                self._step(heapq.heappop(self._due)[1])

    def _take(self, message: tuple[str, Json] | None) -> None:
        if message is None:  # scripts changed, or we are to stop
            for uid in list(self._seen):
                self._step(uid)
            return
        kind, pod = message
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._seen.pop(uid, None)
            return
        seen = self._seen.setdefault(uid, _Seen(pod))
        if _version(pod) >= _version(seen.pod):  # an event may be older than the answer to our own write
            seen.pod = pod
        self._step(uid)

    def _step(self, uid: str) -> None:
        """Brings one pod forward; whatever cannot be done now is due again."""
        seen = self._seen.get(uid)
        if seen is None or self._stop.is_set():
            return
        try:
            wait = self._advance(seen)
        except ApiUnreachableError:
            wait = _RETRY_SECONDS
        except ApiError as error:
            if error.code in (404, 409):
                return  # changed meanwhile: its event is on the way
            if error.code < 500 and error.code != 429:
                raise
            wait = _RETRY_SECONDS
        if wait is not None:
            heapq.heappush(self._due, (time.monotonic() + wait, uid))

    def _advance(self, seen: _Seen) -> float | None:
        """Seconds until there is more to do, or None."""
        pod = seen.pod
        if "deletionTimestamp" in pod["metadata"]:
            return self._end(seen)
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return None
        script = self._script_for(pod["metadata"].get("labels", {}))
        if not pod["spec"].get("nodeName"):
            self._schedule(seen, script)
            return None
        if pod["spec"]["nodeName"] != self.node.name:
            return None
        return self._report(seen, script)

    def _schedule(self, seen: _Seen, script: Script) -> None:
        pod = seen.pod
        if pod["spec"].get("schedulingGates"):
            return
        if isinstance(script, Unschedulable):
            self._write_status(seen, unschedulable_status(pod, script.message, _now()))
            return
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node.name},
        }
        self._api.create(f"{_path_of(pod)}/binding", binding)

    def _report(self, seen: _Seen, script: Script) -> float | None:
        now = time.monotonic()
        seen.assigned = now if seen.assigned is None else seen.assigned
        seen.ip = seen.ip or (script.pod_ip if isinstance(script, Runs) else None) or self._next_address()
        age = now - seen.assigned
        status = running_status(seen.pod, script, self.node, ip=seen.ip, age_seconds=age, now=_now())
        self._write_status(seen, status)
        return ready_in_seconds(script, age)

    def _end(self, seen: _Seen) -> float | None:
        grace = float(seen.pod["metadata"].get("deletionGracePeriodSeconds", 0))
        if grace == 0 or not seen.pod["spec"].get("nodeName"):
            return None  # the API server removes it by itself, or what its finalizers stand for does
        now = time.monotonic()
        seen.ending = now if seen.ending is None else seen.ending
        left = seen.ending + min(grace, self.grace_seconds) - now
        if left > 0:
            return left
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": seen.pod["metadata"]["uid"]}}
        self._api.delete(_path_of(seen.pod), options)
        return None

    def _write_status(self, seen: _Seen, status: Json) -> None:
        if differs(seen.pod, status):
            body = {"metadata": {"uid": seen.pod["metadata"]["uid"]}, "status": status}
            seen.pod = self._api.patch(f"{_path_of(seen.pod)}/status", body)

    def _script_for(self, labels: Mapping[str, str]) -> Script:
        with self._lock:
            scripts = self._scripts
        for selector, script in reversed(scripts):
            if selector.items() <= labels.items():
                return script
        return Runs()

    def _next_address(self) -> str:
        number = next(self._addresses)
        return f"{self.pod_network}.{number // 250 % 250}.{number % 250 + 2}"

    def _make_node(self) -> None:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.node.name, "labels": self._labels},
        }
        try:
            self._api.create("/api/v1/nodes", node)
        except ApiError as error:
            if error.code != 409:
                raise
            if self._labels:
                self._api.patch(f"/api/v1/nodes/{self.node.name}", {"metadata": {"labels": self._labels}})


def _path_of(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _version(pod: Json) -> int:
    return int(pod["metadata"]["resourceVersion"])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
