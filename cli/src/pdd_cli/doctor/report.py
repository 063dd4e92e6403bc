"""Findings for a person's eyes, or for a program. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from pdd_cli.doctor.finding import Finding, Level
from pdd_operator.observe.printable import printable_json

_MARKS: Final = {Level.PASS: ("✓", "green"), Level.WARN: ("!", "yellow"), Level.FAIL: ("✗", "bold red")}


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing stands in the way."""
    return all(finding.level is not Level.FAIL for finding in findings)


def findings_json(findings: Sequence[Finding]) -> str:
    checks = [
        {"level": item.level.value, "subject": item.subject, "seen": item.seen, "todo": item.todo} for item in findings
    ]
    return printable_json(json.dumps({"ok": is_well(findings), "checks": checks}, indent=2, ensure_ascii=False))


def findings_table(findings: Sequence[Finding]) -> Group:
    parts: list[RenderableType] = []
    for finding in findings:
        mark, style = _MARKS[finding.level]
        parts.append(Text.assemble((f"{mark} ", style), (finding.subject, "bold"), f": {finding.seen}"))
        if finding.todo:
            parts.append(Padding(Text(f"→ {finding.todo}", style="cyan"), (0, 0, 0, 4), expand=False))
    counts = Counter(finding.level for finding in findings)
    told = ", ".join(f"{counts[level]} {_MARKS[level][0]}" for level in Level if counts[level])
    return Group(*parts, Text(), Text(told))
