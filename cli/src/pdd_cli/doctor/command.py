"""`pdd doctor` from its options to its end."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from pdd_cli.choices import ReportOutput, TransportChoice
from pdd_cli.cluster.connection import ClusterOptions
from pdd_cli.cluster.deadline import read_within
from pdd_cli.console import SafeConsole
from pdd_cli.doctor.judge import judge
from pdd_cli.doctor.node_checks import Target, default_backend
from pdd_cli.doctor.reader import read_snapshot
from pdd_cli.doctor.report import findings_json, findings_table, is_well
from pdd_cli.errors import InvalidUsageError
from pdd_cli.names import check_namespace
from pdd_operator.api.accelerators import CPU, INSTANCE_TYPES
from pdd_operator.api.v1alpha1 import Backend
from pdd_operator.render.catalog import TRANSPORTS

_PIPE_WIDTH: Final = 140


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    cluster: ClusterOptions
    accelerator: str | None
    transport: TransportChoice | None
    output: ReportOutput


def run(options: DoctorOptions) -> int:
    """The exit code: 0 where nothing stands in the way, else 1. Raises InvalidUsageError or ClusterReadError."""
    check_namespace(options.cluster.namespace)
    targets = targets_asked(options.accelerator, options.transport)
    snapshot = read_within(
        SafeConsole(stderr=True),
        "Examining the cluster",
        options.cluster.timeout_seconds,
        lambda: read_snapshot(options.cluster),
    )
    findings = judge(snapshot, targets)
    if options.output is ReportOutput.JSON:
        print(findings_json(findings))
    else:
        SafeConsole(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False).print(findings_table(findings))
    return 0 if is_well(findings) else 1


def targets_asked(accelerator: str | None, transport: TransportChoice | None) -> tuple[Target, ...]:
    """Empty: as the nodes are. Raises InvalidUsageError."""
    if accelerator is None:
        if transport is not None:
            raise InvalidUsageError("--transport must be given together with --accelerator")
        return ()
    row = CPU if accelerator == CPU.name else INSTANCE_TYPES.get(accelerator)
    if row is None:
        raise InvalidUsageError(
            f"--accelerator must be one of {', '.join((CPU.name, *INSTANCE_TYPES))}, not {accelerator!r}"
        )
    backend = default_backend(row) if transport is None else Backend(transport.value)
    if row.refused is None and (row.platform, backend) not in TRANSPORTS:
        raise InvalidUsageError(
            f"--transport {backend} must not be given with {row.name}: there is no documented way to move KV so"
        )
    return (Target(row, backend),)
