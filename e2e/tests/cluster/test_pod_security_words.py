"""The API server's refusals and the page's table are read into the same words."""

import pytest

from pdd_e2e.kind_suite.pod_security import Objection, documented_exceptions, parse_objections, pods_of

REFUSALS = {
    'unrestricted capabilities (containers "preflight", "engine" must not include "IPC_LOCK" in '
    "securityContext.capabilities.add)": {("preflight", "IPC_LOCK"), ("engine", "IPC_LOCK")},
    'privileged (container "engine" must not set securityContext.privileged=true), allowPrivilegeEscalation != false '
    '(container "engine" must set securityContext.allowPrivilegeEscalation=false), runAsUser=0 (container "engine" must not '
    "set runAsUser=0)": {("engine", "privileged"), ("engine", "allowPrivilegeEscalation"), ("engine", "runAsUser")},
    'unrestricted capabilities (container "probe" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true '
    '(pod or container "probe" must set securityContext.runAsNonRoot=true)': {
        ("probe", "drop"),
        ("probe", "runAsNonRoot"),
    },
}


@pytest.mark.parametrize("words", REFUSALS, ids=range(len(REFUSALS)))
def test_a_refusal_names_containers_and_fields(words: str) -> None:
    assert parse_objections(words) == {Objection(*pair) for pair in REFUSALS[words]}


def test_the_page_has_a_row_for_each_setting_and_both_containers() -> None:
    found = documented_exceptions()
    assert found["transport.backend: EFA"] == {Objection(name, "IPC_LOCK") for name in ("preflight", "engine")}
    assert {objection.container for row in found.values() for objection in row} == {"preflight", "engine"}


def test_a_pod_is_made_of_each_template_and_of_nothing_else() -> None:
    template = {"spec": {"containers": [], "serviceAccountName": "engine"}}
    workload = {"kind": "StatefulSet", "metadata": {"name": "a"}, "spec": {"template": template}}
    (pod,) = pods_of([None, workload, {"kind": "Service", "metadata": {"name": "b"}}]).values()
    assert (pod["metadata"], pod["spec"]) == ({"name": "a"}, {"containers": [], "serviceAccountName": "default"})
