"""What is said of a PDDeployment: from objects as a cluster shows them, and a status as the operator writes it."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from observed_world import CURRENT, NOW, OLD, all_children, all_pods, deployment_object, observed, parsed, pod
from rich.console import Console

from pdd_cli.status.report import Mark, Report, report_of
from pdd_cli.status.table import age, curl_lines, print_report, report_json
from pdd_operator.api.labels import Component
from pdd_operator.api.objects import Manifest
from pdd_operator.observe.outcome import ReconcileOutcome, RolloutPlan
from pdd_operator.observe.status import compute_status
from pdd_operator.render.inputs import Replicas

WANTED = {Component.PREFILL: 2, Component.DECODE: 2}
PLAN = RolloutPlan(Replicas(2, 2), wanted=WANTED, available=True)


def world(pods: list[Manifest] | None = None, spec: dict[str, Any] | None = None, **status: Any) -> Report:
    """Two engines per role and two routers, as the operator sees them; ``pods`` in place of these."""
    found = all_pods() if pods is None else pods
    deployment = deployment_object(spec)
    seen = observed(deployment, all_children(), found)
    outcome = ReconcileOutcome(revision=CURRENT, rollout=PLAN)
    written = compute_status(seen, outcome, parsed(deployment)) | status
    return report_of(deployment | {"status": written}, found, NOW + timedelta(minutes=4))


def text_of(report: Report, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width, no_color=True)
    print_report(console, report)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]  # it is the StringIO


def row(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if line[2:].startswith(word))


def test_all_is_well() -> None:
    report = world()
    assert report.ready
    assert not report.rolling_out
    assert {line.mark for line in report.conditions if line.type != "ReuseActive"} == {Mark.PASS}
    text = text_of(report)
    assert text.splitlines()[0] == "✓ agents/glm is ready  model zai-org/GLM-5-FP8  revision c0ffee"
    assert row(text, "Ready").split() == ["✓", "Ready", "True", "AllAvailable", "4m"]
    assert "prefill 2 of 2 ready" in text
    assert "Engines use EFA (LIBFABRIC, provider efa), 16 devices per pod." in text
    assert "revisions No rollout." in text


def test_a_pod_that_does_not_fit_says_why_and_what_to_do() -> None:
    unscheduled = {"status": "False", "message": "0/3 nodes are available: 3 Insufficient vpc.amazonaws.com/efa."}
    pods = all_pods()
    pods[2:4] = [
        pod(Component.DECODE, number, ready=False, scheduled=unscheduled, init=[], phase="Pending") for number in (0, 1)
    ]
    report = world(pods)
    assert not report.ready
    decode = next(role for role in report.roles if role.role == "decode")
    assert (decode.ready, decode.wanted) == (0, 2)
    assert {line.reason for line in decode.pods} == {"Unschedulable"}
    text = text_of(report, width=300)
    assert text.startswith("✗ agents/glm is not ready")
    assert row(text, "DecodeAvailable").split()[:4] == ["✗", "DecodeAvailable", "False", "Unschedulable"]
    assert "→ The message names the missing resource, the field that asks for it and the nodes to add." in text
    assert "✗ glm-decode-c0ffee-0 Unschedulable" in text
    # Ready repeats the condition that it follows from: once is enough.
    assert text.count("0 of 2 decode pods are ready.") == 1
    assert text.count("→ The message names the missing resource") == 1
    assert "`spec.decode.accelerator` asks for 16 EFA devices of p5en.48xlarge per pod" in text


def test_what_is_on_its_way_is_no_fault() -> None:
    pods = all_pods()
    pods[0] = pod(Component.PREFILL, 0, ready=False)
    pods[1] = pod(Component.PREFILL, 1, ready=False)
    report = world(pods)
    assert not report.ready
    assert "! glm-prefill-c0ffee-0 ModelLoading" in text_of(report)
    assert row(text_of(report), "PrefillAvailable").startswith("! ")


def test_a_router_that_waits_for_decode_is_no_fault_and_one_that_has_some_is() -> None:
    silent = {"ready": False, "started": True}
    routers = [pod(Component.ROUTER, number, ready=False, container=silent) for number in (0, 1)]
    others = [found for found in all_pods() if found["metadata"]["labels"]["pdserve.io/role"] != "router"]
    assert {line.reason for line in world([*others, *routers]).roles[2].pods} == {"NotAnswering"}
    loading = [pod(Component.DECODE, number, ready=False) for number in (0, 1)]
    report = world([*loading, *routers])
    assert {(line.mark, line.reason) for line in report.roles[2].pods} == {(Mark.WARN, "InsufficientReplicas")}
    assert row(text_of(report), "RouterAvailable").startswith("! ")


def test_a_pod_that_ends_is_not_ready() -> None:
    pods = all_pods()
    pods[0] = pod(Component.PREFILL, 0, terminating=True)
    line = next(line for role in world(pods).roles for line in role.pods if line.name == "glm-prefill-c0ffee-0")
    assert (line.ready, line.reason) == (False, "Ending")


def test_a_status_of_an_older_generation_is_not_believed() -> None:
    report = world(observedGeneration=2)
    assert not report.ready
    assert "has looked at generation 2 of this object, which is at generation 3" in text_of(report, width=200)
    assert json.loads(report_json(report))["ready"] is False


def test_an_object_that_no_operator_has_seen() -> None:
    report = report_of(deployment_object(), [], NOW)
    assert not report.ready
    text = text_of(report, width=200)
    assert "The operator has not looked at this object, which is at generation 3" in text
    assert "pdd doctor" in text
    assert "prefill 0 of 2 ready" in text  # from the spec
    assert "router 0 of 2 ready" in text  # the default
    assert "endpoint none yet" in text


def test_a_rollout_shows_both_groups() -> None:
    groups = [
        {"revision": OLD, "prefillReady": 2, "decodeReady": 2, "current": False, "wasAvailable": True},
        {"revision": CURRENT, "prefillReady": 1, "decodeReady": 0, "current": True, "wasAvailable": False},
    ]
    report = world(groups=groups)
    assert report.rolling_out
    text = text_of(report)
    assert "  0ddba1  older: 2 prefill and 2 decode ready" in text
    assert "  c0ffee  current, never was available yet: 1 prefill and 0 decode ready" in text


def test_the_spec_that_breaks_rules_is_shown_all_the_same() -> None:
    broken = deployment_object({"engine": {"blockSize": 17}})
    report = report_of(broken, [pod(Component.PREFILL, 0, ready=False)], NOW)
    assert [line.reason for line in report.roles[0].pods] == ["ModelLoading"]


MARKS = [
    ("Ready", "True", "AllAvailable", Mark.PASS),
    ("Ready", "False", "CrashLooping", Mark.FAIL),
    ("Ready", "Unknown", "RollingOut", Mark.WARN),
    ("PrefillAvailable", "True", "MinimumReady", Mark.WARN),
    ("PrefillAvailable", "False", "ScaledToZero", Mark.WARN),
    ("TransportReady", "True", "SocketFallback", Mark.WARN),
    ("TransportReady", "True", "Socket", Mark.PASS),
    ("TransportReady", "False", "FabricUnavailable", Mark.FAIL),
    ("ReuseActive", "False", "AllEmpty", Mark.WARN),
    ("ReuseActive", "True", "BytesMoved", Mark.PASS),
    ("Stalled", "True", "ProgressDeadlineExceeded", Mark.FAIL),
    ("Stalled", "False", "Progressing", Mark.PASS),
    ("Accepted", "False", "ReasonOfALaterRelease", Mark.FAIL),
]


@pytest.mark.parametrize(("kind", "status", "reason", "mark"), MARKS)
def test_marks(kind: str, status: str, reason: str, mark: Mark) -> None:
    told = {"type": kind, "status": status, "reason": reason, "message": "why", "lastTransitionTime": "odd"}
    (line,) = world(conditions=[told]).conditions
    assert line.mark is mark
    assert line.since_seconds is None
    assert mark is not Mark.PASS or not line.remedy


def test_reuse_has_its_numbers_and_why_not() -> None:
    for status, reason, message in (
        ("True", "BytesMoved", "4.1 GiB read from decode, 91 % of prompt tokens"),
        ("False", "AllEmpty", "12 of 12 claims were empty"),
    ):
        told = {"type": "ReuseActive", "status": status, "reason": reason, "message": message}
        assert message in text_of(world(conditions=[told]))


def test_curl_and_keys() -> None:
    forward, curl = curl_lines(world(), " --context prod")
    assert forward == "kubectl --context prod --namespace agents port-forward service/glm-router 8000:8000 &"
    assert '"model": "zai-org/GLM-5-FP8"' in curl
    assert "Authorization" not in curl
    spec = {
        "model": {"servedName": "it's"},
        "router": {"authentication": {"apiKeysSecretName": "k"}, "service": {"port": 80}},
    }
    forward, curl = curl_lines(world(spec=spec), "")
    assert forward.endswith("8000:80 &")
    assert "it'\\''s" in curl
    assert '-H "Authorization: Bearer $PDD_API_KEY"' in curl


def test_lines_to_copy_are_not_wrapped() -> None:
    curl = curl_lines(world(), "")[1]
    assert f"  {curl}" in text_of(world(), width=60).splitlines()


def test_json_is_complete_and_in_the_words_of_the_api() -> None:
    report = world()
    data = json.loads(report_json(report))
    assert data["ready"] is True
    assert data["observedGeneration"] == 3
    assert data["conditions"][0] == {
        "type": "Ready", "status": "True", "reason": "AllAvailable", "message": report.conditions[0].message,
        "sinceSeconds": 240, "mark": "Pass", "remedy": "",
    }  # fmt: skip
    assert data["roles"][0]["pods"][0]["name"] == "glm-prefill-c0ffee-0"
    assert "\n" not in report_json(report, indent=None)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(None, ""), (0, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (86_400, "1d"), (10**7, "115d")],
)
def test_age(seconds: int | None, told: str) -> None:
    assert age(seconds) == told


def test_json_holds_no_orders_to_a_terminal() -> None:
    report = world(endpoint="a\x1b[2J\x9b2J\x7f\x85b")
    text = report_json(report)
    assert not [character for character in text if ord(character) < 0x20 and character != "\n"]
    assert not [character for character in text if 0x7F <= ord(character) < 0xA0]
    assert json.loads(text)["endpoint"] == report.endpoint
