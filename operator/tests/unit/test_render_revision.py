"""The revision group: every field of a spec either changes it or does not, and each is named on one side."""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import render_cases as cases
from pydantic import BaseModel

from pdd_operator.api.labels import Component
from pdd_operator.api.objects import Manifest
from pdd_operator.api.placement import Affinity
from pdd_operator.api.v1alpha1 import PDDeployment, Spec
from pdd_operator.render import revision_of
from pdd_operator.render.inputs import Platform
from pdd_operator.render.revision import MAY_DIFFER, MUST_MATCH

TEMPLATE = {
    "labels": {"a": "b"},
    "annotations": {"a": "b"},
    "nodeSelector": {"a": "b"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway"}],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "schedulerName": "other",
    "resources.requests.cpu": "3",
    "resources.requests.memory": "3Gi",
    "resources.limits.cpu": "3",
    "resources.limits.memory": "3Gi",
    "volumes": [{"name": "a", "emptyDir": {}}],
    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
}
ROLE = {
    "replicas": 7,
    "accelerator.instanceType": "p5.48xlarge",
    "accelerator.type": "CPU",
    "accelerator.count": 4,
    "accelerator.efaDevices": 3,
    "tensorParallelSize": 4,
    "autoscaling.minReplicas": 2,
    "autoscaling.maxReplicas": 3,
    "autoscaling.target.metric": "RunningRequests",
    "autoscaling.target.value": "3",
}
CHANGES: dict[str, Any] = {
    "model.name": "other",
    "model.servedName": "other",
    "model.revision": "other",
    "model.source.huggingFace.tokenSecretName": "other",
    "model.source.persistentVolumeClaim.claimName": "other",
    "model.source.persistentVolumeClaim.path": "other",
    "model.source.image.reference": "other",
    "model.source.image.path": "other",
    "model.source.image.pullPolicy": "Always",
    "engine.image": "other",
    "engine.imagePullPolicy": "Always",
    "engine.imagePullSecretNames": ["other"],
    "engine.dtype": "float16",
    "engine.kvCacheDtype": "fp8",
    "engine.maxModelLen": 4096,
    "engine.maxNumSeqs": 4,
    "engine.blockSize": 32,
    "engine.memoryUtilizationPercent": 80,
    "engine.cpuKVCacheGiB": 5,
    "engine.trustRemoteCode": True,
    "engine.extraArgs": ["--other"],
    "engine.env": [{"name": "A", "value": "b"}],
    "engine.startupTimeoutSeconds": 3000,
    "engine.drainTimeoutSeconds": 60,
    **{f"{role}.{path}": value for role in ("prefill", "decode") for path, value in ROLE.items()},
    **{
        f"{owner}.podTemplate.{path}": value
        for owner in ("prefill", "decode", "router")
        for path, value in TEMPLATE.items()
    },
    "transport.backend": "Socket",
    "transport.fallback": "Socket",
    "transport.privileges": "Privileged",
    "transport.interface": "ens5",
    "kvTransfer.direction": "PrefillToDecode",
    "kvTransfer.mechanism": "Retain",
    "kvTransfer.recomputeThresholdTokens": 65,
    "kvTransfer.readTimeoutMilliseconds": 1000,
    "kvTransfer.claim.timeoutMilliseconds": 100,
    "kvTransfer.claim.holdSeconds": 16,
    "kvTransfer.claim.maxOwnersAsked": 4,
    "kvTransfer.claim.maxPercentOfBlocks": 40,
    "kvTransfer.retain.decoderBlocksTTLSeconds": 500,
    "kvTransfer.retain.leaseSeconds": 200,
    "kvTransfer.retain.maxPercentOfBlocks": 20,
    "rollout.strategy": "InPlace",
    "rollout.progressDeadlineSeconds": 8000,
    "router.replicas": 3,
    "router.image": "other",
    "router.imagePullPolicy": "Always",
    "router.imagePullSecretNames": ["other"],
    "router.conversationTTLSeconds": 300,
    "router.onPrefillFailure": "Fail",
    "router.runOnDecodeBelowTokens": 5,
    "router.authentication.apiKeysSecretName": "other",
    "router.limits.maxBodyBytes": 1 << 20,
    "router.limits.maxConcurrentRequests": 5,
    "router.limits.requestTimeoutSeconds": 5,
    "router.service.type": "NodePort",
    "router.service.port": 80,
    "router.service.annotations": {"a": "b"},
    "router.logLevel": "debug",
    "tenancy.cacheIsolation": "Shared",
    "monitoring.podMonitor": "Never",
    "monitoring.dashboards": "Never",
    "networkPolicy.mode": "Disabled",
}
"""A changed value of every field; a new field must be added here, and to one side in ``revision``."""

# What a part of the spec must have beside the changed field to be a part at all.
COMPANIONS: dict[str, dict[str, Any]] = {
    "autoscaling": {"maxReplicas": 2, "target": {"metric": "CPUUtilization", "value": "50"}},
    "persistentVolumeClaim": {"claimName": "weights"},
    "image": {"reference": "registry.example.com/model:1"},
}


def fields_of(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Paths of all leaves, in the API's spelling."""
    for name, field in section.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner = _section(field.annotation)
        if inner is None or inner is Affinity:  # passed on as one
            yield path
        else:
            yield from fields_of(inner, f"{path}.")


def _section(annotation: Any) -> type[BaseModel] | None:
    """The nested model, also of ``X | None``."""
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    found = [item for item in options if isinstance(item, type) and issubclass(item, BaseModel)]
    return found[0] if found else None


def below(path: str, entries: tuple[str, ...]) -> bool:
    return any(path == entry or path.startswith(f"{entry}.") for entry in entries)


def with_companions(path: str) -> dict[str, Any]:
    """A spec in which the optional section around ``path`` exists, unchanged otherwise."""
    spec = cases.deployment().spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    parts = path.split(".")
    for index, part in enumerate(parts[:-1]):
        if part in COMPANIONS and parts[:1] != ["engine"]:
            _at(spec, parts[:index])[part] = copy.deepcopy(COMPANIONS[part])
    if path.startswith("model.source."):
        _at(spec, parts[:3])
    return spec


def _at(data: dict[str, Any], parts: list[str]) -> dict[str, Any]:
    for part in parts:
        data = data.setdefault(part, {})
    return data


def changed(path: str, value: Any) -> tuple[PDDeployment, PDDeployment]:
    """Before and after."""
    before = with_companions(path)
    after = with_companions(path)
    *section, leaf = path.split(".")
    _at(after, section)[leaf] = value
    return tuple(cases.parsed({"metadata": {"name": "chat"}, "spec": spec}) for spec in (before, after))  # type: ignore[return-value]  # two in, two out


def test_every_field_is_on_exactly_one_side() -> None:
    for path in fields_of(Spec):
        assert below(path, MUST_MATCH) != below(path, MAY_DIFFER), path


def test_every_entry_names_a_field() -> None:
    paths = list(fields_of(Spec))
    for entry in (*MUST_MATCH, *MAY_DIFFER):
        assert any(below(path, (entry,)) for path in paths), entry


def test_every_field_has_a_change_to_try() -> None:
    assert set(CHANGES) == set(fields_of(Spec))


@pytest.mark.parametrize("path", CHANGES)
def test_the_group_changes_exactly_with_what_must_match(path: str) -> None:
    before, after = changed(path, CHANGES[path])
    assert before != after
    same = revision_of(before, cases.SETTINGS) == revision_of(after, cases.SETTINGS)
    assert same == below(path, MAY_DIFFER)


def test_default_images_count_where_none_is_named() -> None:
    images = cases.SETTINGS.images
    target = cases.deployment()
    named = cases.deployment(engine={"image": images.engine[Platform.GPU]})
    assert revision_of(target, cases.SETTINGS) == revision_of(named, cases.SETTINGS)
    other_engine = replace(images, engine={**images.engine, Platform.GPU: "other"})
    for changed_images, differs in (
        (replace(images, connector="other"), True),
        (other_engine, True),
        (replace(images, router="other"), False),
        (replace(images, engine={**images.engine, Platform.CPU: "other"}), False),
    ):
        revision = revision_of(target, replace(cases.SETTINGS, images=changed_images))
        assert (revision != revision_of(target, cases.SETTINGS)) == differs
    pinned = revision_of(named, replace(cases.SETTINGS, images=other_engine))
    assert pinned == revision_of(named, cases.SETTINGS)


def test_defaults_written_out_are_the_same_group() -> None:
    """What the API server fills in must not differ from what a person left out."""
    target = cases.deployment()
    whole = target.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    filled = cases.parsed({"metadata": {"name": "chat", "namespace": "agents"}, "spec": whole})
    assert revision_of(filled, cases.SETTINGS) == revision_of(target, cases.SETTINGS)
    assert cases.rendered(filled) == cases.rendered(target)


ROUTER_ONLY = [path for path in CHANGES if path.split(".")[0] in {"router", "tenancy", "rollout"}]


@pytest.mark.parametrize("path", ROUTER_ONLY)
def test_changing_only_the_router_touches_no_engine(path: str) -> None:
    before, after = (_engine_objects(target) for target in changed(path, CHANGES[path]))
    assert before == after


def test_changing_an_engine_is_noticed_by_the_same_comparison() -> None:
    before, after = (_engine_objects(target) for target in changed("engine.dtype", "float16"))
    assert before != after


def _engine_objects(target: PDDeployment) -> Mapping[tuple[str, str], Manifest]:
    router = f"{target.metadata.name}-{Component.ROUTER}"
    return {
        (item["kind"], item["metadata"]["name"]): item
        for item in cases.rendered(target).manifests
        if item["metadata"]["name"] != router
    }
