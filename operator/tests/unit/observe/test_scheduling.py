"""The scheduler's words, turned into what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_world import CPU_ROLE, deployment_object, parsed, pod

from pdd_operator.api.labels import Component
from pdd_operator.observe.scheduling import PodContext, causes_of, explain_unschedulable

AVAILABLE = "0/3 nodes are available: "
PREEMPTION = " preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."


def context(component: Component = Component.DECODE, requests: dict[str, str] | None = None, **spec: Any) -> PodContext:
    asked = {"vpc.amazonaws.com/efa": "16", "nvidia.com/gpu": "8", "hugepages-2Mi": "5120Mi"} | (requests or {})
    return PodContext(pod(component, requests=asked), component, parsed(deployment_object(spec)).spec)


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (
            "3 Insufficient vpc.amazonaws.com/efa.",
            (
                "`spec.decode.accelerator`",
                "16 EFA devices of p5en.48xlarge",
                "node group",
                "aws-efa-k8s-device-plugin",
                "`pdd doctor`",
            ),
        ),
        (
            "3 Insufficient nvidia.com/gpu.",
            ("8 GPUs of p5en.48xlarge", "NVIDIA device plugin", "`spec.decode.replicas`"),
        ),
        ("3 Insufficient aws.amazon.com/neuron.", ("16 Neuron devices", "Neuron device plugin")),
        ("3 Insufficient hugepages-2Mi.", ("5120Mi of hugepages-2Mi", "vm.nr_hugepages")),
        ("3 Insufficient cpu.", ("`spec.decode.podTemplate.resources.requests`",)),
        ("3 Insufficient example.com/thing.", ("example.com/thing",)),
        (
            "3 node(s) had untolerated taint {aws.amazon.com/efa: , dedicated: x}.",
            ("{aws.amazon.com/efa: , dedicated: x}", "`spec.decode.podTemplate.tolerations`"),
        ),
        ("3 node(s) didn't match Pod's node affinity/selector.", ("p5en.48xlarge", "node.kubernetes.io/instance-type")),
        ("3 node(s) didn't match pod anti-affinity rules.", ("different nodes", "add a node of p5en.48xlarge")),
        ("3 node(s) didn't match pod affinity rules.", ("one zone", "topology.kubernetes.io/zone")),
        ("3 node(s) didn't match pod topology spread constraints.", ("topologySpreadConstraints",)),
        ("3 node(s) had volume node affinity conflict.", ("another zone",)),
        ("pod has unbound immediate PersistentVolumeClaims.", ("`spec.model.source.persistentVolumeClaim.claimName`",)),
        ('persistentvolumeclaim "model" not found.', ("claimName",)),
        ("3 node(s) were unschedulable.", ("uncordon",)),
    ],
)
def test_names_the_field_and_what_to_add(said: str, parts: tuple[str, ...]) -> None:
    text = explain_unschedulable(context(requests={"aws.amazon.com/neuron": "16"}), AVAILABLE + said + PREEMPTION)
    assert "Preemption" not in text
    for part in parts:
        assert part in text


def test_no_nodes_at_all() -> None:
    assert "no node" in explain_unschedulable(context(), "no nodes available to schedule pods")


def test_devices_are_told_before_taints_and_counts_are_left_out() -> None:
    said = AVAILABLE + "2 node(s) had untolerated taint {a: b}, 7 Insufficient vpc.amazonaws.com/efa." + PREEMPTION
    assert causes_of(said) == ["Insufficient vpc.amazonaws.com/efa", "node(s) had untolerated taint {a: b}"]
    other = (
        AVAILABLE.replace("3", "44") + "9 Insufficient vpc.amazonaws.com/efa, 35 node(s) had untolerated taint {a: b}."
    )
    assert explain_unschedulable(context(), said) == explain_unschedulable(context(), other)


def test_the_router_and_a_spec_that_is_not_valid_are_explained_too() -> None:
    said = AVAILABLE + "3 Insufficient memory."
    assert "`spec.router.podTemplate" in explain_unschedulable(context(Component.ROUTER), said)
    without = PodContext(pod(Component.PREFILL), Component.PREFILL, None)
    assert "the instance type that the spec asks for" in explain_unschedulable(
        without, AVAILABLE + "3 Insufficient nvidia.com/gpu."
    )
    assert "the instance type" in explain_unschedulable(context(decode=CPU_ROLE), "no nodes available")


@given(st.text())
def test_any_words_are_answered(said: str) -> None:
    assert explain_unschedulable(context(), said).startswith("No node fits pod glm-decode-c0ffee-0")
    assert explain_unschedulable(context(), AVAILABLE + said).startswith("No node fits pod glm-decode-c0ffee-0")


def test_what_the_scheduler_stutters_is_said_once() -> None:
    said = '0/1 nodes are available: persistentvolumeclaim "modle" not found. not found.' + PREEMPTION
    assert causes_of(said) == ['persistentvolumeclaim "modle" not found']
