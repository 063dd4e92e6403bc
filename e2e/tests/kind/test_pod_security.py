"""Scenario 9 and S1: all pods run where the restricted profile is enforced, and what engines on EFA need beyond it is what docs/security.md lists."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.kind_suite.deployment import LiveDeployment
from pdd_e2e.kind_suite.installation import RELEASE, SYSTEM, own_namespaces
from pdd_e2e.kind_suite.pod_security import (
    ENFORCE,
    LEVELS,
    Objection,
    documented_exceptions,
    objections,
    pods_of,
    sample_with,
)
from pdd_e2e.kind_suite.reachability import probe_pod
from pdd_e2e.kind_suite.terminal import Terminal

RUN_SECONDS: Final = 60
JUDGE_SECONDS: Final = 45
EFA: Final = "transport.backend: EFA"
PRIVILEGED: Final = "transport.privileges: Privileged"
NOTHING: Final[frozenset[Objection]] = frozenset()
WITHOUT_EFA: Final = ("e2e/samples/cpu.yaml", "docs/samples/gpu-sockets.yaml")
WITH_EFA: Final = (
    "docs/samples/p5en-efa.yaml",
    "docs/samples/p5en-part-of-a-node.yaml",
    "docs/samples/trn2-efa.yaml",
)
BASELINE_FORBIDS: Final = {"IPC_LOCK", "privileged"}
"""Of the exceptions: the rest of them only the restricted profile minds."""


@pytest.fixture
def restricted_system(installed: Kubectl) -> Iterator[None]:
    """The operator's namespace enforces the restricted profile, too."""
    installed("label", "namespace", SYSTEM, f"{ENFORCE}=restricted")
    yield
    installed("label", "namespace", SYSTEM, f"{ENFORCE}-")


@pytest.mark.budget(RUN_SECONDS)
@pytest.mark.usefixtures("restricted_system")
def test_operator_router_and_engines_run_where_restricted_is_enforced(
    small: LiveDeployment, installed: Kubectl
) -> None:
    """Delete an operator pod where restricted is enforced: another one gets ready; so did all others. A pod as any is refused in both places."""
    enforced = installed.get("namespace", small.namespace)["metadata"]["labels"][ENFORCE]
    assert enforced == "restricted"
    assert {len(small.ready_pods(role)) for role in ("prefill", "decode", "router")} == {1}
    victim = standby(installed)
    installed("--namespace", SYSTEM, "delete", "pod", victim)
    rollout = ("rollout", "status", f"deployment/{RELEASE}", f"--timeout={RUN_SECONDS}s")
    installed("--namespace", SYSTEM, *rollout, timeout_seconds=RUN_SECONDS + 10)
    for namespace in (SYSTEM, small.namespace):
        found = objections(installed, namespace, [careless("careless"), probe_pod("careful", "none")])
        assert found["careful"] == NOTHING, namespace
        assert {Objection("probe", "allowPrivilegeEscalation"), Objection("probe", "drop")} <= found["careless"]


def standby(kubectl: Kubectl) -> str:
    """An operator pod that does not lead: what the other one does goes on."""
    place = ("--namespace", SYSTEM)
    holders = [item["spec"]["holderIdentity"] for item in kubectl.get(*place, "leases")["items"]]
    names = [item["metadata"]["name"] for item in kubectl.get(*place, "pods")["items"]]
    return next(name for name in names if not any(holder.startswith(f"{name}_") for holder in holders))


def careless(name: str) -> dict[str, Any]:
    """A pod that says nothing about its security."""
    spec = {"containers": [{"name": "probe", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def levels(installed: Kubectl) -> Iterator[dict[str, str]]:
    """A namespace for each level, which enforces it; by level."""
    names = {level: f"security-{level}" for level in LEVELS}
    with own_namespaces(installed, {name: {ENFORCE: level} for level, name in names.items()}):
        yield names


@dataclass(frozen=True, slots=True)
class Expected:
    """A pod, and what the page says it has beyond the restricted profile."""

    pod: dict[str, Any]
    exceptions: frozenset[Objection]


def rendered(terminal: Terminal, sources: Path) -> dict[str, Expected]:
    """Every pod of the samples, and of one that asks for privileges, by a name of its own."""
    page = documented_exceptions()
    assert set(page) == {EFA, PRIVILEGED}, "a sample for each row of the page"
    chosen = [(path, {}, NOTHING) for path in WITHOUT_EFA]
    chosen += [(path, {}, page[EFA]) for path in WITH_EFA]
    chosen += [(WITH_EFA[0], {"privileges": "Privileged"}, page[PRIVILEGED])]
    render = f"PYTHONPATH={sources}/cli/src:{sources}/operator/src pdd render --namespace default"
    pods: dict[str, Expected] = {}
    for number, (path, transport, exceptions) in enumerate(chosen):
        file = terminal.home / f"{number}.yaml"
        file.write_text(sample_with(path, **transport))
        manifests = list(yaml.safe_load_all(terminal(f"{render} -f {file}")))
        engines = {item["metadata"]["name"] for item in manifests if item and item["kind"] == "StatefulSet"}
        for name, pod in pods_of(manifests).items():
            own = f"{number}-{name}"
            pod["metadata"]["name"] = own
            pods[own] = Expected(pod, exceptions if name in engines else NOTHING)
    return pods


@pytest.mark.budget(JUDGE_SECONDS)
def test_what_efa_needs_beyond_the_profile_is_what_the_page_lists(
    installed: Kubectl, terminal: Terminal, sources: Path, levels: dict[str, str]
) -> None:
    """Show every sample's pods to namespaces of each level: restricted minds what the page lists and no more, baseline a part, privileged nothing."""
    expected = rendered(terminal, sources)
    pods = [item.pod for item in expected.values()]
    found = {level: objections(installed, namespace, pods) for level, namespace in levels.items()}
    assert found["restricted"] == {name: item.exceptions for name, item in expected.items()}
    assert found["baseline"] == {
        name: {objection for objection in item.exceptions if objection.field in BASELINE_FORBIDS}
        for name, item in expected.items()
    }
    assert found["privileged"] == dict.fromkeys(expected, NOTHING)
    assert len(expected) == 3 * len({name.partition("-")[0] for name in expected}), "prefill, decode and router of each"
