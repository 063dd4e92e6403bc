"""Progress on the person's terminal, with rich: a spinner and the time for each piece of work, or plain lines where there is no terminal."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_NOTE_WIDTH = 60
_HEARTBEAT_SECONDS = 15.0


class TerminalProgress:
    """Implements `local.progress.Progress`. Several tasks may go on at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: RichProgress | None = None
        self._running = 0

    @contextmanager
    def task(self, title: str) -> Iterator["_Task"]:
        started = time.monotonic()
        task = self._begin(title, started)
        try:
            yield task
        except asyncio.CancelledError:
            self._end(task, f"[yellow]-[/] {title}: stopped")
            raise
        except BaseException:
            self._end(task, f"[red]✗[/] {title}: failed after {time.monotonic() - started:.0f} s")
            raise
        else:
            self._end(task, f"[green]✓[/] {title} [dim]({time.monotonic() - started:.1f} s)[/]")

    def _begin(self, title: str, started: float) -> "_Task":
        if not self._console.is_terminal:
            self._console.print(f"  {title} ...")
            return _Task(self._console, None, None, title, started)
        if self._live is None:
            self._live = RichProgress(
                SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TextColumn("[dim]{task.fields[note]}"),
                console=self._console, transient=True,
            )  # fmt: skip
            self._live.start()
        self._running += 1
        return _Task(self._console, self._live, self._live.add_task(title, total=None, note=""), title, started)

    def _end(self, task: "_Task", line: str) -> None:
        if self._live is not None and task.identity is not None:
            self._live.remove_task(task.identity)
            self._running -= 1
            if not self._running:
                self._live.stop()
                self._live = None
        self._console.print(line, highlight=False)


class _Task:
    def __init__(
        self, console: Console, live: RichProgress | None, identity: TaskID | None, title: str, started: float
    ) -> None:
        self.identity = identity
        self._console = console
        self._live = live
        self._title = title
        self._started = started
        self._said = started

    def note(self, text: str) -> None:
        short = text if len(text) <= _NOTE_WIDTH else text[: _NOTE_WIDTH - 1] + "…"
        if self._live is not None and self.identity is not None:
            self._live.update(self.identity, note=short.replace("[", "\\["))
        elif time.monotonic() - self._said > _HEARTBEAT_SECONDS:
            self._said = time.monotonic()
            self._console.print(
                f"  {self._title}: {self._said - self._started:.0f} s, {short}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
