"""What users get wrong, as they see it: on the terminal where kubectl or the API server refuses it, in a condition where only the cluster knows."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
import yaml

from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.kind_suite.bad_objects import (
    SHARED_NAMESPACE,
    BadChange,
    BadFile,
    Judged,
    bad_changes,
    bad_files,
    judged_by_the_cluster,
)
from pdd_e2e.kind_suite.conduct import product_pods
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.installation import SAMPLES
from pdd_e2e.kind_suite.inventory import of_namespace
from pdd_e2e.kind_suite.terminal import Terminal

JUDGED_SECONDS: Final = 60
LEAST_FAULTS: Final = 30
_AT_ONCE: Final = 3  # kubectl waits for the API server more than it computes


@pytest.fixture(scope="module")
def namespaces(installed: Kubectl) -> Iterator[tuple[str, ...]]:
    """One that the faults share, and those that some have alone; empty."""
    names = tuple(dict.fromkeys([SHARED_NAMESPACE, *(fault.namespace for fault in judged_by_the_cluster())]))
    installed("delete", "namespace", *names, "--ignore-not-found", "--timeout=60s", timeout_seconds=70)
    installed.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names])
    yield names
    installed("delete", "namespace", *names, "--timeout=60s", timeout_seconds=70)


def test_faults_in_files_are_refused_on_the_terminal_in_words(
    namespaces: tuple[str, ...], terminal: Terminal, installed: Kubectl, subtests: pytest.Subtests
) -> None:
    """`kubectl apply` of samples with one fault each: it fails, names the field and what it must be, and nothing is stored."""
    faults = bad_files()
    assert len(faults) >= LEAST_FAULTS
    before = of_namespace(installed, SHARED_NAMESPACE)

    def applied(fault: BadFile) -> subprocess.CompletedProcess[str]:
        file = terminal.home / f"{faults.index(fault)}.yaml"
        file.write_text(fault.text)
        return terminal.run(f"kubectl apply --namespace {SHARED_NAMESPACE} --filename {file}", timeout_seconds=30)

    expect_refusals(faults, applied, subtests)
    assert of_namespace(installed, SHARED_NAMESPACE) == before


def test_bad_changes_of_what_runs_are_refused_and_touch_nothing(
    small: LiveDeployment, terminal: Terminal, subtests: pytest.Subtests
) -> None:
    """`kubectl apply`, `edit`, `patch`, `replace` and `scale` with one fault each on a deployment that serves: refused, nothing changed."""
    before = what_runs(small)

    terminal(f"kubectl config set-context --current --namespace {small.namespace}")

    def typed(fault: BadChange) -> subprocess.CompletedProcess[str]:
        return terminal.run(f"export SAMPLES={SAMPLES}; {fault.command}", timeout_seconds=30)

    expect_refusals(bad_changes(), typed, subtests)
    assert what_runs(small) == before


def test_what_only_the_cluster_can_judge_is_said_by_a_condition(
    namespaces: tuple[str, ...], terminal: Terminal, installed: Kubectl, subtests: pytest.Subtests
) -> None:
    """Taken by `kubectl apply`: within a minute the condition has a reason, names the field or the object, and says what to do."""
    faults = judged_by_the_cluster()
    for namespace in namespaces:
        objects = [item for fault in faults if fault.namespace == namespace for item in fault.objects]
        file = terminal.home / f"{namespace}.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        terminal(f"kubectl apply --namespace {namespace} --filename {file}")
    said: dict[str, dict[str, Any]] = {}

    def all_told() -> bool:
        said.update(conditions_of(installed, faults))
        return all(said.get(fault.name, {}).get("reason") == fault.reason for fault in faults)

    def untold() -> str:
        return str(
            {
                fault.name: said.get(fault.name)
                for fault in faults
                if said.get(fault.name, {}).get("reason") != fault.reason
            }
        )

    wait_until(all_told, "a verdict on every fault", JUDGED_SECONDS, untold)
    for fault in faults:
        with subtests.test(msg=fault.name):
            assert said[fault.name]["status"] != "True"
            assert fault.missing_in(said[fault.name]["message"]) == [], said[fault.name]["message"]
    status = terminal.run(f"pdd status claim --namespace {SHARED_NAMESPACE}")
    assert 'persistentvolumeclaim "modle" not found' in " ".join(status.stdout.split())


def expect_refusals(
    faults: Sequence[BadFile] | Sequence[BadChange],
    tried: Callable[[Any], subprocess.CompletedProcess[str]],
    subtests: pytest.Subtests,
) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for fault, done in zip(faults, pool.map(tried, faults), strict=True):
            with subtests.test(msg=fault.name):
                assert done.returncode != 0, done.stdout
                assert fault.missing_in(done.stdout + done.stderr) == [], done.stdout + done.stderr


def conditions_of(kubectl: Kubectl, faults: Sequence[Judged]) -> dict[str, dict[str, Any]]:
    """The condition that each fault is judged by, by the fault's name, where it is there."""
    items = kubectl.get("pdd", "--all-namespaces")["items"]
    found = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in items}
    return {
        fault.name: condition
        for fault in faults
        for condition in found.get((fault.namespace, fault.deployment), {}).get("status", {}).get("conditions", [])
        if condition["type"] == fault.condition
    }


def what_runs(small: LiveDeployment) -> tuple[Any, ...]:
    """Everything that a bad change could have touched."""
    stored = small.kubectl.get("--namespace", small.namespace, "pdd", small.name)
    pods = {(pod.namespace, pod.name, pod.uid, pod.restarts) for pod in product_pods(small.kubectl)}
    return stored["spec"], stored["metadata"]["generation"], {pod for pod in pods if not pod[0].startswith("bad-")}
