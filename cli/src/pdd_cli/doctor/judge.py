"""All checks, in the order of the report. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdd_cli.cluster.installing import OPERATOR_NAMESPACE
from pdd_cli.doctor.cluster_checks import (
    check_definition,
    check_kinds,
    check_operator,
    check_policies,
    check_profile,
    check_version,
)
from pdd_cli.doctor.finding import Finding
from pdd_cli.doctor.node_checks import Target, check_nodes, targets_of
from pdd_cli.doctor.rights import check_rights
from pdd_cli.doctor.snapshot import Snapshot
from pdd_operator.api.v1alpha1 import Backend


def judge(snapshot: Snapshot, targets: Sequence[Target] = ()) -> tuple[Finding, ...]:
    """``targets``: what is to be run; none: what the nodes are for."""
    targets = targets or targets_of(snapshot)
    backend = Backend.EFA if any(target.backend is Backend.EFA for target in targets) else Backend.SOCKET
    return tuple(
        dict.fromkeys(
            (
                *check_version(snapshot),
                *check_definition(snapshot),
                *check_operator(snapshot),
                *check_rights(snapshot, OPERATOR_NAMESPACE),
                *(finding for target in targets for finding in check_nodes(snapshot, target)),
                *check_profile(snapshot, backend),
                *check_policies(snapshot),
                *check_kinds(snapshot),
            )
        )
    )
