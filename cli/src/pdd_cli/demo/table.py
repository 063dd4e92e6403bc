"""The demo's terminal tables, with rich. Pure: data in, renderable out."""

from rich import box
from rich.table import Table
from rich.text import Text

from pdd_cli.demo.results import Cache, Check, Pair, TurnResult

_TITLES = {
    Cache.EMPTIED: "P's prefix cache emptied before every turn: a P that lost the conversation, or never had it",
    Cache.KEPT: "P's prefix cache left alone: the history is in P's own cache",
}


def pair_table(pair: Pair) -> Table:
    """One line per turn. `comp.` is how many prompt tokens the prefill engine computed."""
    several = len({turn.receipt.prefill for turn in pair.on.turns}) > 1
    title = "Turns land on different P in turn" if several else _TITLES[pair.cache]
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading, right in _columns(several):
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for off, on in zip(pair.off.turns, pair.on.turns, strict=True):
        table.add_row(*_cells(off, on, several))
    return table


def _columns(several: bool) -> list[tuple[str, bool]]:
    """(heading, right-justified). Narrow: all of it must fit into 80 columns."""
    columns = [("turn", True), ("prefill\nengine" if several else "role", False)]
    columns += [("prompt\ntokens", True), ("read\ntokens", True)]
    columns += [] if several else [("read\nMB", True)]
    columns += [("read\nfrom", False)]
    columns += [("comp.\noff", True), ("comp.\non", True), ("TTFT\noff", True), ("TTFT\non", True)]
    return [*columns, ("TTFT\nratio", True)]


def _cells(off: TurnResult, on: TurnResult, several: bool) -> list[str | Text]:
    receipt = on.receipt
    read = receipt.read_tokens > 0
    return [
        str(on.number),
        receipt.prefill if several else "tool" if on.is_tool_result else "user",
        f"{on.prompt_tokens:,}",
        f"{receipt.read_tokens:,}" if read else "-",
        *([] if several else [f"{receipt.read_bytes / 1e6:.0f}" if read else "-"]),
        (receipt.owner or "?") if read else f"({receipt.outcome})",
        f"{off.receipt.computed_tokens:,}",
        f"{receipt.computed_tokens:,}",
        f"{off.ttft_seconds:.2f}",
        f"{on.ttft_seconds:.2f}",
        Text(f"{off.ttft_seconds / on.ttft_seconds:.1f}", style="bold" if on.number > 1 else ""),
    ]


def check_lines(checks: list[Check]) -> list[Text]:
    """One line per promise."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        mark, style = ("✓", "green") if check.held else ("✗", "bold red")
        lines.append(Text.assemble((f"{mark} ", style), (f"{check.name:<{width}}  ", "bold"), check.detail))
    return lines
