"""What counts as drift: what was rendered, and nothing else."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd_operator.drift import first_drift

SET: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "a", "labels": {"x": "1"}, "ownerReferences": [{"uid": "u", "controller": True}]},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "automountServiceAccountToken": False,
                "initContainers": [{"name": "first"}, {"name": "second"}],
                "containers": [
                    {
                        "name": "engine",
                        "args": ["a", "b"],
                        "env": [{"name": "X", "value": "$(Y)"}],
                        "ports": [{"containerPort": 8000, "name": "http"}],
                        "resources": {"requests": {"cpu": "500m", "memory": "1024Mi"}},
                        "volumeMounts": [{"mountPath": "/cache", "name": "tmp"}],
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
                "tolerations": [],
            }
        },
    },
}


def pod(live: dict[str, Any]) -> Any:
    return live["spec"]["template"]["spec"]


def engine(live: dict[str, Any]) -> Any:
    return pod(live)["containers"][0]


def with_foreign_fields() -> dict[str, Any]:
    """As an API server gives it, after others have added to it."""
    live = deepcopy(SET)
    live["metadata"] |= {"uid": "s", "annotations": {"mine": "yes"}}
    live["metadata"]["labels"]["y"] = "2"
    live["metadata"]["ownerReferences"].insert(0, {"uid": "other"})
    live["status"] = {"replicas": 1}
    del pod(live)["tolerations"]
    pod(live)["containers"].insert(0, {"name": "sidecar"})
    engine_ = pod(live)["containers"][1]
    engine_["env"].insert(0, {"name": "FOREIGN", "value": "1"})
    engine_["ports"][0]["protocol"] = "TCP"
    engine_["imagePullPolicy"] = "Always"
    engine_["resources"]["requests"] = {"cpu": "0.5", "memory": "1Gi"}
    engine_["volumeMounts"].append({"mountPath": "/x", "name": "x"})
    pod(live)["volumes"].append({"name": "x", "emptyDir": {}})
    return live


def test_foreign_fields_and_defaults_and_other_spellings_are_no_drift() -> None:
    assert first_drift(SET, with_foreign_fields()) is None


CHANGES = {
    "spec.replicas": lambda live: live["spec"].update(replicas=3),
    "metadata.labels.x": lambda live: live["metadata"]["labels"].pop("x"),
    "metadata.ownerReferences.u": lambda live: live["metadata"]["ownerReferences"].clear(),
    "spec.template.spec.automountServiceAccountToken": lambda live: pod(live).pop("automountServiceAccountToken"),
    "spec.template.spec.initContainers.first": lambda live: pod(live)["initContainers"].pop(0),
    "spec.template.spec.initContainers.second": lambda live: pod(live)["initContainers"].reverse(),
    "spec.template.spec.containers.engine": lambda live: pod(live)["containers"].clear(),
    "spec.template.spec.containers.engine.args": lambda live: engine(live)["args"].append("c"),
    "spec.template.spec.containers.engine.args.1": lambda live: engine(live).update(args=["a", "c"]),
    "spec.template.spec.containers.engine.env.X.value": lambda live: engine(live)["env"][0].update(value="z"),
    "spec.template.spec.containers.engine.ports.8000/TCP": lambda live: engine(live)["ports"][0].update(protocol="UDP"),
    "spec.template.spec.containers.engine.resources.requests.cpu": lambda live: engine(live)["resources"][
        "requests"
    ].update(cpu="0.6"),
    "spec.template.spec.containers.engine.volumeMounts./cache.name": lambda live: engine(live)["volumeMounts"][
        0
    ].update(name="y"),
    "spec.template.spec.volumes.tmp.emptyDir": lambda live: pod(live).update(
        volumes=[{"name": "tmp", "configMap": {"name": "evil"}}]
    ),
}


@pytest.mark.parametrize("path", CHANGES)
def test_every_change_of_a_rendered_field_is_drift(path: str) -> None:
    live = deepcopy(SET)
    CHANGES[path](live)
    assert first_drift(SET, live) == path


def test_lists_without_keys_must_be_equal() -> None:
    rule = {"spec": {"ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 8000, "protocol": "TCP"}]}]}}
    live = deepcopy(rule)
    assert first_drift(rule, live) is None
    live["spec"]["ingress"][0]["ports"].append({"port": 22, "protocol": "TCP"})
    assert first_drift(rule, live) == "spec.ingress.0.ports"
    live = deepcopy(rule)
    live["spec"]["ingress"].append({})
    assert first_drift(rule, live) == "spec.ingress", "an added rule opens the engines to everybody"


@pytest.mark.parametrize("field", ["selector", "nodeSelector", "podSelector", "matchLabels"])
def test_what_is_added_to_a_selector_is_drift(field: str) -> None:
    desired = {"spec": {field: {"pdserve.io/deployment": "a"}}}
    live = {"spec": {field: {"pdserve.io/deployment": "a", "app": "elsewhere"}}}
    assert first_drift(desired, live) == f"spec.{field}.app"
    assert first_drift(desired, desired) is None


def test_true_is_not_one() -> None:
    assert first_drift({"a": True}, {"a": 1}) == "a"


@pytest.mark.parametrize(
    "items",
    [[None], [1, "a"], [{"name": ["unhashable"]}], [{"name": "same", "value": "1"}, {"name": "same", "value": "2"}]],
)
def test_a_list_without_proper_keys_is_compared_by_position(items: list[Any]) -> None:
    manifest = {"spec": {"env": items}}
    assert first_drift(manifest, manifest) is None
    assert first_drift(manifest, {"spec": {"env": [*items, {"name": "more"}]}}) == "spec.env"
    assert first_drift({"spec": {"env": [{"name": "a"}]}}, manifest) == "spec.env.a"


_FIELD = st.text(max_size=5) | st.sampled_from(["env", "ports", "volumes", "name", "containerPort", "cpu"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_FIELD, inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(_FIELD, _JSON, max_size=4))
def test_an_object_does_not_differ_from_itself(manifest: dict[str, Any]) -> None:
    assert first_drift(manifest, deepcopy(manifest)) is None
