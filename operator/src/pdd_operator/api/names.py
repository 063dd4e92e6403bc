"""Name of every object that belongs to a PDDeployment: a pure function of its name, role and revision group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pdd_operator.api.labels import ENGINE_COMPONENTS, Component

MAX_NAME_LENGTH: Final = 37
"""Longest name of a PDDeployment. Its longest StatefulSet, ``NAME-prefill-GROUP6``, has 15 more, and a StatefulSet's name
may have 52 characters: the label ``controller-revision-hash`` of its pods adds 11, and a label's value has at most 63."""
GROUP_LENGTH: Final = 6
_GROUP: Final = f"[0-9a-f]{{{GROUP_LENGTH}}}"


@dataclass(frozen=True, slots=True, order=True)
class NamespacedName:
    """Key of queues, locks and maps. Never a formatted string."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """One object within the namespace of its PDDeployment."""

    api_version: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def engine_set_name(deployment: str, component: Component, group: str) -> str:
    """StatefulSet of one role of one revision group."""
    return f"{deployment}-{component}-{group}"


def component_name(deployment: str, component: Component) -> str:
    """Service, PodDisruptionBudget, HorizontalPodAutoscaler of a role; everything of the router."""
    return f"{deployment}-{component}"


def engine_name(deployment: str) -> str:
    """What both engine roles share in every group: ServiceAccount, NetworkPolicy, PodMonitor."""
    return f"{deployment}-engine"


def engine_group_name(deployment: str, group: str) -> str:
    """ConfigMap with the start scripts of one revision group; owns the group's Secret."""
    return f"{deployment}-engine-{group}"


def claim_key_name(deployment: str, group: str) -> str:
    """Secret with the claim channel's key of one revision group."""
    return f"{deployment}-claim-{group}"


def tenant_salt_name(deployment: str) -> str:
    """Secret from which the router derives each tenant's cache salt."""
    return f"{deployment}-tenant-salt"


def dashboard_name(deployment: str) -> str:
    return f"{deployment}-dashboard"


def engine_set_parts(deployment: str, name: str) -> tuple[Component, str] | None:
    """Role and revision group of the StatefulSet, or the PodDisruptionBudget, ``name``; None for a name that ``engine_set_name`` never gives."""
    found = re.fullmatch(rf"{re.escape(deployment)}-({'|'.join(ENGINE_COMPONENTS)})-({_GROUP})", name)
    return None if found is None else (Component(found[1]), found[2])


def engine_config_group(deployment: str, name: str) -> str | None:
    """Revision group of the ConfigMap ``name``; None for a name that ``engine_group_name`` never gives."""
    found = re.fullmatch(rf"{re.escape(engine_name(deployment))}-({_GROUP})", name)
    return None if found is None else found[1]


def lasting_names(deployment: str) -> frozenset[str]:
    """Names of everything that belongs to no revision group."""
    parts = {component_name(deployment, component) for component in Component}
    return frozenset((*parts, engine_name(deployment), dashboard_name(deployment)))
