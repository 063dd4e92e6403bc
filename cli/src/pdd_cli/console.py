"""The console that every command prints to: what strangers wrote is shown, and never obeyed by the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pdd_operator.observe.printable import printable


class SafeConsole(Console):
    """Rich's, with control characters in text escaped. Its own orders (colours, the cursor) are no text, and stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)
