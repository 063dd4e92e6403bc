"""`pdd render` from its options to its end: reads files, writes to standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pdd_cli.choices import OptionalKind, RenderOutput
from pdd_cli.console import SafeConsole
from pdd_cli.errors import InvalidObjectError, InvalidUsageError
from pdd_cli.names import check_namespace
from pdd_cli.render.documents import Document, Judged, judge, parse_documents
from pdd_cli.render.objects import Shown, show
from pdd_cli.render.settings import CHART_DEFAULTS, settings_of_chart, with_images
from pdd_cli.render.summary import summary
from pdd_cli.render.text import as_names, as_yaml
from pdd_operator.api.names import NamespacedName
from pdd_operator.api.parse import InvalidSpecError
from pdd_operator.observe.printable import printable
from pdd_operator.render.inputs import ClusterFacts, RenderSettings

STDIN = "-"
_SUMMARY_WIDTH = 140
"""Where there is no terminal that has one."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    files: Sequence[str]
    output: RenderOutput
    namespace: str | None
    kinds: Sequence[OptionalKind]
    chart_output: str | None
    images: Sequence[str]


def run(options: RenderOptions) -> None:
    """Raises InvalidUsageError and, when every problem is on standard error, InvalidObjectError."""
    check_namespace(options.namespace)
    stdin = sys.stdin
    settings = _settings(options, stdin)
    judged = _judge(options, stdin)
    facts = ClusterFacts(
        pod_monitors=OptionalKind.POD_MONITOR in options.kinds,
        grafana_dashboards=OptionalKind.GRAFANA_DASHBOARD in options.kinds,
    )
    problems = list(judged.problems)
    shown: list[Shown] = []
    for deployment in judged.deployments:
        try:
            shown.append(show(deployment, settings, facts))
        except InvalidSpecError as error:
            key = NamespacedName(deployment.metadata.namespace, deployment.metadata.name)
            problems += [f"{key}: {problem}" for problem in error.problems]
    if problems:
        for problem in problems:
            print(printable(problem).replace("\n", "\\n"), file=sys.stderr)
        noun = "problem" if len(problems) == 1 else "problems"
        raise InvalidObjectError(f"{len(problems)} {noun}, so nothing is shown.")
    if not shown:
        raise InvalidObjectError(f"{', '.join(options.files)} must hold a PDDeployment, and has no object.")
    _write(shown, options.output)


def _write(shown: Sequence[Shown], output: RenderOutput) -> None:
    if output is RenderOutput.YAML:
        sys.stdout.write(as_yaml(shown))
    elif output is RenderOutput.NAME:
        sys.stdout.write(as_names(shown))
    else:
        console = SafeConsole(width=None if sys.stdout.isatty() else _SUMMARY_WIDTH, highlight=False)
        for one in shown:
            console.print(summary(one))


def _judge(options: RenderOptions, stdin: TextIO) -> Judged:
    documents: list[Document] = []
    broken: list[str] = []
    for name in options.files:
        try:
            documents += parse_documents(_read(name, "-f", stdin), "standard input" if name == STDIN else name)
        except ValueError as error:
            broken.append(str(error))
    judged = judge(documents, options.namespace)
    return Judged(judged.deployments, (*broken, *judged.problems))


def _settings(options: RenderOptions, stdin: TextIO) -> RenderSettings:
    settings = CHART_DEFAULTS
    if options.chart_output is not None:
        if options.chart_output == STDIN and STDIN in options.files:
            raise InvalidUsageError("-f - and --chart-output - cannot both read standard input")
        try:
            settings = settings_of_chart(_read(options.chart_output, "--chart-output", stdin))
        except ValueError as error:
            raise InvalidUsageError(f"--chart-output {options.chart_output} {error}") from None
    try:
        return with_images(settings, options.images)
    except ValueError as error:
        raise InvalidUsageError(f"--image {error}") from None


def _read(name: str, option: str, stdin: TextIO) -> str:
    try:
        return stdin.read() if name == STDIN else Path(name).read_text(encoding="utf-8")
    except OSError as problem:
        raise InvalidUsageError(f"{option} {name} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        line = problem.object.count(b"\n", 0, problem.start) + 1
        raise InvalidUsageError(f"{option} {name} cannot be read: line {line} is not UTF-8") from None
