"""Scenario 7, the way out and back: uninstalled while it serves, taken over again, and then everything taken away in the guide's own words.

The last test takes `agents/small` away with the rest, so this module must come last; it leaves the sample applied and, for
`PDD_E2E_KEEP=1`, Ready.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.kind_suite.conduct import complaints, moment, product_pods
from pdd_e2e.kind_suite.conversation import QUESTIONS, Conversation
from pdd_e2e.kind_suite.deployment import LiveDeployment, wait_until
from pdd_e2e.kind_suite.installation import RELEASE, SYSTEM, Release, apply_sample, clear_tenant, make_tenant
from pdd_e2e.kind_suite.inventory import of_cluster, of_namespace
from pdd_e2e.kind_suite.revision_groups import revision
from pdd_e2e.kind_suite.terminal import Terminal, guide_blocks

ADOPT_SECONDS = 75.0
DELETE_SECONDS = 50.0
NAMESPACE_SECONDS = 60.0
WAY_OUT_SECONDS = 120.0
READY_SECONDS = 240.0
GARBAGE_SECONDS = 20.0
DEFINITION = [  # and what the API server makes of it
    "APIService.apiregistration.k8s.io/v1 /v1alpha1.pdserve.io",
    "CustomResourceDefinition.apiextensions.k8s.io/v1 /pddeployments.pdserve.io",
]
OWN = "uninstall-own"
COMMON = ("/default", "/kube-root-ca.crt")
SAMPLE = "docs/samples/gpu-sockets.yaml"
KINDS = "StatefulSet Deployment Pod Service ConfigMap Secret ServiceAccount Role RoleBinding NetworkPolicy PodDisruptionBudget"


def of_release(inventory: frozenset[str]) -> list[str]:
    """What the chart or the operator made for itself: all of its namespace but what each has, and everything of its name elsewhere."""
    everywhere = ("ConfigMap.v1 pdd-system/kube-root-ca.crt", "ServiceAccount.v1 pdd-system/default")
    return sorted(
        item
        for item in inventory
        if (f" {SYSTEM}/" in item or RELEASE in item or "pdserve" in item)
        and item not in everywhere
        and not item.startswith("PDDeployment.")
    )


def only_the_definition(small: LiveDeployment) -> None:
    """Is what is left of the release, within seconds."""

    def left() -> list[str]:
        return of_release(of_cluster(small.kubectl))

    wait_until(lambda: left() == DEFINITION, "nothing but the definition", GARBAGE_SECONDS, lambda: str(left()))


def identities(small: LiveDeployment) -> dict[str, tuple[str, int]]:
    """Uid and generation of what the operator made; another generation is another spec."""
    kinds = "statefulsets,deployments,services,configmaps,secrets,serviceaccounts,networkpolicies,pods"
    found = small.kubectl.get(
        "--namespace", small.namespace, kinds, "--selector", f"pdserve.io/deployment={small.name}"
    )["items"]
    return {f"{item['kind']}/{item['metadata']['name']}": _identity(item["metadata"]) for item in found}


def _identity(metadata: dict[str, Any]) -> tuple[str, int]:
    return metadata["uid"], metadata.get("generation", 0)


@pytest.mark.budget(ADOPT_SECONDS)
def test_uninstalled_it_goes_on_serving_and_reinstalled_it_adopts(small: LiveDeployment, release: Release) -> None:
    """helm uninstall while it serves: it answers, and nothing of the release is left but the definition; helm install: the same objects.

    What was lost meanwhile comes back: that is how a user sees that somebody cares again.
    """
    before, lost = identities(small), f"{small.name}-prefill-{revision(small)}"
    release.uninstall()
    try:
        only_the_definition(small)
        small("delete", "poddisruptionbudget", lost)
        with small.router_url() as url:
            conversation = Conversation(url, "Nobody operates")
            turns = [conversation.ask(question) for question in QUESTIONS[:2]]
        assert turns[1].read_tokens >= 64, "history is read back with nobody to operate"
    finally:
        release.install()
    wait_until(lambda: lost in small("get", "poddisruptionbudgets", "--output=name"), "what was lost", 30)
    small.wait("Ready", timeout_seconds=15)
    assert identities(small) == before


@pytest.fixture(scope="module")
def own(installed: Kubectl) -> Iterator[str]:
    """A namespace of this module's own."""
    installed(
        "delete", "namespace", OWN, "--ignore-not-found", timeout_seconds=NAMESPACE_SECONDS
    )  # of a run that was killed
    installed("create", "namespace", OWN)
    wait_until(lambda: len(of_namespace(installed, OWN)) == len(COMMON), "what every namespace has", 15)
    yield OWN
    installed("delete", "namespace", OWN, "--ignore-not-found", timeout_seconds=NAMESPACE_SECONDS)


