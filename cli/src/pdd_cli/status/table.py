"""A report for a person's eyes, or for a program. Pure, but for the console that it is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from pydantic.alias_generators import to_camel
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pdd_cli.status.report import ConditionLine, Mark, PodLine, Report
from pdd_operator.observe.printable import printable_json
from pdd_operator.observe.reasons import ConditionType

MARKS: Final = {Mark.PASS: ("✓", "green"), Mark.WARN: ("!", "yellow"), Mark.FAIL: ("✗", "bold red")}
_TOLD_EVEN_WHEN_WELL: Final = frozenset((ConditionType.TRANSPORT_READY, ConditionType.REUSE_ACTIVE))
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def report_json(report: Report, indent: int | None = 2) -> str:
    """Names in camelCase; ``ready`` is what the exit code says."""
    data = _camel(asdict(report)) | {"ready": report.ready, "rollingOut": report.rolling_out}
    return printable_json(json.dumps(data, indent=indent, ensure_ascii=False))


def print_report(console: Console, report: Report, for_kubectl: str = "") -> None:
    """``for_kubectl``: options that a printed kubectl line needs, with a space in front. Lines to be copied are not wrapped by us."""
    console.print(report_table(report))
    for line in curl_lines(report, for_kubectl) if report.endpoint else ():
        console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)


def report_table(report: Report) -> Group:
    """All but the lines to be copied."""
    parts: list[RenderableType] = [_headline(report), Text()]
    parts += _conditions(report)
    parts += [Text(), *_roles(report)]
    if report.groups:
        parts += [Text(), *_groups(report)]
    parts += [Text(), *_endpoint(report)]
    return Group(*parts)


def age(seconds: int | None) -> str:
    """In the largest unit that it fills: 3d, 4m."""
    if seconds is None:
        return ""
    size, unit = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return f"{seconds // size}{unit}"


def _headline(report: Report) -> Text:
    mark, style = MARKS[Mark.PASS if report.ready else Mark.FAIL]
    state = "ready" if report.ready else "not ready"
    return Text.assemble(
        (f"{mark} {report.namespace}/{report.name} is {state}", style),
        f"  model {report.model}" + (f"  revision {report.revision}" if report.revision else ""),
    )


def _conditions(report: Report) -> Iterator[RenderableType]:
    if not report.is_current:
        seen = (
            f"has looked at generation {report.observed_generation} of"
            if report.observed_generation
            else "has not looked at"
        )
        yield _indented(
            f"The operator {seen} this object, which is at generation {report.generation}: what follows is not about its spec as it is now."
        )
        yield _indented(
            "→ Wait a moment. If it stays so: is the operator running, and does it watch this namespace? `pdd doctor`",
            "cyan",
        )
    own = {line.message for line in report.conditions if line.type != ConditionType.READY}
    told: set[str] = set()
    for line in report.conditions:
        yield _condition_row(line)
        if line.type == ConditionType.READY and line.message in own:
            continue  # it repeats the condition that it follows from, which comes below
        if line.message and (line.mark is not Mark.PASS or line.type in _TOLD_EVEN_WHEN_WELL):
            yield _indented(line.message)
        if line.remedy and line.remedy not in told:
            told.add(line.remedy)
            yield _indented(f"→ {line.remedy}", "cyan")


def _condition_row(line: ConditionLine) -> Text:
    mark, style = MARKS[line.mark]
    return Text.assemble(
        (f"{mark} ", style),
        (f"{line.type:<17} ", "bold"),
        f"{line.status:<8} {line.reason:<24} {age(line.since_seconds)}",
    )


def _roles(report: Report) -> Iterator[RenderableType]:
    for role in report.roles:
        style = "green" if role.ready >= role.wanted else "yellow"
        yield Text.assemble((f"{role.role} ", "bold"), (f"{role.ready} of {role.wanted} ready", style))
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="fold")
        table.add_column(no_wrap=True)
        for pod in role.pods:
            table.add_row(*_pod_row(pod))
        yield Padding(table, (0, 0, 0, 2), expand=False)
        for pod in role.pods:
            if pod.message and not pod.ready:
                yield Padding(Text(pod.message), (0, 0, 0, 4), expand=False)


def _pod_row(pod: PodLine) -> tuple[Text, Text, Text]:
    mark, style = MARKS[pod.mark]
    return Text(mark, style=style), Text(pod.name), Text(pod.reason)


def _groups(report: Report) -> Iterator[Text]:
    state = (
        "Rolling out: older revisions go when the current one is available." if report.rolling_out else "No rollout."
    )
    yield Text.assemble(("revisions ", "bold"), state)
    for group in report.groups:
        what = "current" if group.current else "older"
        served = "" if group.was_available else ", never was available yet"
        yield Text(
            f"  {group.revision}  {what}{served}: {group.prefill_ready} prefill and {group.decode_ready} decode ready"
        )


def _endpoint(report: Report) -> Iterator[Text]:
    yield Text.assemble(("endpoint ", "bold"), report.endpoint or "none yet")
    if report.endpoint and report.needs_key:
        yield Text("  It wants an API key: PDD_API_KEY in the line below.", style="dim")


def curl_lines(report: Report, for_kubectl: str) -> tuple[str, ...]:
    """From this machine: a port-forward, and a request through it."""
    body = json.dumps({"model": report.model, "messages": [{"role": "user", "content": "Hello"}]}, ensure_ascii=False)
    key = ' -H "Authorization: Bearer $PDD_API_KEY"' if report.needs_key else ""
    quoted = body.replace("'", "'\\''")
    return (
        f"kubectl{for_kubectl} --namespace {report.namespace} port-forward service/{report.service} 8000:{report.port} &",
        f"curl http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{quoted}'",
    )


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, 4), expand=False)


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {to_camel(key): _camel(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_camel(item) for item in value]
    return value
