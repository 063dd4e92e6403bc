"""Runs something that reads, with a spinner, and never longer than a deadline, whatever the network or a credential plugin does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from rich.console import Console

from pdd_cli.errors import ClusterReadError

_PATIENCE_SECONDS = 1.0
T = TypeVar("T")


class _Outcome(Generic[T]):
    def __init__(self, value: T | None, error: BaseException | None) -> None:
        self._value, self._error = value, error

    def get(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set unless there was an error


def read_within(console: Console, title: str, timeout_seconds: float, read: Callable[[], T]) -> T:
    """What ``read`` returns or raises; ClusterReadError after ``timeout_seconds``. Says ``title`` when it takes longer than a moment.

    ``read`` runs in a thread that does not keep the process alive: a call that hangs is left behind.
    """
    outcomes: queue.SimpleQueue[_Outcome[T]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcomes.put(_Outcome(read(), None))
        except BaseException as error:  # noqa: BLE001  # handed over: it is raised where it is waited for
            outcomes.put(_Outcome(None, error))

    threading.Thread(target=run, name="read", daemon=True).start()
    patience = min(_PATIENCE_SECONDS, timeout_seconds)
    try:
        return outcomes.get(timeout=patience).get()
    except queue.Empty:
        pass
    try:
        with _spinner(console, title):
            return outcomes.get(timeout=timeout_seconds - patience).get()
    except queue.Empty:
        raise ClusterReadError(
            f"{title}: no answer within {timeout_seconds:g} s. Check --context, network and VPN (`kubectl version` must "
            "answer too), or give more --timeout."
        ) from None


def _spinner(console: Console, title: str) -> AbstractContextManager[object]:
    if console.is_terminal:
        return console.status(f"{title} ...")
    console.print(f"{title} ...", highlight=False, soft_wrap=True)
    return nullcontext()
