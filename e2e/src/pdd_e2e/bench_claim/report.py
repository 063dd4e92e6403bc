"""What the benchmark says: pure arithmetic over measured times, and the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class ClaimSample:
    """One claim, as the reader's receipt has it. Milliseconds."""

    outcome: str
    answer_ms: float | None
    read_ms: float | None
    read_tokens: int


@dataclass(frozen=True)
class Phase:
    """Decode at full batch for a while: tokens of all streams together, and how many requests the other engine served meanwhile."""

    being_read: bool
    seconds: float
    tokens: int
    requests: int

    @property
    def seconds_per_token(self) -> float:
        """Time per output token of one stream is this times the streams; the ratio of two phases is the same."""
        return self.seconds / self.tokens


@dataclass(frozen=True)
class Result:
    """Everything measured in one run."""

    prompt_tokens: int
    streams: int
    idle: Sequence[ClaimSample]
    busy: Sequence[ClaimSample]
    phases: Sequence[Phase]

    def cost_of_being_read(self) -> list[float]:
        """For each pair of neighbouring phases, time per output token being read / not being read."""
        pairs = zip(self.phases[::2], self.phases[1::2], strict=True)
        return [read.seconds_per_token / quiet.seconds_per_token for quiet, read in pairs]

    def as_dict(self) -> dict[str, Any]:
        """For a machine."""
        return {
            **asdict(self),
            "answer_ms": {"idle": quantiles(answers(self.idle)), "full_batch": quantiles(answers(self.busy))},
            "cost_of_being_read": self.cost_of_being_read(),
        }


def answers(samples: Sequence[ClaimSample]) -> list[float]:
    """The answer times of those that were answered."""
    return [sample.answer_ms for sample in samples if sample.answer_ms is not None]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, ninth decile and maximum; empty where nothing was measured."""
    if not values:
        return {}
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p90": ordered[int(0.9 * (len(ordered) - 1))], "max": ordered[-1]}


def table(result: Result) -> Table:
    """For a person."""
    shown = Table(
        title=f"Claims of {result.prompt_tokens} tokens; full batch: {result.streams} streams", title_justify="left"
    )
    for column in ("owner", "claims", "read", "answer p50, ms", "p90", "max", "read p50, ms"):
        shown.add_column(column, justify="left" if column == "owner" else "right")
    for name, samples in (("idle", result.idle), ("at full batch", result.busy)):
        answer, read = quantiles(answers(samples)), quantiles([s.read_ms for s in samples if s.read_ms is not None])
        shown.add_row(
            name,
            str(len(samples)),
            str(sum(sample.outcome == "Read" for sample in samples)),
            *(f"{answer[key]:.1f}" if answer else "-" for key in ("p50", "p90", "max")),
            f"{read['p50']:.1f}" if read else "-",
        )
    return shown


def verdict(result: Result) -> str:
    """One line on what being read costs."""
    ratios = result.cost_of_being_read()
    spread = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    return f"Time per output token of the owner, being read / not being read: median {statistics.median(ratios):.3f} ({spread})"
