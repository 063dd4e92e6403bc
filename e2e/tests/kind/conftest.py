"""One cluster, one installation and one deployment for all tests here; each test leaves them as it found them.

`PDD_E2E_KEEP=1` takes the deployment that is there, if it is Ready. `PDD_E2E_SOURCES` builds and installs another checkout's product.
"""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdd_e2e.cluster.engine_files import engine_mounts
from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.kind_provider import KindProvider
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.product_images import LOADED_BEFORE, ROOT, ProductImages, build_product_images
from pdd_e2e.cluster.provider import named_cluster
from pdd_e2e.control_plane.binaries import Say, cache_folder, find_binaries
from pdd_e2e.control_plane.helm import find_helm
from pdd_e2e.kind_suite.conduct import complaints, moment, product_pods, restarted
from pdd_e2e.kind_suite.deployment import LiveDeployment
from pdd_e2e.kind_suite.evidence import collect
from pdd_e2e.kind_suite.installation import Release, apply_sample, clear_tenant, make_tenant
from pdd_e2e.kind_suite.terminal import Terminal, open_terminal

NAMESPACE = "agents"
TEST_SECONDS = 300
CHAOS_SECONDS = float(os.environ.get("PDD_E2E_CHAOS_SECONDS", "300"))  # one test takes what is left of them
SET_UP_SECONDS = 1800  # the first test brings everything up, on a new machine from Go modules
_BEGAN = time.monotonic()
_EVIDENCE = ROOT / "out" / "kind"
_KUBECTL = pytest.StashKey[Kubectl]()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the suite runs, and the images that its nodes have."""

    kubectl: Kubectl
    images: ProductImages


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Say:
    """Progress past pytest's capture: what takes minutes is said."""
    return _printer(pytestconfig)


def _printer(config: pytest.Config) -> Say:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(f"[{time.monotonic() - _BEGAN:4.0f} s] {line}")

    return say


@pytest.hookimpl(trylast=True)  # when it is known which of them run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for number, item in enumerate(ours):
        item.add_marker(pytest.mark.timeout(TEST_SECONDS + CHAOS_SECONDS + (0 if number else SET_UP_SECONDS)))


@pytest.fixture(scope="session")
def sources() -> Path:
    """The checkout whose product is tested: this one, or one with a mutation in it."""
    return Path(os.environ.get("PDD_E2E_SOURCES") or ROOT)


@pytest.fixture(scope="session")
def cluster(say: Say, sources: Path, pytestconfig: pytest.Config) -> Cluster:
    """It stays after the run: `make e2e-down` takes it away."""
    found = _bring_up(say, sources)
    pytestconfig.stash[_KUBECTL] = found.kubectl
    return found


def _bring_up(say: Say, sources: Path) -> Cluster:
    if not os.environ.get("PDD_E2E_KEEP"):
        shutil.rmtree(_EVIDENCE, ignore_errors=True)  # of an earlier run
    if (named := named_cluster(os.environ, find_binaries(say=say).path("kubectl"))) is not None:
        return Cluster(named.up(), LOADED_BEFORE)
    state = cache_folder(os.environ) / "kind"
    provider = KindProvider(state, engine_mounts(say), say)
    kubectl = provider.up()
    images = build_product_images(state, say, sources=sources)
    provider.load(images)
    return Cluster(kubectl, images)


@pytest.fixture(scope="session")
def release(cluster: Cluster, sources: Path, say: Say) -> Release:
    """The chart with the images that were built, to be installed."""
    return Release(find_helm(say=say), cluster.kubectl, cluster.images, sources)


@pytest.fixture
def terminal(cluster: Cluster, say: Say, tmp_path: Path) -> Terminal:
    """Where a test types what documentation says."""
    return open_terminal(cluster.kubectl, find_helm(say=say), tmp_path)


@pytest.fixture(scope="session")
def installed(release: Release, say: Say) -> Kubectl:
    say("installing the operator")
    release.install()
    return release.kubectl


@pytest.fixture(scope="session")
def starting(installed: Kubectl, say: Say) -> LiveDeployment:
    """`small` as soon as it is applied: for those who do something else while its engines start."""
    deployment = LiveDeployment(installed, NAMESPACE, "small")
    if not (os.environ.get("PDD_E2E_KEEP") and _is_ready(deployment)):
        clear_tenant(installed, NAMESPACE)
        make_tenant(installed, NAMESPACE)
        say("starting two engines and a router")
    apply_sample(installed, NAMESPACE, "cpu.yaml")
    if os.environ.get(
        "PDD_E2E_KEEP"
    ):  # another generation, so that what status says of it is the installed operator's word
        deployment.patch({"rollout": {"progressDeadlineSeconds": 3600 + int(time.time()) % 3600}})
    return deployment


@pytest.fixture(scope="session")
def small(starting: LiveDeployment, say: Say) -> LiveDeployment:
    """The sample cpu.yaml, new in this run, Ready, in a namespace that enforces the restricted profile."""
    starting.wait("Ready", timeout_seconds=420)
    say("ready")
    return starting


def _is_ready(deployment: LiveDeployment) -> bool:
    try:
        return deployment.conditions().get("Ready", {}).get("status") == "True"
    except ClusterError:
        return False


@pytest.fixture(autouse=True)
def good_conduct(request: pytest.FixtureRequest) -> Iterator[None]:
    """Operator and routers complain of nothing, and nothing is started again, but what a test says it may.

    `@pytest.mark.may_log(pattern, ...)`, `@pytest.mark.may_restart(role, ...)`.
    """
    if not {"installed", "small"} & set(request.fixturenames):
        yield
        return
    kubectl: Kubectl = request.getfixturevalue("installed")
    before = moment(kubectl)
    yield
    pods = product_pods(kubectl)
    said = complaints(kubectl, pods, before.time, _arguments(request, "may_log"))
    assert [*restarted(before, pods, _arguments(request, "may_restart")), *said] == []


def _arguments(request: pytest.FixtureRequest, name: str) -> tuple[str, ...]:
    marker = request.node.get_closest_marker(name)
    return marker.args if marker is not None else ()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """`@pytest.mark.budget(seconds)`: how long the test itself may take, without its fixtures."""
    began = time.monotonic()
    yield
    marker, took = item.get_closest_marker("budget"), time.monotonic() - began
    if marker is not None and took > marker.args[0]:
        pytest.fail(f"took {took:.0f} s of {marker.args[0]} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed and (kubectl := item.config.stash.get(_KUBECTL, None)) is not None:
        _printer(item.config)(f"evidence is in {collect(kubectl, _EVIDENCE / f'{item.name}-{report.when}')}")
    return report
