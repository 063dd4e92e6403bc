"""What the claim channel's thread needs of the engine that runs in this process, and no connector interface offers.

Installed by the plugin in every vLLM process, used only where our connector is constructed. Three things: a lock that the engine thread holds while it
schedules or takes in outputs (the block pool is not thread-safe); a way to wake an engine that sleeps on its input queue; and whether it is
stopping or asleep. No file of vLLM is edited: methods of its classes are wrapped.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from pdd_connector.claims.messages import RefuseReason

ENGINE_LOCK = threading.RLock()
"""Held by the engine thread in the methods of LOCKED, and by the channel's thread while it uses the block pool."""

LOCKED = ("schedule", "update_from_output", "add_request", "finish_requests", "reset_prefix_cache")
"""Methods of vLLM's Scheduler that use the block pool or the connector's state."""

_MARK = "_pdd_wrapped"
_engine: Any = None


def install() -> None:
    """Wrap vLLM's engine loop and scheduler, once."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import DPEngineCoreProc, EngineCoreProc

    for name in LOCKED:
        _wrap(Scheduler, name, _under_lock)
    for loop in (EngineCoreProc, DPEngineCoreProc):
        _wrap(loop, "run_busy_loop", _publishing)


def wake_engine() -> None:
    """Make an engine that waits for requests look for other work."""
    if _engine is not None:
        from vllm.v1.engine import EngineCoreRequestType

        _engine.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))


def engine_unavailable() -> RefuseReason | None:
    """Why the engine's KV cache must not be lent now: it is shutting down, or paused (asleep, or about to be)."""
    if _engine is None:
        return RefuseReason.STOPPING
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.engine.core import EngineShutdownState

    if _engine.shutdown_state != EngineShutdownState.RUNNING:
        return RefuseReason.STOPPING
    if _engine.scheduler.pause_state != PauseState.UNPAUSED:
        return RefuseReason.ASLEEP
    return None


def _wrap(owner: type, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    method = owner.__dict__.get(name)
    if method is None or getattr(method, _MARK, False):
        return
    wrapped = functools.wraps(method)(wrapper(method))
    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)


def _under_lock(method: Callable[..., Any]) -> Callable[..., Any]:
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with ENGINE_LOCK:
            return method(self, *args, **kwargs)

    return locked


def _publishing(method: Callable[..., Any]) -> Callable[..., Any]:
    def publishing(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _engine
        _engine = self
        return method(self, *args, **kwargs)

    return publishing
