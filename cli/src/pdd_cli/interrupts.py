"""Runs a coroutine so that Ctrl-C, SIGTERM and a closed terminal cancel it once and let it clean up in peace."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedBySignalError(Exception):
    """The coroutine was cancelled by a signal and has ended. `exit_code` is the shell's convention: 128 + number."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.exit_code = 128 + number


def run_interruptible(main: Coroutine[Any, Any, None], on_signal: Callable[[], None]) -> None:
    """Run it to its end. The first signal calls `on_signal` and cancels it; later ones change nothing: it is ending already.

    Signals stay harmless when this has returned, until the process ends. Raises InterruptedBySignalError if a signal cut it short,
    and whatever it raises by itself.
    """
    received: list[signal.Signals] = []

    async def guarded() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(main)

        def interrupt() -> None:
            on_signal()
            task.cancel()

        def note(number: int, _: object) -> None:
            received.append(signal.Signals(number))
            if len(received) == 1:
                loop.call_soon_threadsafe(interrupt)

        # Not the loop's own handlers: those go with the loop, and a second Ctrl-C just then would end the process half-way.
        for number in _SIGNALS:
            signal.signal(number, note)
        await task

    try:
        asyncio.run(guarded())
    except asyncio.CancelledError:
        if not received:
            raise
        # Python puts its own handlers aside when it ends; ignored signals it leaves alone.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise InterruptedBySignalError(received[0]) from None
