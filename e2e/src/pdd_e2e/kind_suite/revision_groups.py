"""What belongs to one revision group of a deployment, and which groups an answer's engines are of. Reads only."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.kind_suite.conversation import Turn
from pdd_e2e.kind_suite.deployment import LiveDeployment
from pdd_operator.api import labels
from pdd_operator.api.names import claim_key_name, engine_set_parts

_PAIRS = re.compile(
    r'^pdd_router_pairs_total\{decode_group="([^"]*)",prefill_group="([^"]*)"\} ([0-9.e+]+)$', re.MULTILINE
)


def revision(deployment: LiveDeployment) -> str:
    """The current one, "" before the first visit."""
    return str(status(deployment).get("revision") or "")


def status(deployment: LiveDeployment) -> dict[str, Any]:
    """As the operator wrote it last."""
    found = deployment.kubectl.get("--namespace", deployment.namespace, "pdd", deployment.name)
    return dict(found.get("status") or {})


def engines(deployment: LiveDeployment, group: str) -> dict[str, dict[str, Any]]:
    """Engine pods of a group, by name."""
    return {name: pod for name, pod in deployment.pods().items() if group_of_pod(pod) == group}


def group_of_pod(pod: Mapping[str, Any]) -> str:
    """ "" for a router."""
    return str(pod["metadata"].get("labels", {}).get(labels.REVISION_GROUP, ""))


def claim_key(deployment: LiveDeployment, group: str) -> Mapping[str, str]:
    """The content of the group's Secret: what its engines prove to each other that they know."""
    name = claim_key_name(deployment.name, group)
    found = deployment.kubectl.get("--namespace", deployment.namespace, "secret", name)
    return dict(found["data"])


def pairs(router_metrics: str) -> dict[tuple[str, str], float]:
    """Decode legs sent after a prefill leg, by the groups of prefill and decode."""
    return {(prefill, decode): float(count) for decode, prefill, count in _PAIRS.findall(router_metrics)}


def groups_of(turn: Turn, deployment: str) -> set[str]:
    """Groups of all engines that had a part in an answer. Raises ClusterError for an engine that is no pod of the deployment."""
    return {_group_in(name, deployment) for name in turn.engines}


def mixed(turns: Iterable[Turn], deployment: str) -> list[Turn]:
    """Answers that engines of more than one group made."""
    return [turn for turn in turns if len(groups_of(turn, deployment)) > 1]


def _group_in(pod: str, deployment: str) -> str:
    parts = engine_set_parts(deployment, pod.rpartition("-")[0])
    if parts is None:
        raise ClusterError(f"{pod} is no engine of {deployment}")
    return parts[1]
