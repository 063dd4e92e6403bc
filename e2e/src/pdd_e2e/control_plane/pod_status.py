"""The status that a kubelet would report for a pod under a script, and whether it differs from what is stored. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdd_e2e.control_plane.pod_scripts import NeverReady, Runs, Script, Trouble, terminated, trouble_of

Json = dict[str, Any]

_INITIALIZING: Json = {"waiting": {"reason": "PodInitializing"}}
# Conditions that are ours; others (DisruptionTarget, readiness gates) are kept as they are.
_OWN_CONDITIONS = frozenset({"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"})


@dataclass(frozen=True, slots=True)
class Node:
    """Where pods run: the name and address that their status names."""

    name: str
    address: str


def unschedulable_status(pod: Json, message: str, now: str) -> Json:
    """The status of a pod for which the scheduler finds no node."""
    condition = _condition("PodScheduled", False, "Unschedulable", message)
    return {"phase": "Pending", "conditions": _with_times(pod, [condition], now)}


def running_status(pod: Json, script: Script, node: Node, *, ip: str, age_seconds: float, now: str) -> Json:
    """The status of an assigned pod. `age_seconds`: since it was assigned; `now`: RFC 3339, for what changes at this moment."""
    status = pod.get("status", {})
    started = str(status.get("startTime") or now)
    inits, containers, complete = _containers(pod, script, started, age_seconds)
    address = str(status.get("podIP") or ip)
    return {
        "phase": _phase(complete, containers),
        "conditions": _with_times(pod, _conditions(inits, containers, complete), now),
        "hostIP": node.address,
        "hostIPs": [{"ip": node.address}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": started,
        **({"initContainerStatuses": inits} if inits else {}),
        "containerStatuses": containers,
    }


def differs(pod: Json, status: Json) -> bool:
    """Whether any field of `status` is stored otherwise."""
    stored = pod.get("status", {})
    return any(stored.get(field) != value for field, value in status.items())


def ready_in_seconds(script: Script, age_seconds: float) -> float | None:
    """When the status will change by itself; None if it will not."""
    if isinstance(script, Runs) and age_seconds < script.ready_after_seconds:
        return script.ready_after_seconds - age_seconds
    return None


def _containers(pod: Json, script: Script, started: str, age_seconds: float) -> tuple[list[Json], list[Json], bool]:
    """(init container statuses, container statuses, whether initialization is complete)."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    init_specs, specs = spec.get("initContainers", []), spec["containers"]
    target = getattr(script, "container", None) or specs[0]["name"]
    image = next((one["image"] for one in (*init_specs, *specs) if one["name"] == target), "")
    trouble = trouble_of(script, target, image, name, started)
    complete, inits = True, []
    for one in init_specs:
        if not complete:
            inits.append(_status(pod, one, _INITIALIZING))
        elif trouble and one["name"] == target:
            inits.append(_status(pod, one, trouble.state, trouble=trouble))
            complete = False
        else:
            inits.append(_initialized(pod, one, script, started))
    containers = []
    for one in specs:
        if not complete:
            containers.append(_status(pod, one, _INITIALIZING))
        elif trouble and one["name"] == target:
            containers.append(_status(pod, one, trouble.state, trouble=trouble))
        else:
            ready = _is_ready(script, one["name"], age_seconds)
            containers.append(_status(pod, one, {"running": {"startedAt": started}}, ready=ready))
    return inits, containers, complete


def _initialized(pod: Json, container: Json, script: Script, started: str) -> Json:
    if container.get("restartPolicy") == "Always":
        return _status(pod, container, {"running": {"startedAt": started}}, ready=True)
    message = script.init_messages.get(container["name"], "") if isinstance(script, Runs) else ""
    return _status(pod, container, terminated("Completed", 0, message, started), ready=True)


def _is_ready(script: Script, container: str, age_seconds: float) -> bool:
    match script:
        case NeverReady(container=target):
            return target is not None and target != container
        case Runs(ready_after_seconds=after):
            return age_seconds >= after
        case _:
            return True


def _status(pod: Json, container: Json, state: Json, *, ready: bool = False, trouble: Trouble | None = None) -> Json:
    name, uid = container["name"], pod["metadata"]["uid"]
    restarts = max(trouble.restarts if trouble else 0, _restarts_so_far(pod, name))
    has_run = "waiting" not in state or bool(trouble and trouble.last_state)
    return {
        "name": name,
        "image": container["image"],
        "imageID": f"fake://{container['image']}" if has_run else "",
        **({"containerID": f"fake://{uid}/{name}/{restarts}"} if has_run else {}),
        "lastState": trouble.last_state if trouble else {},
        "ready": ready,
        "restartCount": restarts,
        "started": "running" in state,
        "state": state,
    }


def _restarts_so_far(pod: Json, container: str) -> int:
    status = pod.get("status", {})
    known = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return max((int(one["restartCount"]) for one in known if one["name"] == container), default=0)


def _phase(complete: bool, containers: Sequence[Json]) -> str:
    never_started = any("waiting" in one["state"] and not one["lastState"] for one in containers)
    return "Pending" if not complete or never_started else "Running"


def _conditions(inits: Sequence[Json], containers: Sequence[Json], complete: bool) -> list[Json]:
    unready = [one["name"] for one in containers if not one["ready"]]
    incomplete = [one["name"] for one in inits if not one["ready"]]
    not_ready = f"containers with unready status: [{' '.join(unready)}]"
    not_initialized = f"containers with incomplete status: [{' '.join(incomplete)}]"
    return [
        _condition("PodReadyToStartContainers", True),
        _condition("Initialized", complete, "ContainersNotInitialized", not_initialized),
        _condition("Ready", not unready, "ContainersNotReady", not_ready),
        _condition("ContainersReady", not unready, "ContainersNotReady", not_ready),
        _condition("PodScheduled", True),
    ]


def _condition(kind: str, true: bool, reason: str = "", message: str = "") -> Json:
    if true:
        return {"type": kind, "status": "True"}
    return {"type": kind, "status": "False", "reason": reason, "message": message}


def _with_times(pod: Json, conditions: list[Json], now: str) -> list[Json]:
    """With the time at which each changed its status; those of others come last and unchanged."""
    stored = pod.get("status", {}).get("conditions", [])
    known = {one["type"]: one for one in stored}
    timed = []
    for one in conditions:
        before = known.get(one["type"], {})
        since = before.get("lastTransitionTime") if before.get("status") == one["status"] else None
        timed.append({**one, "lastProbeTime": None, "lastTransitionTime": since or now})
    return timed + [one for one in stored if one["type"] not in _OWN_CONDITIONS]
