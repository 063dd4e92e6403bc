"""The demo's result for machines: JSON with everything that was measured, the promises, and the setting. Pure but for writing the file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from pdd_cli.demo.checks import own_cache_ratios, speedup
from pdd_cli.demo.results import Cache, Check, LegResult, Pair, TurnResult

FORMAT = 1


def report(pairs: list[Pair], checks: list[Check], setting: dict[str, Any]) -> dict[str, Any]:
    """Plain JSON types. `setting` says how the run was made (model, sizes, calibration)."""
    return {
        "format": FORMAT,
        "setting": setting,
        "summary": summary(pairs),
        "checks": [dataclasses.asdict(check) for check in checks],
        "legs": [_leg(leg) for pair in pairs for leg in (pair.off, pair.on)],
    }


def summary(pairs: list[Pair]) -> dict[str, float | int]:
    """The figures that are quoted, those that these pairs have."""
    by_cache = {pair.cache: pair for pair in pairs}
    emptied, kept = by_cache.get(Cache.EMPTIED), by_cache.get(Cache.KEPT)
    figures: dict[str, float | int] = {}
    if emptied is not None:
        longest = emptied.on.longest
        figures |= {
            "longest_prompt_tokens": longest.prompt_tokens,
            "ttft_off_seconds": emptied.off.longest.ttft_seconds,
            "ttft_on_seconds": longest.ttft_seconds,
            "speedup": speedup(emptied),
        }
    if kept is not None:
        figures |= {"computed_tokens_off": kept.off.computed_tokens, "computed_tokens_on": kept.on.computed_tokens}
    if emptied is not None and kept is not None:
        figures["on_over_own_cache"] = own_cache_ratios(emptied, kept)[-1]
    return figures


def summary_line(pairs: list[Pair]) -> str:
    """One sentence for the person."""
    figures = summary(pairs)
    parts = []
    if "speedup" in figures:
        parts.append(
            f"At {figures['longest_prompt_tokens']:,} prompt tokens the first token came after "
            f"{figures['ttft_on_seconds']:.1f} s instead of {figures['ttft_off_seconds']:.1f} s: {figures['speedup']:.1f} times faster"
        )
        if "on_over_own_cache" in figures:
            parts.append(f"{figures['on_over_own_cache']:.2f} times what P's own cache gives")
        return ", ".join(parts) + "."
    off, on = figures["computed_tokens_off"], figures["computed_tokens_on"]
    return f"The P engines computed {on:,} prompt tokens instead of {off:,}: {off / on:.2f} times fewer."


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _leg(leg: LegResult) -> dict[str, Any]:
    return {
        "reuse": leg.reuse,
        "prefill_cache": str(leg.cache),
        "computed_tokens": leg.computed_tokens,
        "read_bytes": leg.read_bytes,
        "turns": [_turn(turn) for turn in leg.turns],
    }


def _turn(turn: TurnResult) -> dict[str, Any]:
    return dataclasses.asdict(turn)