@pytest.mark.budget(DELETE_SECONDS)
def test_a_deleted_deployment_leaves_nothing_behind(installed: Kubectl, terminal: Terminal, own: str) -> None:
    """A sample that waits for GPUs, all of its objects there; kubectl delete: the namespace is what it was, in every kind there is."""
    before = of_namespace(installed, own)
    terminal(f"kubectl apply --namespace {own} --filename {SAMPLE}")
    terminal(f"kubectl wait pdd/small --namespace {own} --for condition=Reconciled --timeout 30s")

    def made() -> set[str]:
        return {item.partition(".")[0] for item in of_namespace(installed, own) - before}

    wait_until(lambda: set(KINDS.split()) <= made(), "every kind of object", 15, lambda: str(made()))
    terminal(f"kubectl delete pdd/small --namespace {own} --timeout 20s")
    wait_until(lambda: of_namespace(installed, own) == before, "the namespace as it was", 40)


@pytest.mark.budget(NAMESPACE_SECONDS)
def test_a_namespace_goes_with_a_deployment_in_it(installed: Kubectl, terminal: Terminal, own: str) -> None:
    """kubectl delete namespace under a deployment whose requests are short: it is gone within a minute, and the operator has no complaint."""
    sample = yaml.safe_load((ROOT / SAMPLE).read_text())
    sample["spec"]["router"]["limits"] = {
        "requestTimeoutSeconds": 1
    }  # Kubernetes waits for half of that, see the guide
    installed("--namespace", own, "apply", "--filename", "-", stdin=json.dumps(sample))
    terminal(f"kubectl wait pdd/small --namespace {own} --for condition=Reconciled --timeout 30s")
    before = moment(installed)
    terminal(f"kubectl delete namespace {own} --timeout {NAMESPACE_SECONDS:.0f}s")
    assert not of_namespace(installed, own)
    assert complaints(installed, product_pods(installed), before.time) == []


@pytest.fixture
def sample_again(release: Release, small: LiveDeployment) -> Iterator[None]:
    """Release and sample are there when the test is through; whoever keeps the deployment gets it Ready."""
    yield
    release.install()
    if not small.kubectl("get", "pdd", "small", "--namespace", small.namespace, "--ignore-not-found"):
        new_tenant(small)
        apply_sample(small.kubectl, small.namespace, "cpu.yaml")
    if os.environ.get("PDD_E2E_KEEP"):
        small.wait("Ready", timeout_seconds=READY_SECONDS)


def new_tenant(small: LiveDeployment) -> None:
    clear_tenant(small.kubectl, small.namespace)  # volumes remember the claims of a namespace that is gone
    make_tenant(small.kubectl, small.namespace)


def left_in_tenant(small: LiveDeployment) -> set[str]:
    """What is in its namespace that is not in every one."""
    return {item for item in of_namespace(small.kubectl, small.namespace) if not item.endswith(COMMON)}


# The API server asks for patience while a definition is new.
@pytest.mark.may_log(r"Request attempt #\d+/\d+ failed; will retry: GET .*status=429\)")
@pytest.mark.budget(WAY_OUT_SECONDS)
@pytest.mark.usefixtures("sample_again")
def test_everything_goes_in_the_guides_words_and_comes_again(
    small: LiveDeployment, release: Release, terminal: Terminal
) -> None:
    """docs/install.md, Uninstall, word by word: nothing of the product is left in the cluster; its first block again: it operates.

    What a user would put into that block, the registry in place of REGISTRY and the tags of the images, is given after it: the last one counts.
    """
    delete, uninstall, forget = guide_blocks("Uninstall")
    terminal(delete)
    volumes = {f"PersistentVolumeClaim.v1 {small.namespace}/{name}" for name in ("model", "vllm")}
    wait_until(lambda: left_in_tenant(small) == volumes, "volumes alone", 60, lambda: str(left_in_tenant(small)))
    assert "uninstalled" in terminal(uninstall)
    only_the_definition(small)
    terminal(forget)
    gone = (f"namespace/{SYSTEM}", f"namespace/{small.namespace}")
    small.kubectl("wait", "--for=delete", *gone, "--timeout=60s", timeout_seconds=70)
    assert of_release(of_cluster(small.kubectl)) == []

    install, waiting = guide_blocks("2. The operator")[0].splitlines()
    said = terminal(f"{install} {' '.join(release.values)}\n{waiting}")
    assert "runs PDDeployments in every namespace" in said
    new_tenant(small)
    apply_sample(small.kubectl, small.namespace, "cpu.yaml")
    small.wait("Accepted", timeout_seconds=15)
    wait_until(lambda: len(small.pods("prefill")) == len(small.pods("decode")) == 1, "engines", 15)
