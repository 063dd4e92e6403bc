"""The demo's picture: time to the first token with reuse off and on, and what the prefill leg spent its time on. Writes one PNG."""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter

from pdd_cli.demo.checks import speedup
from pdd_cli.demo.results import Cache, LegResult, Pair

OFF = "#b4532a"
ON = "#1f6f8b"
READ = "#e0a526"
OWN = "#8a8f98"
_INK = "#22262b"
_GRID = "#e6e8eb"
_SUBTITLES = {
    Cache.EMPTIED: "P's prefix cache was emptied before every turn: a P that lost the conversation, or never had it",
    Cache.KEPT: "P's prefix cache was left alone",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """Seconds of one prefill leg."""

    compute: float
    transfer: float


def split_prefill(leg: LegResult) -> list[Bar]:
    """What each turn's prefill leg spent on reading and on all the rest. Reading never takes longer than the leg."""
    bars = []
    for turn in leg.turns:
        transfer = min(turn.read_seconds, turn.receipt.seconds)
        bars.append(Bar(turn.receipt.seconds - transfer, transfer))
    return bars


def draw(pair: Pair, own: LegResult | None, path: Path) -> None:
    """Draw `pair` and, as a thin line, the same turns with the history in P's own cache. 1600 x 1536 pixels."""
    layout = ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.12, rect=(0, 0, 1, 0.92))
    figure = Figure(figsize=(10, 9.6), dpi=160, facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    lines, bars = figure.subplots(2, 1, height_ratios=(1.25, 1))
    _draw_lines(lines, pair, own)
    _draw_bars(bars, pair)
    figure.text(0.02, 0.96, "Follow-up turns that reuse what decode holds", fontsize=17, fontweight="bold", color=_INK)
    figure.text(0.02, 0.932, _SUBTITLES[pair.cache], fontsize=11.5, color=_INK)
    figure.savefig(path, metadata={"Software": "pdd demo"})


def _draw_lines(axes: Axes, pair: Pair, own: LegResult | None) -> None:
    tokens = [turn.prompt_tokens for turn in pair.on.turns]
    off = [turn.ttft_seconds for turn in pair.off.turns]
    on = [turn.ttft_seconds for turn in pair.on.turns]
    axes.plot(tokens, off, color=OFF, marker="o", linewidth=2.4, label="reuse off")
    axes.plot(tokens, on, color=ON, marker="o", linewidth=2.4, label="reuse on")
    if own is not None:
        times = [turn.ttft_seconds for turn in own.turns]
        axes.plot(tokens, times, color=OWN, linestyle=(0, (4, 3)), linewidth=1.5, label="history in P's own cache")
    axes.annotate(
        "",
        xy=(tokens[-1], on[-1]),
        xytext=(tokens[-1], off[-1]),
        arrowprops={"arrowstyle": "<->", "color": _INK, "lw": 1.2},
    )
    axes.annotate(
        f" {speedup(pair):.1f} times\n faster", (tokens[-1], (on[-1] + off[-1]) / 2), xytext=(8, 0), textcoords="offset points",
        va="center", fontsize=13, fontweight="bold", color=_INK,
    )  # fmt: skip
    axes.set_xlim(0, tokens[-1] * 1.16)
    axes.set_ylim(0, max(off + on) * 1.1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.legend(loc="upper left", frameon=False, fontsize=11)
    _finish(axes, "Time to the first token", "prompt tokens of the turn", "seconds")


def _draw_bars(axes: Axes, pair: Pair) -> None:
    width = 0.38
    positions = range(len(pair.on.turns))
    highest = 0.0
    for leg, shift, color, name in ((pair.off, -width / 2, OFF, "off"), (pair.on, width / 2, ON, "on")):
        bars = split_prefill(leg)
        places = [position + shift for position in positions]
        axes.bar(places, [bar.compute for bar in bars], width * 0.94, color=color, label=f"computing, reuse {name}")
        if leg.reuse:
            axes.bar(
                places, [bar.transfer for bar in bars], width * 0.94, bottom=[bar.compute for bar in bars], color=READ,
                label="reading from decode",
            )  # fmt: skip
            for place, bar, turn in zip(places, bars, leg.turns, strict=True):
                if turn.receipt.read_bytes:
                    axes.annotate(
                        f"{turn.receipt.read_bytes / 1e6:.0f} MB", (place, bar.compute + bar.transfer), xytext=(0, 3),
                        textcoords="offset points", ha="center", fontsize=8.5, color=_INK,
                    )  # fmt: skip
        highest = max([highest, *(bar.compute + bar.transfer for bar in bars)])
    axes.set_xticks(list(positions), [_tick(turn.number, turn.prompt_tokens) for turn in pair.on.turns])
    axes.set_ylim(0, highest * 1.12)
    axes.legend(loc="upper left", frameon=False, fontsize=11)
    _finish(axes, "What the prefill engine was busy with", "turn (prompt tokens)", "seconds")


def _tick(number: int, tokens: int) -> str:
    return f"{number}\n({tokens:,})"


def _finish(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=_INK)
    axes.set_xlabel(across, color=_INK)
    axes.set_ylabel(up, color=_INK)
    axes.grid(axis="y", color=_GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=_INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(OWN)
