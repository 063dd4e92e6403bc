"""`pdd status` from its options to its end: once, or again and again until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from pdd_cli.choices import ReportOutput
from pdd_cli.cluster.connection import ClusterOptions
from pdd_cli.cluster.deadline import read_within
from pdd_cli.console import SafeConsole
from pdd_cli.errors import ClusterReadError
from pdd_cli.names import check_name, check_namespace
from pdd_cli.status.report import Report
from pdd_cli.status.source import StatusSource
from pdd_cli.status.table import print_report, report_json

NOT_READY: Final = 3
_WATCH_SECONDS: Final = 2.0
_PIPE_WIDTH: Final = 140
"""Where there is no terminal that has one."""


@dataclass(frozen=True, slots=True)
class StatusOptions:
    name: str
    cluster: ClusterOptions
    output: ReportOutput
    watch: bool


def run(options: StatusOptions) -> int:
    """The exit code: 0 ready, NOT_READY otherwise. Raises InvalidUsageError, ClusterReadError or NotInClusterError."""
    check_name(options.name)
    check_namespace(options.cluster.namespace)
    errors = SafeConsole(stderr=True)
    source = StatusSource(options.cluster, options.name)

    def look() -> Report:
        return read_within(errors, f"Reading {options.name}", options.cluster.timeout_seconds, source.read)

    if not options.watch:
        report = look()
        _write(report, options)
        return 0 if report.ready else NOT_READY
    code = NOT_READY
    for report in changes(look, errors, time.sleep):
        code = 0 if report.ready else NOT_READY
        if sys.stdout.isatty() and options.output is ReportOutput.TEXT:
            SafeConsole().clear()
        _write(report, options)
    return code


def changes(look: Callable[[], Report], errors: Console, pause: Callable[[float], None]) -> Iterator[Report]:
    """Every report that says something new, for ever. A cluster that does not answer is told of once and asked again; one
    that cannot be asked at the beginning, or an object that is gone, ends it."""
    shown, silent = "", False
    while True:
        try:
            report = look()
        except ClusterReadError as error:
            if not shown:
                raise
            if not silent:
                errors.print(f"{error} Trying again.", style="yellow", highlight=False, markup=False, soft_wrap=True)
            silent = True
        else:
            silent = False
            if (said := _said(report)) != shown:
                shown = said
                yield report
        pause(_WATCH_SECONDS)


def _said(report: Report) -> str:
    """What a report says, without how long it has been so."""
    return repr(
        (
            report.ready,
            report.roles,
            report.groups,
            [(c.type, c.status, c.reason, c.message) for c in report.conditions],
        )
    )


def _write(report: Report, options: StatusOptions) -> None:
    if options.output is ReportOutput.JSON:
        print(report_json(report, indent=None if options.watch else 2), flush=True)
        return
    console = SafeConsole(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    print_report(console, report, options.cluster.for_kubectl())
