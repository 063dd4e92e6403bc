"""A real API server, with and without the chart's definition, and `pdd` with its kubeconfig."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import yaml
from ran import Done

from pdd_e2e.control_plane.api import KubeApi
from pdd_e2e.control_plane.errors import ApiError
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.operators.deployments import wait_for
from pdd_e2e.operators.install import chart_objects

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pddeployments.pdserve.io"
Pdd = Callable[..., Done]


@pytest.fixture
def ask(pdd: Pdd, control_plane: LocalControlPlane) -> Pdd:
    """`pdd` as the administrator."""

    def run(*arguments: str) -> Done:
        return pdd(*arguments, "--kubeconfig", str(control_plane.kubeconfig))

    return run


@pytest.fixture(scope="module")
def definition(control_plane: LocalControlPlane) -> Iterator[None]:
    """As the chart has it; gone after the module, because other modules are about clusters without."""
    (found,) = (item for item in chart_objects("pdd-system") if item["kind"] == "CustomResourceDefinition")
    control_plane.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(found))
    try:
        wait_for(lambda: _is_served(control_plane.api), 30, lambda: "PDDeployments are not served")
        yield
    finally:
        control_plane.api.delete(CRD)
        wait_for(lambda: not _is_there(control_plane.api, CRD), 30, lambda: "the definition is not gone")


def _is_there(api: KubeApi, path: str) -> bool:
    try:
        api.get(path)
    except ApiError as error:
        if error.code != 404:
            raise
        return False
    return True


def _is_served(api: KubeApi) -> bool:
    """A definition that is new makes the API server ask for patience (429) for a moment."""
    try:
        return _is_there(api, "/apis/pdserve.io/v1alpha1/pddeployments")
    except ApiError as error:
        if error.code != 429:
            raise
        return False


@pytest.fixture
def chart(control_plane: LocalControlPlane, definition: None, namespace: str) -> Iterator[str]:
    """All of the chart, in the test's namespace, whose name this is. The definition stays."""
    objects = [item for item in chart_objects(namespace) if item["kind"] != "CustomResourceDefinition"]
    control_plane.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))
    yield namespace
    for item in objects:
        kind, metadata = f"{item['kind'].lower()}s", item["metadata"]
        if "namespace" not in metadata:
            control_plane.api.delete(f"/apis/{item['apiVersion']}/{kind}/{metadata['name']}")
        elif item["kind"] == "Deployment":  # the namespace goes later, and the doctor looks into all of them
            control_plane.api.delete(f"/apis/apps/v1/namespaces/{namespace}/{kind}/{metadata['name']}")


@pytest.fixture
def nodes(control_plane: LocalControlPlane) -> Iterator[Callable[[list[dict[str, object]]], None]]:
    """Makes Node objects, which nobody runs."""
    made: list[str] = []

    def make(objects: list[dict[str, object]]) -> None:
        for item in objects:
            name = item["metadata"]["name"]  # type: ignore[index]  # an object
            control_plane.api.create("/api/v1/nodes", {key: item[key] for key in item if key != "status"})
            made.append(name)
            # Whoever registers a node taints it; what nodes offer is status.
            control_plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": item["status"]})

    yield make
    for name in made:
        try:
            control_plane.api.delete(f"/api/v1/nodes/{name}")
        except ApiError as error:
            if error.code != 404:
                raise
