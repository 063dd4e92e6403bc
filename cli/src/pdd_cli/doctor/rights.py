"""Which rights the doctor asks about, and what follows from the answers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pdd_cli.doctor.finding import Finding, failed, passed, warned
from pdd_cli.doctor.snapshot import Right, Snapshot, Unread
from pdd_operator.api.labels import GROUP, PLURAL

_RBAC: Final = "rbac.authorization.k8s.io"
EVERYTHING: Final = Right("*", "*", "*")
ESCALATE: Final = Right("escalate", _RBAC, "clusterroles")


def rights_to_install(operator_namespace: str) -> tuple[Right, ...]:
    """What Helm does with them: it creates the chart's objects, and keeps its release in a Secret."""
    in_cluster = (
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        (_RBAC, "clusterroles"),
        (_RBAC, "clusterrolebindings"),
    )
    in_namespace = (
        ("", "serviceaccounts"),
        ("", "secrets"),
        ("apps", "deployments"),
        ("policy", "poddisruptionbudgets"),
        (_RBAC, "roles"),
        (_RBAC, "rolebindings"),
    )
    return (
        *(Right("create", group, resource) for group, resource in in_cluster),
        *(Right("create", group, resource, operator_namespace) for group, resource in in_namespace),
    )


def rights_to_use(namespace: str) -> tuple[Right, ...]:
    """`kubectl apply`, `kubectl delete` and `pdd status` of PDDeployments."""
    verbs = ("create", "delete", "get", "list", "patch")
    return (*(Right(verb, GROUP, PLURAL, namespace) for verb in verbs), Right("list", "", "pods", namespace))


def rights_asked(namespace: str, operator_namespace: str) -> tuple[Right, ...]:
    return (*rights_to_install(operator_namespace), EVERYTHING, ESCALATE, *rights_to_use(namespace))


def check_rights(snapshot: Snapshot, operator_namespace: str) -> Iterator[Finding]:
    """To install only where nothing is installed."""
    rights = snapshot.rights
    if isinstance(rights, Unread):
        yield warned("your rights", f"could not be asked: {rights.why}", "Ask an administrator what you may do.")
        return
    if not snapshot.operators:
        yield _to_install(rights_to_install(operator_namespace), rights)
    lacking = [right for right in rights_to_use(snapshot.namespace) if not rights[right]]
    subject = "right to use PDDeployments"
    if lacking:
        yield failed(
            subject,
            f"you may not {_told(lacking)}",
            f"Let an administrator bind the ClusterRole `edit` to you in namespace {snapshot.namespace}: the chart adds PDDeployments to it.",
        )
    else:
        yield passed(subject, f"you may create, change, delete and see them in namespace {snapshot.namespace}")


def _to_install(wanted: tuple[Right, ...], rights: Mapping[Right, bool]) -> Finding:
    subject = "right to install the chart"
    lacking = [right for right in wanted if not rights[right]]
    if lacking:
        return failed(
            subject, f"you may not {_told(lacking)}", "Let a cluster administrator install the chart; you need not."
        )
    if not (rights[EVERYTHING] or rights[ESCALATE]):
        return warned(
            subject,
            "you may create everything, and Kubernetes lets nobody grant rights that he has not himself",
            "If Helm fails with `attempting to grant RBAC permissions not currently held`, let a cluster administrator install the chart.",
        )
    return passed(subject, "you may create everything that it has")


def _told(lacking: list[Right]) -> str:
    more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
    return f"{'; '.join(map(str, lacking[:3]))}{more}"
