"""A small Kubernetes API server on loopback: list and watch of pods in one namespace, with scripted faults.

It keeps versions, a history that can be compacted, and the rules a watcher meets: 410 for a version that is gone, an end
after ``timeoutSeconds``, events in order. Everything else that is asked of it is 404 and recorded.
"""

import asyncio
import copy
import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

NAMESPACE, DEPLOYMENT = "models", "qwen"
SELECTOR = f"pdserve.io/deployment={DEPLOYMENT},pdserve.io/role!=router"


def pod(
    name: str,
    role: str | None = "prefill",
    *,
    group: str | None = "g1",
    ip: str | None = "10.0.0.1",
    uid: str = "",
    ready: bool = True,
    restarts: int = 0,
    draining: bool = False,
    deleted: bool = False,
    phase: str = "Running",
) -> dict[str, Any]:
    labels = {"pdserve.io/deployment": DEPLOYMENT, "pdserve.io/role": role, "pdserve.io/revision-group": group}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": uid or f"uid-{name}",
        "labels": {key: value for key, value in labels.items() if value is not None},
    }
    if draining:
        metadata["annotations"] = {"pdserve.io/draining": "true"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True" if ready else "False"},
        ],
        "containerStatuses": [
            {"name": "sidecar", "restartCount": 99},
            {"name": "engine", "restartCount": restarts},
        ],
    }
    if ip is not None:
        status["podIP"] = ip
    return {"metadata": metadata, "status": status}


@dataclass(frozen=True)
class Fail:
    """Answer ``status`` instead; with ``hang`` nothing at all."""

    status: int = 500
    retry_after: str | None = None
    hang: bool = False


@dataclass
class FakeApiServer:
    """``requests``: (method, path, kind, seconds since start). ``faults``: for the next requests, one each."""

    port: int = 0
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[tuple[str, str, str, float]] = field(default_factory=list)
    faults: deque[Fail] = field(default_factory=deque)
    watches: int = 0
    _version: int = 100
    _oldest: int = 100
    _events: list[tuple[int, bytes]] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _open: set[asyncio.Transport] = field(default_factory=set)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def up(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    async def down(self) -> None:
        """Gone, connections and all; ``up`` brings it back with what it knew."""
        if self._runner is not None:
            self.cut_watches()
            await self._runner.cleanup()
            self._runner = None

    def write_kubeconfig(self, folder: Path) -> Path:
        file = folder / "kubeconfig"
        server = {"server": f"http://127.0.0.1:{self.port}"}
        context = {"cluster": "fake", "user": "router", "namespace": NAMESPACE}
        file.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "fake", "cluster": server}],
                    "users": [{"name": "router", "user": {"token": "t"}}],
                    "contexts": [{"name": "fake", "context": context}],
                    "current-context": "fake",
                }
            )
        )
        return file

    # ---- what happens in the cluster ----

    async def put(self, *pods: dict[str, Any]) -> None:
        for value in pods:
            name, labels = value["metadata"]["name"], value["metadata"]["labels"]
            if labels.get("pdserve.io/role") == "router":
                continue  # as the selector says
            await self.send("MODIFIED" if name in self.pods else "ADDED", value)
            self.pods[name] = value

    async def delete(self, name: str) -> None:
        await self.send("DELETED", self.pods.pop(name))

    async def send(self, kind: str, value: Any) -> None:
        """An event, whatever it holds."""
        value = copy.deepcopy(value)
        if isinstance(value, dict) and "metadata" in value:
            value["metadata"]["resourceVersion"] = str(self._version + 1)
        await self.send_raw(json.dumps({"type": kind, "object": value}).encode())

    async def send_raw(self, line: bytes) -> None:
        self._version += 1
        self._events.append((self._version, line + b"\n"))
        async with self._changed:
            self._changed.notify_all()

    def compact(self) -> None:
        """Forget all history: versions before now are 410."""
        self._version += 1
        self._oldest = self._version
        self._events.clear()

    def cut_watches(self) -> None:
        for transport in list(self._open):
            transport.abort()

    def fail(self, *faults: Fail) -> None:
        """The next requests, which come at once."""
        self.faults.extend(faults)
        self.cut_watches()

    # ---- what is asked of it ----

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        kind = "watch" if request.query.get("watch") in ("true", "True") else "list"
        self.requests.append((request.method, request.path, kind, asyncio.get_running_loop().time()))
        if request.method != "GET" or request.path != f"/api/v1/namespaces/{NAMESPACE}/pods":
            return web.Response(status=404)
        if request.query.get("labelSelector") != SELECTOR:
            return web.Response(status=400)
        if request.headers.get("Authorization") != "Bearer t":
            return web.Response(status=401)
        if self.faults:
            fault = self.faults.popleft()
            if fault.hang:
                await asyncio.Event().wait()
            headers = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
            return web.json_response({"kind": "Status", "code": fault.status}, status=fault.status, headers=headers)
        if kind == "watch":
            return await self._watch(request)
        items = list(self.pods.values())
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if at < self._oldest:
            status = {"kind": "Status", "code": 410, "reason": "Expired"}
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return response
        deadline = asyncio.get_running_loop().time() + float(request.query["timeoutSeconds"])
        transport = request.transport
        assert transport is not None
        self._open.add(transport)
        self.watches += 1
        try:
            while True:
                for version, line in [event for event in self._events if event[0] > at]:
                    await response.write(line)
                    at = version
                async with asyncio.timeout_at(deadline), self._changed:
                    await self._changed.wait_for(lambda: any(version > at for version, _ in self._events))  # noqa: B023  # waited for here
        except TimeoutError:
            return response
        finally:
            self.watches -= 1
            self._open.discard(transport)
