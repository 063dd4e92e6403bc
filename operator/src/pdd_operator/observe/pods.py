"""Why a pod is not ready, in words a person can act on: scheduled, then initialized, then containers, then Ready. Pure.

A pod's status is read as a stranger's: whatever is missing or odd in it gives an answer, never an error. Nothing that
changes by itself (restart counts, times, back-off) is part of an answer, so that an unchanged pod is an unchanged status.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pdd_operator.api.labels import Component
from pdd_operator.observe.conditions import shortened
from pdd_operator.observe.groups import condition_of, is_ready
from pdd_operator.observe.printable import printable
from pdd_operator.observe.reasons import Reason
from pdd_operator.observe.references import field_of_reference, objects_of_volumes
from pdd_operator.observe.scheduling import PodContext, explain_unschedulable

PREFLIGHT: Final = "preflight"
ENGINE: Final = "engine"
_QUOTED_CHARACTERS: Final = 300
_RESTARTS_TILL_LOOPING: Final = 2
"""A container that ended once may come up; one that ended twice is told of even while it runs again."""
_IMAGE_REASONS: Final = frozenset(
    (
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "ImageInspectError",
    )
)
_CONFIG_REASONS: Final = frozenset(
    ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun")
)
_Status: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why one pod is not ready."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Preflight:
    """What the check before an engine's start said. ``transport``: EFA, Socket or "" where it refused."""

    transport: str
    reason: str
    message: str


def explain_pod(context: PodContext) -> Trouble | None:
    """None if it is ready (or on its way out and ready until then)."""
    if is_ready(context.pod):
        return None
    status = context.pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        said = f"{status.get('reason') or status['phase']} {status.get('message') or ''}".strip()
        message = f"Pod {context.name} ended ({shortened(said, _QUOTED_CHARACTERS)}); it is replaced."
        return Trouble(Reason.POD_ENDED, message)
    scheduled = condition_of(context.pod, "PodScheduled")
    if scheduled.get("status") != "True":
        return _not_scheduled(context, scheduled)
    return _in_containers(context, status) or _whole_pod(context)


def excused(trouble: Trouble, component: Component, *, decode_ready: bool) -> Trouble:
    """A router that does not answer while no decode engine is ready is as it should be: it waits for one."""
    if component is not Component.ROUTER or decode_ready or trouble.reason is not Reason.NOT_ANSWERING:
        return trouble
    message = "Routers answer as soon as a decode engine is ready: condition DecodeAvailable says what keeps those."
    return Trouble(Reason.INSUFFICIENT_REPLICAS, message)


def preflight_of(pod: Mapping[str, Any]) -> Preflight | None:
    """What preflight left behind when it ended last, None if it has not ended or left nothing readable."""
    for status in (pod.get("status") or {}).get("initContainerStatuses") or []:
        if status.get("name") == PREFLIGHT:
            ended = _termination(status)
            return None if ended is None else _parse_preflight(str(ended.get("message") or ""))
    return None


def _parse_preflight(text: str) -> Preflight | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    transport, reason, message = (str(found.get(key) or "") for key in ("transport", "reason", "message"))
    return Preflight(transport, shortened(reason, 64), shortened(message, 512))


def _not_scheduled(context: PodContext, condition: _Status) -> Trouble:
    if condition.get("status") != "False":
        return Trouble(
            Reason.CONTAINER_STARTING, f"Pod {context.name} waits for the scheduler{_named_scheduler(context)}."
        )
    message = str(condition.get("message") or condition.get("reason") or "")
    return Trouble(Reason.UNSCHEDULABLE, explain_unschedulable(context, message))


def _named_scheduler(context: PodContext) -> str:
    name = str(context.pod["spec"].get("schedulerName") or "default-scheduler")
    if name == "default-scheduler":
        return ""
    return f" {name}, which `{context.field}.podTemplate.schedulerName` names: if that stays so, no scheduler of that name runs"


def _in_containers(context: PodContext, status: _Status) -> Trouble | None:
    if condition_of(context.pod, "PodReadyToStartContainers").get("status") == "False":
        needed = ", ".join(objects_of_volumes(context))
        if needed:
            message = f"Pod {context.name} has a node and waits for its volumes, which need {needed}."
            return Trouble(Reason.CONTAINER_STARTING, message)
    for container in status.get("initContainerStatuses") or []:
        trouble = _explain_init(context, container)
        if trouble is not None:
            return trouble
    for container in status.get("containerStatuses") or []:
        trouble = None if container.get("ready") else _explain_container(context, container)
        if trouble is not None:
            return trouble
    return None


def _whole_pod(context: PodContext) -> Trouble:
    if condition_of(context.pod, "Ready").get("status") == "Unknown":
        return Trouble(Reason.NODE_LOST, f"The node of pod {context.name} does not report any more: look at the node.")
    if not (context.pod.get("status") or {}).get("containerStatuses"):
        return Trouble(Reason.CONTAINER_STARTING, f"Pod {context.name} has a node and is being prepared.")
    message = str(condition_of(context.pod, "Ready").get("message") or "its readiness is not decided yet")
    return Trouble(Reason.NOT_ANSWERING, f"Pod {context.name}: {shortened(message, _QUOTED_CHARACTERS)}.")


def _explain_init(context: PodContext, container: _Status) -> Trouble | None:
    """None if the init container is done."""
    state = container.get("state") or {}
    ended = state.get("terminated")
    if ended is not None and ended.get("exitCode") == 0:
        return None
    common = _waiting_trouble(context, container)
    if common is not None:
        return common
    failed = _termination(container)
    if failed is not None and failed.get("exitCode") != 0:
        return _init_failed(context, container, failed)
    message = f"Init container {container.get('name')} of pod {context.name} is running or about to."
    return Trouble(Reason.CONTAINER_STARTING, message)


