"""Watching: what is told again, and what ends it. No cluster, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO

import pytest
from observed_world import NOW, deployment_object
from rich.console import Console

from pdd_cli.errors import ClusterReadError, NotInClusterError
from pdd_cli.status.command import changes
from pdd_cli.status.report import Report, report_of

REPORT = report_of(deployment_object(status={"conditions": [{"type": "Ready", "status": "False"}]}), [], NOW)
READY = report_of(
    deployment_object(status={"observedGeneration": 3, "conditions": [{"type": "Ready", "status": "True"}]}), [], NOW
)
OLDER = replace(REPORT, conditions=tuple(replace(line, since_seconds=99) for line in REPORT.conditions))


class EndError(Exception):
    """Nothing more to look at."""


def looking(*answers: Report | Exception) -> Callable[[], Report]:
    rest: Iterator[Report | Exception] = iter((*answers, EndError()))

    def look() -> Report:
        answer = next(rest)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


def told(*answers: Report | Exception) -> tuple[list[Report], str, type[Exception], list[float]]:
    """Reports, what was said of errors, how it ended, and the pauses."""
    errors, shown, pauses = Console(file=StringIO(), width=200), [], []
    with pytest.raises(Exception) as ended:  # its type is looked at below
        for report in changes(looking(*answers), errors, pauses.append):
            shown.append(report)
    return shown, errors.file.getvalue(), ended.type, pauses  # type: ignore[attr-defined]  # it is the StringIO


def test_only_what_changed_is_told() -> None:
    shown, said, ended, pauses = told(REPORT, OLDER, REPORT, READY, READY, REPORT)
    assert shown == [REPORT, READY, REPORT]
    assert (said, ended) == ("", EndError)
    assert len(pauses) == 6


def test_a_cluster_that_does_not_answer_for_a_while() -> None:
    silent = ClusterReadError("no answer [0].")
    shown, said, ended, _ = told(REPORT, silent, silent, REPORT, silent, READY)
    assert shown == [REPORT, READY]
    assert said.count("no answer [0]. Trying again.") == 2
    assert ended is EndError


def test_a_cluster_that_never_answered_ends_it() -> None:
    assert told(ClusterReadError("no answer"))[2] is ClusterReadError


def test_an_object_that_is_deleted_ends_it() -> None:
    assert told(REPORT, NotInClusterError("gone"))[2] is NotInClusterError
