"""Why a pod is not ready: what stays the same while nothing changes, and statuses that are odd."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_world import deployment_object, parsed, pod, preflight_status

from pdd_operator.api.labels import Component
from pdd_operator.observe.pods import Preflight, explain_pod, preflight_of
from pdd_operator.observe.reasons import Reason
from pdd_operator.observe.scheduling import PodContext

SPEC: dict[str, Any] = {
    "engine": {
        "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "id"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "tuning", "key": "b"}}},
        ]
    },
    "router": {"authentication": {"apiKeysSecretName": "keys"}},
}


def trouble(component: Component = Component.PREFILL, **worse: Any) -> tuple[Reason, str]:
    found = explain_pod(
        PodContext(pod(component, **{"ready": False, **worse}), component, parsed(deployment_object(SPEC)).spec)
    )
    assert found is not None
    return found.reason, found.message


def config_error(message: str, component: Component = Component.PREFILL) -> str:
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": message}}
    reason, text = trouble(component, container={"state": waiting})
    assert reason is Reason.CONTAINER_CONFIG_INVALID
    return text


def test_a_ready_pod_has_no_trouble() -> None:
    assert explain_pod(PodContext(pod(Component.PREFILL), Component.PREFILL, None)) is None


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (
            'secret "hf-token" not found',
            "`spec.model.source.huggingFace.tokenSecretName` names it: create Secret hf-token",
        ),
        ('secret "s3" not found', "`spec.engine.env[0].valueFrom.secretKeyRef`"),
        ('configmap "tuning" not found', "`spec.engine.env[1].valueFrom.configMapKeyRef`"),
        ("couldn't find key token in Secret agents/hf-token", "create key token of Secret hf-token"),
        ('secret "glm-claim-c0ffee" not found', "The operator makes Secret glm-claim-c0ffee"),
        ("couldn't find key key in Secret agents/glm-claim-c0ffee", "delete the Secret, and a new one is made"),
        ('secret "mine" not found', "take it out of `spec.prefill.podTemplate`"),
    ],
)
def test_a_missing_reference_names_its_field(message: str, part: str) -> None:
    assert part in config_error(message)


def test_the_router_s_secrets() -> None:
    assert "apiKeysSecretName" in config_error('secret "keys" not found', Component.ROUTER)
    assert "operator makes" in config_error('secret "glm-tenant-salt" not found', Component.ROUTER)


@pytest.mark.parametrize(
    ("reason", "message", "part"),
    [
        ("ErrImagePull", "manifest unknown", "does not have it"),
        ("ImagePullBackOff", "Back-off: unauthorized", "`spec.engine.imagePullSecretNames`"),
        ("InvalidImageName", "", "is not valid"),
        ("ErrImageNeverPull", "", "imagePullPolicy"),
        ("ImagePullBackOff", "dial tcp: timeout", "reach the registry"),
    ],
)
def test_images(reason: str, message: str, part: str) -> None:
    found, text = trouble(container={"state": {"waiting": {"reason": reason, "message": message}}})
    assert found is Reason.IMAGE_PULL_FAILED
    assert part in text


def test_the_image_of_the_connector_is_the_operator_s() -> None:
    init = [{"name": "connector", "image": "c:1", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    assert "operator's settings" in trouble(init=init)[1]


def crashed(restarts: int, **state: Any) -> dict[str, Any]:
    last = {"terminated": {"exitCode": 1, "reason": "Error", "message": "no device"}}
    return {"restartCount": restarts, "lastState": last, "state": state or {"running": {}}}


def test_a_loop_is_told_alike_while_it_runs_and_while_it_waits() -> None:
    running = trouble(container=crashed(2))
    assert running == trouble(container=crashed(17, waiting={"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}))
    assert running[0] is Reason.CRASH_LOOPING


def test_last_words_give_no_orders_to_a_terminal() -> None:
    last = {"terminated": {"exitCode": 1, "message": "no \x1b[31mdevice\x9b2J"}}
    said = trouble(container={"restartCount": 2, "lastState": last, "state": {"running": {}}})[1]
    assert r"it said: no \x1b[31mdevice\x9b2J" in said


def test_an_engine_that_ended_once_may_load_again() -> None:
    assert trouble(container=crashed(1))[0] is Reason.MODEL_LOADING


def test_memory_is_told_while_it_runs_again() -> None:
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    assert trouble(container={"restartCount": 1, "lastState": last})[0] is Reason.OUT_OF_MEMORY


def test_preflight_is_told_while_it_is_tried_again() -> None:
    said = preflight_status("", "NoPlugin", "use another image")
    again = {**said, "state": {"running": {}}, "lastState": said["state"], "restartCount": 4}
    assert trouble(init=[again]) == trouble(init=[said])
    assert preflight_of(pod(Component.PREFILL, init=[again])) == Preflight("", "NoPlugin", "use another image")


@pytest.mark.parametrize("message", ["", "Killed", "[]", "3", "{", '{"transport": "EFA"', "null"])
def test_preflight_that_left_no_json(message: str) -> None:
    state = {"terminated": {"exitCode": 1, "message": message}}
    found = pod(Component.PREFILL, ready=False, init=[{"name": "preflight", "state": state}])
    assert preflight_of(found) is None
    context = PodContext(found, Component.PREFILL, None)
    assert (result := explain_pod(context)) is not None
    assert result.reason is Reason.INIT_FAILED


def test_preflight_s_words_are_bounded() -> None:
    said = preflight_of(pod(Component.PREFILL, init=[preflight_status("", "R" * 900, "m" * 9000)]))
    assert said is not None
    assert (len(said.reason), len(said.message)) == (64, 512)


STATE = st.dictionaries(
    st.sampled_from(["waiting", "running", "terminated"]),
    st.dictionaries(
        st.sampled_from(["reason", "message", "exitCode"]), st.text(max_size=9) | st.integers(), max_size=3
    ),
    max_size=2,
)
STATUS = st.fixed_dictionaries(
    {"name": st.sampled_from(["engine", "preflight", "connector", "x"])},
    optional={
        "state": STATE,
        "lastState": STATE,
        "ready": st.booleans(),
        "started": st.booleans(),
        "restartCount": st.integers(0, 5),
    },
)


@given(
    st.lists(STATUS, max_size=3),
    st.lists(STATUS, max_size=2),
    st.sampled_from(["Pending", "Running", "Failed", "Unknown"]),
)
def test_any_status_that_a_kubelet_may_send_is_answered(init: list[Any], containers: list[Any], phase: str) -> None:
    reason, message = trouble(init=init, containerStatuses=containers, phase=phase)
    assert reason in Reason
    assert "glm-prefill-c0ffee-0" in message


def test_a_pod_without_any_status_is_starting() -> None:
    found = pod(Component.PREFILL)
    del found["status"]
    assert (result := explain_pod(PodContext(found, Component.PREFILL, None))) is not None
    assert result.reason is Reason.CONTAINER_STARTING
