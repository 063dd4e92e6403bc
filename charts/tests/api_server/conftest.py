import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chart import Chart, environment
from operator_process import OperatorProcess
from release import CRD, Release, get_or_none, wait_until

from pdd_e2e.control_plane.api import KubeApi
from pdd_e2e.control_plane.errors import ApiError
from pdd_e2e.control_plane.helm import find_helm
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane

ACCOUNT = "pdd-pdd-operator"
PROFILE = "pod-security.kubernetes.io/enforce"


@pytest.fixture
def release(control_plane: LocalControlPlane, namespace: str, tmp_path: Path) -> Iterator[Release]:
    """Not installed yet. Whatever the test leaves is removed, the definition too: a cluster has one."""
    api = control_plane.api
    api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {PROFILE: "restricted"}}})
    helm = find_helm(say=lambda line: print(line, file=sys.stderr))
    yield Release(helm, control_plane.kubeconfig, api, namespace, tmp_path)
    _remove_cluster_objects(api)


def _remove_cluster_objects(api: KubeApi) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    for kind in ("clusterroles", "clusterrolebindings"):
        for item in api.items(f"{rbac}/{kind}", labelSelector="app.kubernetes.io/part-of=pdserve"):
            api.delete(f"{rbac}/{kind}/{item['metadata']['name']}")
    try:
        api.delete(CRD)
    except ApiError as error:
        if error.code != 404:
            raise
    wait_until(lambda: get_or_none(api, CRD) is None, "the definition to be gone")


@pytest.fixture
def may(control_plane: LocalControlPlane, release: Release) -> Callable[[str, str, str], bool]:
    """Whether somebody with one of the cluster's own roles in the release's namespace may do something: role, verb, resource."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{release.namespace}/rolebindings"
    for role in ("view", "edit"):
        control_plane.api.create(
            rbac,
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": role},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [
                    {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": f"somebody-with-{role}"}
                ],
            },
        )

    def ask(role: str, verb: str, resource: str) -> bool:
        plural, _, subresource = resource.partition("/")
        attributes = {
            "namespace": release.namespace,
            "verb": verb,
            "group": "pdserve.io",
            "resource": plural,
            "subresource": subresource,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": f"somebody-with-{role}", "resourceAttributes": attributes},
        }
        answer = control_plane.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    return ask


@pytest.fixture
def start(control_plane: LocalControlPlane, release: Release, tmp_path: Path) -> Callable[..., OperatorProcess]:
    """Makes the operator's process as the installed release would run it."""

    def make(*flags: str) -> OperatorProcess:
        objects = Chart(release.helm).objects(*flags, release=release.name, namespace=release.namespace)
        kubeconfig = control_plane.kubeconfig_for(service_account=(release.namespace, ACCOUNT))
        return OperatorProcess(
            environment(objects), namespace=release.namespace, kubeconfig=kubeconfig, log=tmp_path / "operator.log"
        )

    return make


@pytest.fixture
def user(release: Release) -> str:
    return f"system:serviceaccount:{release.namespace}:{ACCOUNT}"
