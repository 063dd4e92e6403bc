"""A PDDeployment that really serves: its engine pods have engines behind their addresses, and its router runs as the pod of it would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from control_world import OURS, PASSED, World
from pod_engines import PodEngines

from pdd_e2e.control_plane.api import Json
from pdd_e2e.control_plane.pod_scripts import Runs
from pdd_e2e.operators.deployments import cpu_deployment, wait_for
from pdd_e2e.operators.router_process import RouterProcess

NAME = "small"
DRAIN_SECONDS = 30.0
"""A pod that drains goes before, as soon as its engine is idle."""
REPLACED_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Serving:
    """``model``: the name under which the engines serve."""

    world: World
    engines: PodEngines
    router: RouterProcess
    model: str

    def pods(self, role: str) -> list[Json]:
        """Its ready ones, by name."""
        pods = [
            pod for pod in self.world.deployments.pods(NAME) if pod["metadata"]["labels"]["pdserve.io/role"] == role
        ]
        return sorted((pod for pod in pods if _is_ready(pod)), key=lambda pod: str(pod["metadata"]["name"]))

    def delete(self, pod: Json, *, at_once: bool) -> None:
        """``at_once``: as when a node dies; else as by `kubectl delete pod`, and it has time to drain."""
        path = f"/api/v1/namespaces/{self.world.namespace}/pods/{pod['metadata']['name']}"
        self.world.plane.api.delete(path, {"gracePeriodSeconds": 0} if at_once else None)

    def replacement(self, pod: Json) -> str:
        """The uid of the pod that the StatefulSet puts in its place, once it is ready and its engine runs."""
        role, name, old = (
            pod["metadata"]["labels"]["pdserve.io/role"],
            pod["metadata"]["name"],
            pod["metadata"]["uid"],
        )

        def found() -> str:
            uids = [one["metadata"]["uid"] for one in self.pods(role) if one["metadata"]["name"] == name]
            return next((str(uid) for uid in uids if uid != old and uid in self.engines.uids), "")

        return wait_for(found, REPLACED_SECONDS, lambda: f"the StatefulSet does not replace {name}")

    def wait_until_serving(self, uid: str, timeout_seconds: float = REPLACED_SECONDS) -> None:
        """Until the engine of that pod has answered. Raises ControlPlaneError."""
        wait_for(lambda: self.engines.turns(uid), timeout_seconds, lambda: f"the engine of pod {uid} serves nothing")


@contextmanager
def serving(world: World, replicas: int) -> Iterator[Serving]:
    """Made by an operator that was started before; the router is not started yet, and killed at the end."""
    world.kubelet.pod_network = "127.20"
    world.kubelet.grace_seconds = DRAIN_SECONDS
    world.kubelet.script(OURS, Runs(ready_after_seconds=0.5, init_messages=PASSED))
    roles = {role: {"replicas": replicas, "accelerator": {"type": "CPU"}} for role in ("prefill", "decode")}
    manifest = cpu_deployment(NAME, **roles)
    model = manifest["spec"]["model"]["name"]
    with PodEngines(world.deployments, NAME, model) as engines:
        world.create_ready(manifest)
        router = RouterProcess(world.plane, world.deployments, NAME, world.folder, engines.port)
        try:
            yield Serving(world, engines, router, model)
        finally:
            router.kill()


def lose_a_pair(service: Serving, *, drained: bool = True) -> list[str]:
    """A prefill engine dies with its node, a decode engine is deleted and, if ``drained``, drains; the uids of the pods in their place."""
    prefill, decode = service.pods("prefill")[0], service.pods("decode")[0]
    service.delete(prefill, at_once=True)
    service.delete(decode, at_once=not drained)
    return [service.replacement(pod) for pod in (prefill, decode)]


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
