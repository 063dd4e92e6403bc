"""What Pod Security's levels have against pods: asked of the API server by dry run, and what docs/security.md lists. Changes nothing."""

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.product_images import ROOT

LEVELS = ("restricted", "baseline", "privileged")
ENFORCE = "pod-security.kubernetes.io/enforce"
_PAGE = ROOT / "docs" / "security.md"
_TIMEOUT_SECONDS = 60
_REFUSED = re.compile(r'pods "(?P<pod>[^"]+)" is forbidden: violates PodSecurity "[^"]+": (?P<clauses>.*)')
_CLAUSE = re.compile(r"(?P<parts>(?:container|pod)s? [^()]*?) must (?P<demand>[^()]*)")
_SUBJECTS = re.compile(r'"([A-Z_]+)"(?= in securityContext)|(?:securityContext\.)?(\w+)=')


@dataclass(frozen=True, slots=True)
class Objection:
    """A field, or a capability, that a level does not let a container have."""

    container: str
    field: str


def pods_of(documents: Iterable[Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """A pod for every template among rendered objects; by the object's name. Its account is the one that every namespace has."""
    templated = [item for item in documents if item and item["kind"] in ("StatefulSet", "Deployment")]
    return {
        item["metadata"]["name"]: {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": item["metadata"]["name"]},
            "spec": {**item["spec"]["template"]["spec"], "serviceAccountName": "default"},
        }
        for item in templated
    }


def objections(kubectl: Kubectl, namespace: str, pods: Sequence[Mapping[str, Any]]) -> dict[str, frozenset[Objection]]:
    """By pod, what the namespace's level has against it; nothing where it would be let in. Raises ClusterError."""
    done = subprocess.run(  # noqa: S603  # the kubectl that was found
        kubectl.command("--namespace", namespace, "create", "--dry-run=server", "--output=name", "--filename=-"),
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )
    found = {line.removeprefix("pod/"): frozenset[Objection]() for line in done.stdout.split()}
    for match in _REFUSED.finditer(done.stderr):
        found[match["pod"]] = parse_objections(match["clauses"])
    if missing := {pod["metadata"]["name"] for pod in pods} - set(found):
        raise ClusterError(f"{sorted(missing)} were neither let in nor refused by Pod Security: {done.stderr[-2000:]}")
    return found


def parse_objections(clauses: str) -> frozenset[Objection]:
    """From the API server's words after `violates PodSecurity "...":`."""
    return frozenset(
        Objection(container, subject[0] or subject[1])
        for clause in _CLAUSE.finditer(clauses)
        for container in re.findall(r'"([^"]+)"', clause["parts"])
        for subject in _SUBJECTS.findall(clause["demand"])
    )


def documented_exceptions() -> dict[str, frozenset[Objection]]:
    """The page's table: by the setting in its first column, what engine pods have then beyond `restricted`."""
    text = _PAGE.read_text()
    heading = re.search(r"^The exceptions, all of them, on the containers (.*) of engine pods:$", text, re.MULTILINE)
    if heading is None:
        raise ClusterError(f"{_PAGE} has no table of exceptions")
    containers = re.findall(r"`(\w+)`", heading[1])
    rows = re.findall(r"^\| `([^`]+)`[^|]*\| ([^|]+)\|", text[heading.end() :].partition("\n\nSo ")[0], re.MULTILINE)
    return {
        setting: frozenset(
            Objection(container, field) for container in containers for field in re.findall(r"`(\w+)`", exceptions)
        )
        for setting, exceptions in rows
    }


def sample_with(path: str, **transport: str) -> str:
    """A PDDeployment of the repository as YAML, with other fields of `transport`."""
    deployment = yaml.safe_load((ROOT / path).read_text())
    deployment["spec"]["transport"] = {**deployment["spec"].get("transport", {}), **transport}
    return str(yaml.safe_dump(deployment))