def _init_failed(context: PodContext, container: _Status, ended: _Status) -> Trouble:
    name = container.get("name")
    if name == PREFLIGHT:
        preflight = _parse_preflight(str(ended.get("message") or ""))
        if preflight is not None and preflight.reason:
            message = (
                f"Preflight refused to start the engine of pod {context.name}: {preflight.reason}: {preflight.message}"
            )
            return Trouble(Reason.PREFLIGHT_REFUSED, message)
    message = f"Init container {name} of pod {context.name} failed ({_how_it_ended(ended)})."
    return Trouble(Reason.INIT_FAILED, f"{message} `kubectl logs {context.name} -c {name}` has the rest.")


def _explain_container(context: PodContext, container: _Status) -> Trouble:
    state = container.get("state") or {}
    common = _waiting_trouble(context, container)
    if common is not None:
        return common
    ended = _termination(container)
    restarts = int(container.get("restartCount") or 0)
    if ended is not None and ended.get("reason") == "OOMKilled":
        return _out_of_memory(context, container)
    looping = (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff" or restarts >= _RESTARTS_TILL_LOOPING
    if ended is not None and (looping or "terminated" in state):
        message = (
            f"Container {container.get('name')} of pod {context.name} ends after its start ({_how_it_ended(ended)})."
        )
        return Trouble(Reason.CRASH_LOOPING, f"{message} `kubectl logs {context.name} --previous` has the rest.")
    if "running" not in state:
        return Trouble(Reason.CONTAINER_STARTING, f"Pod {context.name} has a node and is being prepared.")
    return _running(context, container)


def _running(context: PodContext, container: _Status) -> Trouble:
    if not container.get("started") and container.get("name") == ENGINE:
        model = "the model" if context.spec is None else context.spec.model.name
        limit = "" if context.spec is None else f" of at most {context.spec.engine.startup_timeout_seconds} s"
        return Trouble(
            Reason.MODEL_LOADING,
            f"The engine of pod {context.name} loads {model}; `spec.engine.startupTimeoutSeconds` gives it time{limit}.",
        )
    if not container.get("started"):
        return Trouble(
            Reason.CONTAINER_STARTING, f"Container {container.get('name')} of pod {context.name} is starting."
        )
    message = f"Container {container.get('name')} of pod {context.name} runs and its readiness check fails."
    return Trouble(Reason.NOT_ANSWERING, f"{message} `kubectl logs {context.name}` may say why.")


def _waiting_trouble(context: PodContext, container: _Status) -> Trouble | None:
    """What init containers and others have in common: image and configuration."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in _IMAGE_REASONS:
        return Trouble(Reason.IMAGE_PULL_FAILED, _image_message(context, container, reason, message))
    if reason in _CONFIG_REASONS:
        field = field_of_reference(context, message)
        todo = f" {field}" if field else ""
        text = f"Container {container.get('name')} of pod {context.name} cannot be made: {shortened(message or reason, _QUOTED_CHARACTERS)}."
        return Trouble(Reason.CONTAINER_CONFIG_INVALID, text + todo)
    return None


def _image_message(context: PodContext, container: _Status, reason: str, message: str) -> str:
    name = container.get("name")
    field = "spec.router.image" if context.component is Component.ROUTER else "spec.engine.image"
    names = field if name in (ENGINE, PREFLIGHT, "router") else "the operator's settings (chart value images)"
    secrets = f"{field.removesuffix('.image')}.imagePullSecretNames"
    if reason == "InvalidImageName":
        why = f"the reference is not valid: correct it in `{names}`"
    elif reason == "ErrImageNeverPull":
        why = "it is not on the node and `imagePullPolicy` is Never"
    elif re.search(r"not found|manifest unknown|does not exist", message, re.IGNORECASE):
        why = f"the registry does not have it, or hides it: check `{names}` and `{secrets}`"
    elif re.search(r"unauthorized|denied|forbidden|authentication|credentials|\b40[13]\b", message, re.IGNORECASE):
        why = f"the registry refuses the node: check `{secrets}`"
    else:
        why = f"check `{names}`, `{secrets}` and whether nodes reach the registry (`kubectl describe pod {context.name}` has its words)"
    return f"Image {container.get('image')} of pod {context.name} cannot be pulled: {why}."


def _out_of_memory(context: PodContext, container: _Status) -> Trouble:
    message = (
        f"Container {container.get('name')} of pod {context.name} took more memory than its limit and was killed: raise "
        f"`{context.field}.podTemplate.resources.limits.memory`"
    )
    if context.component is not Component.ROUTER:
        message += ", or lower `spec.engine.maxModelLen` or, on CPU, `spec.engine.cpuKVCacheGiB`"
    return Trouble(Reason.OUT_OF_MEMORY, f"{message}.")


def _termination(container: _Status) -> _Status | None:
    """How it ended last: now, or before it was started again."""
    for key in ("state", "lastState"):
        ended = (container.get(key) or {}).get("terminated")
        if ended:
            return dict(ended)
    return None


def _how_it_ended(ended: _Status) -> str:
    """Exit code, signal and the end of what it said."""
    code = ended.get("exitCode")
    parts = [f"exit code {code}"]
    if ended.get("reason") not in (None, "Error", "Completed"):
        parts.append(str(ended["reason"]))
    said = " ".join(str(ended.get("message") or "").split())
    if said:
        parts.append(f"it said: {printable(said[-_QUOTED_CHARACTERS:])}")
    return ", ".join(parts)
