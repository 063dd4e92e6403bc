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
    """One line per turn."""
    several = len({turn.receipt.prefill for turn in pair.on.turns}) > 1
    title = "Turns land on different P in turn" if several else _TITLES[pair.cache]
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("turn", justify="right")
    table.add_column("brings")
    if several:
        table.add_column("P")
    for heading in ("prompt\ntokens", "read\ntokens", "read\nMB"):
        table.add_column(heading, justify="right")
    table.add_column("from")
    for heading in ("computed off\ntokens", "computed on\ntokens", "TTFT off\ns", "TTFT on\ns", "off / on"):
        table.add_column(heading, justify="right")
    for off, on in zip(pair.off.turns, pair.on.turns, strict=True):
        table.add_row(*_cells(off, on, several))
    return table


def _cells(off: TurnResult, on: TurnResult, several: bool) -> list[str | Text]:
    receipt = on.receipt
    brings = "tool result" if on.is_tool_result else "question"
    read = receipt.read_tokens > 0
    source = receipt.owner or "?" if read else f"- ({receipt.outcome})"
    return [
        str(on.number),
        brings,
        *([receipt.prefill] if several else []),
        f"{on.prompt_tokens:,}",
        f"{receipt.read_tokens:,}" if read else "0",
        f"{receipt.read_bytes / 1e6:.1f}" if read else "0",
        source,
        f"{off.receipt.computed_tokens:,}",
        f"{receipt.computed_tokens:,}",
        f"{off.ttft_seconds:.2f}",
        f"{on.ttft_seconds:.2f}",
        Text(f"{off.ttft_seconds / on.ttft_seconds:.1f} x", style="bold" if on.number > 1 else ""),
    ]


def check_lines(checks: list[Check]) -> list[Text]:
    """One line per promise."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        mark, style = ("✓", "green") if check.held else ("✗", "bold red")
        lines.append(Text.assemble((f"{mark} ", style), (f"{check.name:<{width}}  ", "bold"), check.detail))
    return lines
