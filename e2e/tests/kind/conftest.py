"""One cluster, one installation and one deployment for all tests here; each test leaves them as it found them."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pdd_e2e.cluster.engine_files import engine_mounts
from pdd_e2e.cluster.kind_provider import KindProvider
from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.product_images import ROOT, build_product_images
from pdd_e2e.cluster.provider import named_cluster
from pdd_e2e.control_plane.binaries import Say, cache_folder, find_binaries
from pdd_e2e.control_plane.helm import find_helm
from pdd_e2e.kind_suite.deployment import LiveDeployment
from pdd_e2e.kind_suite.evidence import collect, complaints
from pdd_e2e.kind_suite.installation import SYSTEM, apply_sample, clear_tenant, install, make_tenant

NAMESPACE = "agents"
TEST_SECONDS = 600
SET_UP_SECONDS = 1800  # the first test brings everything up, on a new machine from Go modules
_BEGAN = time.monotonic()


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for number, item in enumerate(ours):
        item.add_marker(pytest.mark.timeout(TEST_SECONDS + (0 if number else SET_UP_SECONDS)))


@pytest.fixture(scope="session")
def kubectl(say: Say) -> Kubectl:
    """The cluster stays after the run: `python -m pdd_e2e.cluster down` takes it away."""
    if (named := named_cluster(os.environ, find_binaries(say=say).path("kubectl"))) is not None:
        return named.up()
    state = cache_folder(os.environ) / "kind"
    provider = KindProvider(state, engine_mounts(), say)
    kubectl = provider.up()
    provider.load(*build_product_images(state, say).all)
    return kubectl


@pytest.fixture(scope="session")
def helm(say: Say) -> Path:
    return find_helm(say=say)


@pytest.fixture(scope="session")
def installed(kubectl: Kubectl, helm: Path, say: Say) -> Kubectl:
    clear_tenant(kubectl, NAMESPACE)  # an earlier run's engines leave no room for a rollout
    say("installing the operator")
    install(helm, kubectl)
    kubectl(
        "--namespace", SYSTEM, "rollout", "restart", "deployment/pdd-operator"
    )  # the tag is the same for every build
    kubectl("--namespace", SYSTEM, "rollout", "status", "deployment/pdd-operator", "--timeout=90s", timeout_seconds=100)
    return kubectl


@pytest.fixture(scope="session")
def small(installed: Kubectl, say: Say) -> LiveDeployment:
    """The sample cpu.yaml, new in this run, Ready, in a namespace that enforces the restricted profile."""
    make_tenant(installed, NAMESPACE)
    say("starting two engines and a router")
    apply_sample(installed, NAMESPACE, "cpu.yaml")
    deployment = LiveDeployment(installed, NAMESPACE, "small")
    deployment.wait("Ready", timeout_seconds=420)
    say("ready")
    return deployment


@pytest.fixture(autouse=True)
def quiet_logs(request: pytest.FixtureRequest, small: LiveDeployment) -> Iterator[None]:
    """Operator and router complain of nothing but what a test says with `@pytest.mark.may_log(pattern, ...)`."""
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    yield
    marker = request.node.get_closest_marker("may_log")
    allowed = marker.args if marker is not None else ()
    places = ((SYSTEM, "app.kubernetes.io/name=pdd-operator"), (NAMESPACE, "pdserve.io/role=router"))
    said = [line for place, selector in places for line in complaints(small.kubectl, place, selector, since, allowed)]
    assert said == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed and (kubectl := getattr(item, "funcargs", {}).get("kubectl") or _kubectl_of(item)):
        folder = ROOT / "out" / "kind" / f"{item.name}-{report.when}"
        _printer(item.config)(f"evidence is in {collect(kubectl, (SYSTEM, NAMESPACE, 'kube-system'), folder)}")
    return report


def _kubectl_of(item: pytest.Item) -> Kubectl | None:
    small = getattr(item, "funcargs", {}).get("small")
    return small.kubectl if isinstance(small, LiveDeployment) else None
