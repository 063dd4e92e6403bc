"""What a pod can be told to do by the fake kubelet: data that a test writes, and the trouble that each means for one container. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_NO_MESSAGES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Init containers end well, all containers run and become ready `ready_after_seconds` after the pod was assigned.

    `init_messages`: init container → its termination message. `pod_ip`: instead of one that the kubelet picks.
    """

    ready_after_seconds: float = 0.0
    init_messages: Mapping[str, str] = field(default_factory=lambda: _NO_MESSAGES)
    pod_ip: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unschedulable:
    """No node is found, in the scheduler's words. Only for pods that have none yet."""

    message: str = "0/1 nodes are available: 1 Insufficient cpu."


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePullBackOff:
    """The image of `container` (an init container too; the first container if None) cannot be had."""

    container: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashLoopBackOff:
    """`container` ended with `exit_code` and `message` as often as `restarts` says and waits for its next start."""

    container: str | None = None
    exit_code: int = 1
    message: str = ""
    restarts: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKilled:
    """`container` was killed for its memory as often as `restarts` says and waits for its next start."""

    container: str | None = None
    restarts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverReady:
    """All containers run; `container` (all if None) does not pass its readiness probe."""

    container: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InitFails:
    """Init container `container` ended with `exit_code` and `message`; with `restarts` it waits for its next start."""

    container: str
    exit_code: int = 1
    message: str = ""
    restarts: int = 0


Script = Runs | Unschedulable | ImagePullBackOff | CrashLoopBackOff | OomKilled | NeverReady | InitFails


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is shown of the container that does not run."""

    state: Json
    last_state: Json
    restarts: int


def terminated(reason: str, exit_code: int, message: str, at: str) -> Json:
    """A terminated state; an empty message is left out, as the kubelet does."""
    ended: Json = {"exitCode": exit_code, "reason": reason, "startedAt": at, "finishedAt": at}
    if message:
        ended["message"] = message
    return {"terminated": ended}


def trouble_of(script: Script, name: str, image: str, pod: str, at: str) -> Trouble | None:
    """The trouble that `script` means for its container, which is `name`; None if that runs. `at`: when the pod started."""
    match script:
        case ImagePullBackOff(message=message):
            waiting = {"reason": "ImagePullBackOff", "message": message or f'Back-off pulling image "{image}"'}
            return Trouble({"waiting": waiting}, {}, 0)
        case CrashLoopBackOff(exit_code=code, message=message, restarts=restarts):
            ended = terminated("Error" if code else "Completed", code, message, at)
            return Trouble(_backing_off(name, pod), ended, restarts)
        case OomKilled(restarts=restarts):
            return Trouble(_backing_off(name, pod), terminated("OOMKilled", 137, "", at), restarts)
        case InitFails(exit_code=code, message=message, restarts=restarts):
            ended = terminated("Error", code, message, at)
            return Trouble(_backing_off(name, pod), ended, restarts) if restarts else Trouble(ended, {}, 0)
        case Runs() | Unschedulable() | NeverReady():
            return None


def _backing_off(container: str, pod: str) -> Json:
    message = f"back-off 5m0s restarting failed container={container} pod={pod}"
    return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
