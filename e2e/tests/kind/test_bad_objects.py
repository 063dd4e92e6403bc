"""What users get wrong, as they see it: on the terminal where kubectl or the API server refuses it, in a condition where only the cluster knows."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
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
from pdd_e2e.kind_suite.installation import SAMPLES, Release, own_namespaces
from pdd_e2e.kind_suite.inventory import of_namespace
from pdd_e2e.kind_suite.terminal import Terminal, open_terminal

FILES: Final = "bad-files"
JUDGED_SECONDS: Final = 60
LEAST_FAULTS: Final = 30
_AT_ONCE: Final = 3  # kubectl waits for the API server more than it computes

# One fault is a name that another object has.
pytestmark = pytest.mark.may_log("ForeignObject")


@pytest.fixture(scope="module")
def namespaces(installed: Kubectl) -> Iterator[tuple[str, ...]]:
    """One for files, one that judged faults share, and those that some have alone; empty."""
    names = tuple(dict.fromkeys([FILES, *(fault.namespace for fault in judged_by_the_cluster())]))
    with own_namespaces(installed, {name: {} for name in names}):
        yield names
        for name in names:  # first, so that no later test hears of them
            installed("--namespace", name, "delete", "pdd", "--all")


@pytest.fixture(scope="module", autouse=True)
def verdicts(
    namespaces: tuple[str, ...], installed: Kubectl, release: Release, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Future[dict[str, dict[str, Any]]]"]:
    """What only the cluster can judge is judged while other faults are tried."""
    home: Path = tmp_path_factory.mktemp("judged")
    terminal = open_terminal(installed, release.helm, home)
    faults = judged_by_the_cluster()
    for namespace in namespaces:
        objects = [item for fault in faults if fault.namespace == namespace for item in fault.objects]
        if objects:
            (home / f"{namespace}.yaml").write_text(yaml.safe_dump_all(objects))
            terminal(f"kubectl apply --namespace {namespace} --filename {home}/{namespace}.yaml")
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(all_told, installed, faults)


@pytest.mark.usefixtures("starting")
def test_faults_in_files_are_refused_on_the_terminal_in_words(
    terminal: Terminal, installed: Kubectl, subtests: pytest.Subtests
) -> None:
    """`kubectl apply` of samples with one fault each: it fails, names the field and what it must be, and nothing is stored."""
    faults = bad_files()
    assert len(faults) >= LEAST_FAULTS
    before = of_namespace(installed, FILES)

    def applied(fault: BadFile) -> subprocess.CompletedProcess[str]:
        file = terminal.home / f"{faults.index(fault)}.yaml"
        file.write_text(fault.text)
        return terminal.run(f"kubectl apply --namespace {FILES} --filename {file}", timeout_seconds=30)

    expect_refusals(faults, applied, subtests)
    assert of_namespace(installed, FILES) == before


def test_bad_changes_of_what_runs_are_refused_and_touch_nothing(
    small: LiveDeployment, terminal: Terminal, subtests: pytest.Subtests
) -> None:
    """`kubectl apply`, `edit`, `patch`, `replace` and `scale` with one fault each on a deployment that serves: refused, nothing changed."""
    before = what_runs(small)

    terminal(f"kubectl config set-context --current --namespace {small.namespace}")

    def typed(fault: BadChange) -> subprocess.CompletedProcess[str]:
        return terminal.run(f"export SAMPLES={SAMPLES} TMPDIR={terminal.home}; {fault.command}", timeout_seconds=30)

    expect_refusals(bad_changes(), typed, subtests)
    assert what_runs(small) == before


def test_what_only_the_cluster_can_judge_is_said_by_a_condition(
    verdicts: "Future[dict[str, dict[str, Any]]]", terminal: Terminal, subtests: pytest.Subtests
) -> None:
    """Taken by `kubectl apply`: within a minute the condition has a reason, names the field or the object, and says what to do."""
    faults, said = judged_by_the_cluster(), verdicts.result(timeout=JUDGED_SECONDS)
    for fault in faults:
        with subtests.test(msg=fault.name):
            assert said[fault.name]["status"] != "True"
            assert fault.missing_in(said[fault.name]["message"]) == [], said[fault.name]["message"]
    status = terminal.run(f"pdd status claim --namespace {SHARED_NAMESPACE}")
    assert 'persistentvolumeclaim "modle" not found' in " ".join(status.stdout.split())


def all_told(kubectl: Kubectl, faults: Sequence[Judged]) -> dict[str, dict[str, Any]]:
    """The conditions by fault. Raises ClusterError with those that are not told in time, or for another reason."""
    said: dict[str, dict[str, Any]] = {}

    def untold() -> dict[str, Any]:
        said.update(conditions_of(kubectl, faults))
        return {
            item.name: said.get(item.name) for item in faults if said.get(item.name, {}).get("reason") != item.reason
        }

    wait_until(lambda: not untold(), "a verdict on every fault", JUDGED_SECONDS, lambda: str(untold()), poll_seconds=2)
    return said


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
