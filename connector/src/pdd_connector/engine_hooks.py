"""What the claim channel's thread needs of the engine that runs in this process, and no connector interface offers.

Installed where our connector is constructed, which may be in the midst of the scheduler's own construction. Three things: a lock that the engine thread holds while it
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

LOCKED = ("schedule", "update_from_output", "add_request", "finish_requests", "reset_prefix_cache", "set_pause_state")
"""Methods of vLLM's Scheduler that use the block pool or the connector's state."""

_MARK = "_pdd_wrapped"
_engine: Any = None


def install() -> None:
    """Wrap vLLM's engine loop and scheduler, once."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import DPEngineCoreProc, EngineCoreProc

    _wrap(Scheduler, "schedule", lambda method: _under_lock(_deferring_frees(method)))
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


def _deferring_frees(method: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM keeps a freed block from reuse while a step in flight may still write it, but only on a `kv_consumer`: elsewhere it expects no reads.
    With this connector every engine reads, so such a step would write into a block that was just read. Said before the first step and not when
    the scheduler is made: where workers have processes of their own, it is the scheduler's constructor that first imports us."""

    def deferring(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.connector, "reads_into_freed_blocks", False) and self.vllm_config.max_concurrent_batches > 1:
            self.defer_block_free = True
        return method(self, *args, **kwargs)

    return deferring


def weight_version() -> str:
    """Version of the weights that this engine computes with now; changes where they are updated at run time."""
    return str(_engine.get_weight_version()) if _engine is not None else ""


def _publishing(method: Callable[..., Any]) -> Callable[..., Any]:
    def publishing(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _engine
        _engine = self
        return method(self, *args, **kwargs)

    return publishing
