"""A pytest plugin: `pytest_plugins = ["pdd_e2e.control_plane.fixtures"]` gives a control plane per session and a namespace per test.

`control_plane`  a LocalControlPlane, started before the tests if one of them asks for it
`namespace`      the name of a new namespace that has its default ServiceAccount; deleted after the test, its pods without grace
`fake_kubelet`   a FakeKubelet for that namespace
`fault_proxy`    a FaultProxy in front of the API server

The ini option `control_plane_crds` names CRDs to serve from the start; without it, the children of a custom object that a test installs may
outlive it by 30 s (see LocalControlPlane).
"""

import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest

from pdd_e2e.control_plane.errors import ApiError, ControlPlaneError
from pdd_e2e.control_plane.fake_kubelet import FakeKubelet
from pdd_e2e.control_plane.fault_proxy import FaultProxy
from pdd_e2e.control_plane.local_control_plane import ADMIN_GROUP, LocalControlPlane

FAKE_KUBELET_USER = "pdd-fake-kubelet"
_PATIENCE_SECONDS = 2.0
_PLANE = pytest.StashKey[LocalControlPlane | ControlPlaneError]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`control_plane_crds`: what is installed before the controllers start, relative to the ini file."""
    parser.addini(
        "control_plane_crds", "files or folders of CRDs that the control plane serves from its start", "paths"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Starts it before the first test if any test wants it, so that neither building nor starting counts against a test's time limit."""
    wanted = any("control_plane" in getattr(item, "fixturenames", ()) for item in session.items)
    if not wanted or session.config.option.collectonly:
        return
    say = _printer(session.config)
    plane = LocalControlPlane(say=say, crds=session.config.getini("control_plane_crds"))
    try:
        with _said_when_slow(say, "starting etcd, kube-apiserver and kube-controller-manager ..."):
            plane.__enter__()
    except ControlPlaneError as error:
        session.config.stash[_PLANE] = error
    else:
        session.config.stash[_PLANE] = plane


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Ends it after the fixtures, which clean up in it; after Ctrl-C those are still to be torn down here."""
    try:
        return (yield)
    finally:
        plane = session.config.stash.get(_PLANE, None)
        if isinstance(plane, LocalControlPlane):
            plane.keep_logs = session.testsfailed > 0
            plane.__exit__(None, None, None)


@pytest.fixture(scope="session")
def control_plane(pytestconfig: pytest.Config) -> LocalControlPlane:
    """One for the whole session. Its logs are kept if any test failed. Ask for it as an argument: it is started before the tests."""
    plane = pytestconfig.stash[_PLANE]
    if isinstance(plane, ControlPlaneError):
        raise plane
    return plane


@pytest.fixture
def namespace(control_plane: LocalControlPlane) -> Iterator[str]:
    """A namespace of this test alone."""
    created = control_plane.api.create(
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}},
    )
    name = str(created["metadata"]["name"])
    control_plane.wait_for_service_account(name)
    yield name
    remove_namespace(control_plane, name)


def remove_namespace(plane: LocalControlPlane, name: str) -> None:
    """Asks for its deletion and does not wait: pods go at once, as there may be no kubelet left to end them."""
    plane.api.delete(f"/api/v1/namespaces/{name}")
    for pod in plane.api.items(f"/api/v1/namespaces/{name}/pods"):
        try:
            plane.api.delete(f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.code != 404:
                raise


def _printer(config: pytest.Config) -> Callable[[str], None]:
    """Prints to the terminal although output is captured."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        if capture is None:
            sys.stderr.write(f"{line}\n")
            return
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"\n{line}\n")
            sys.stderr.flush()

    return say


@contextmanager
def _said_when_slow(say: Callable[[str], None], line: str) -> Iterator[None]:
    timer = threading.Timer(_PATIENCE_SECONDS, say, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@pytest.fixture
def fake_kubelet(control_plane: LocalControlPlane, namespace: str) -> Iterator[FakeKubelet]:
    """Runs this namespace's pods; fails the test if it failed itself."""
    kubeconfig = control_plane.kubeconfig_for(user=FAKE_KUBELET_USER, groups=[ADMIN_GROUP])
    with FakeKubelet(kubeconfig, namespace=namespace) as kubelet:
        yield kubelet


@pytest.fixture
def fault_proxy(control_plane: LocalControlPlane) -> Iterator[FaultProxy]:
    """Breaks nothing until it is told to."""
    with FaultProxy(control_plane) as proxy:
        yield proxy
