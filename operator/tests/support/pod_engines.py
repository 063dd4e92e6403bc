"""What a node runs in engine pods, as fake engines: one behind the address of each pod that has one.

It lives as long as its pod is there. One whose pod is being deleted drains, as by the operator's preStop hook: it goes, and its pod, once it
has had nothing to do for a while, which is once routers have noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Self

from pdd_cli.local.ports import free_ports
from pdd_e2e.control_plane.api import Json
from pdd_e2e.control_plane.errors import ApiError, ControlPlaneError
from pdd_e2e.fake_engine import FakeEngine, FakeFabric
from pdd_e2e.operators.deployments import Deployments

LOOK_SECONDS = 0.1
IDLE_SECONDS = 1.0
_STOP_SECONDS = 15.0
_CLAIM_PORT = 6600
_ROLES = {"prefill": "Prefill", "decode": "Decode"}


class PodEngines:
    """Of the PDDeployment ``name``. Works while its context lasts, in a thread; what it knows may be asked for from any."""

    def __init__(self, deployments: Deployments, name: str, model: str) -> None:
        (self.port,) = free_ports(1)
        self._deployments = deployments
        self._name = name
        self._model = model
        self._fabric = FakeFabric()
        self._running: dict[str, FakeEngine] = {}
        self._known: dict[str, FakeEngine] = {}
        self._busy_at: dict[str, float] = {}
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._guarded, name="pod-engines", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_STOP_SECONDS)
        self.check()

    def check(self) -> None:
        """Raises ControlPlaneError if it runs no engines any more."""
        if self._failure is not None:
            raise ControlPlaneError(f"engines of pods failed: {self._failure!r}") from self._failure

    @property
    def uids(self) -> set[str]:
        """Pods whose engines run."""
        return set(self._running)

    def turns(self, uid: str) -> int:
        """How many turns the engine of that pod answered whole, prefill legs too; 0 for one that was never seen."""
        self.check()
        engine = self._known.get(uid)
        return 0 if engine is None else sum(_is_turn(request) for request in list(engine.requests))

    def asked(self, uid: str) -> int:
        """How many requests of any kind reached it, health checks too."""
        self.check()
        engine = self._known.get(uid)
        return 0 if engine is None else len(engine.requests)

    def _guarded(self) -> None:
        try:
            asyncio.run(self._follow())
        except Exception as error:  # noqa: BLE001  # whatever ends the thread is raised where the test sees it
            self._failure = error

    async def _follow(self) -> None:
        try:
            while not self._stop.is_set():
                pods = await asyncio.to_thread(self._deployments.pods, self._name)
                there = {pod["metadata"]["uid"]: pod for pod in pods}
                for uid in self._running.keys() - there.keys():
                    await self._running.pop(uid).kill()
                for uid, pod in there.items():
                    if "deletionTimestamp" in pod["metadata"]:
                        await self._drain(uid, pod)
                    elif uid not in self._running:
                        await self._start(uid, pod)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for engine in self._running.values():
                await engine.kill()

    async def _drain(self, uid: str, pod: Json) -> None:
        engine, now = self._running.get(uid), time.monotonic()
        if engine is not None:
            if engine.running or engine.waiting:
                self._busy_at[uid] = now
            if now - self._busy_at.setdefault(uid, now) < IDLE_SECONDS:
                return
            await self._running.pop(uid).kill()
        path = f"/api/v1/namespaces/{self._deployments.namespace}/pods/{pod['metadata']['name']}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        with contextlib.suppress(ApiError):  # it is gone already
            await asyncio.to_thread(self._deployments.api.delete, path, options)

    async def _start(self, uid: str, pod: Json) -> None:
        labels, address = pod["metadata"]["labels"], pod.get("status", {}).get("podIP")
        role = _ROLES.get(labels["pdserve.io/role"])
        if role is None or not address:
            return
        engine = FakeEngine(
            fabric=self._fabric,
            role=role,
            name=pod["metadata"]["name"],
            model=self._model,
            host=address,
            port=self.port,
            claim_port=_CLAIM_PORT,
            revision=labels["pdserve.io/revision-group"],
            cache_blocks=4096,
            seconds_per_output_token=0.002,
        )
        await engine.start()
        self._known[uid] = self._running[uid] = engine


def _is_turn(request: Any) -> bool:
    params = request.body.get("kv_transfer_params") if isinstance(request.body, dict) else None
    introduction = bool(params and params.get("claim", {}).get("introduce"))
    return request.method == "POST" and request.status == 200 and request.finished_at is not None and not introduction
