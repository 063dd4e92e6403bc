"""Faults for PDDeployments, one at a time: from the schema, whatever breaks one bound of one field, and from a list what rules forbid.

Each is a change of a valid specification in which every field is set, so that any field can be spoiled alone.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from crd import base, crd, merged, schema_of, walk

Path = tuple[str, ...]

_MAP_KEY = "some-key"


@dataclass(frozen=True)
class Fault:
    """`field`: the path that a refusal must name."""

    title: str
    field: str
    spec: dict[str, Any]


_NODES = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["x"]}]}
_SELECTOR = {"matchLabels": {"team": "search"}, **_NODES}
_PODS = {
    "topologyKey": "zone",
    "labelSelector": _SELECTOR,
    "namespaces": ["x"],
    "namespaceSelector": _SELECTOR,
    "matchLabelKeys": ["team"],
    "mismatchLabelKeys": ["other"],
}
_POD_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": [_PODS],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": _PODS}],
}
_AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_NODES]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": _NODES}],
    },
    "podAffinity": _POD_AFFINITY,
    "podAntiAffinity": _POD_AFFINITY,
}
_SPREAD = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": _SELECTOR,
    "minDomains": 2,
    "nodeAffinityPolicy": "Honor",
    "nodeTaintsPolicy": "Ignore",
    "matchLabelKeys": ["team"],
}
_KEYS_TO_PATHS = [{"key": "x", "path": "x", "mode": 0}]
_OBJECT = {"name": "x", "items": _KEYS_TO_PATHS, "optional": True}
_POD_FILES = [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0}]
_CONTAINER_FILES = [{"path": "x", "resourceFieldRef": {"containerName": "engine", "resource": "limits.cpu"}}]
_CLAIM_SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "x"}
VOLUMES: dict[str, Any] = {
    "configMap": _OBJECT | {"defaultMode": 0},
    "csi": {
        "driver": "x",
        "fsType": "ext4",
        "readOnly": True,
        "volumeAttributes": {"x": "y"},
        "nodePublishSecretRef": {"name": "x"},
    },
    "downwardAPI": {"items": _POD_FILES, "defaultMode": 0},
    "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"},
    "ephemeral": {
        "volumeClaimTemplate": {
            "metadata": {"labels": {"x": "y"}, "annotations": {"x": "y"}},
            "spec": _CLAIM_SPEC,
        },
    },
    "persistentVolumeClaim": {"claimName": "x", "readOnly": True},
    "projected": {"sources": [{"configMap": _OBJECT}], "defaultMode": 0},
    "secret": {"secretName": "x", "items": _KEYS_TO_PATHS, "defaultMode": 0, "optional": True},
}
"""A volume of each kind, with every field set but those that exclude one another."""
_TEMPLATE: dict[str, Any] = {
    "labels": {"team": "search"},
    "annotations": {"note": "x"},
    "nodeSelector": {"pool": "x"},
    "tolerations": [
        {"key": "x", "operator": "Equal", "value": "y", "effect": "NoExecute", "tolerationSeconds": 60},
    ],
    "affinity": _AFFINITY,
    "topologySpreadConstraints": [_SPREAD],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "schedulerName": "other",
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
    "volumes": [{"name": "data", "emptyDir": VOLUMES["emptyDir"]}],
    "volumeMounts": [
        {"name": "data", "mountPath": "/data", "subPath": "x", "readOnly": True, "mountPropagation": "None"}
    ],
}
_ROLE: dict[str, Any] = {
    "replicas": 1,
    "accelerator": {"efaDevices": 8},
    "autoscaling": {"minReplicas": 1, "maxReplicas": 2, "target": {"metric": "RunningRequests", "value": "8"}},
    "podTemplate": _TEMPLATE,
}


def full() -> dict[str, Any]:
    """A valid specification with every field set, but for those that exclude one another."""
    secret = {"secretKeyRef": {"name": "x", "key": "y"}}
    spec: dict[str, Any] = merged(
        base("gpu"),
        {
            "model": {"servedName": "qwen", "revision": "main", "source": {"huggingFace": {"tokenSecretName": "hf"}}},
            "engine": {
                "image": "vllm:1",
                "imagePullSecretNames": ["pull"],
                "maxModelLen": 8192,
                "maxNumSeqs": 8,
                "extraArgs": ["--enforce-eager"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": secret}],
            },
            "prefill": _ROLE,
            "decode": _ROLE,
            "router": {
                "image": "router:1",
                "imagePullSecretNames": ["pull"],
                "authentication": {"apiKeysSecretName": "keys"},
                "service": {"annotations": {"note": "x"}},
                "podTemplate": _TEMPLATE,
            },
        },
    )
    return spec


_OTHER_SOURCES = {
    "persistentVolumeClaim": {"claimName": "weights", "path": "x"},
    "image": {"reference": "weights:1", "path": "x"},
}


def _prepared(path: Path) -> tuple[dict[str, Any], list[str | int]]:
    """The full specification, in which what excludes `path` has been replaced, and the way to it."""
    spec = full()
    way: list[str | int] = [0 if part == "[]" else _MAP_KEY if part == "{}" else part for part in path]
    for kind, value in _OTHER_SOURCES.items():
        if path[:3] == ("model", "source", kind):
            spec["model"]["source"] = {kind: copy.deepcopy(value)}
    if path[:4] == ("engine", "env", "[]", "valueFrom"):
        way[2] = 1
        if "configMapKeyRef" in path:
            spec["engine"]["env"][1]["valueFrom"] = {"configMapKeyRef": {"name": "x", "key": "y"}}
    if "volumes" in path and len(path) > 4:
        spec[path[0]]["podTemplate"]["volumes"] = [{"name": "data", **_volume(path[4:])}]
    if path[-1:] == ("type",) and path[-2] == "accelerator":
        del spec[path[0]]["accelerator"]["instanceType"], spec[path[0]]["accelerator"]["efaDevices"]
    return spec, way


def _volume(path: Path) -> dict[str, Any]:
    """One that has the field at `path` within it."""
    if path[0] not in VOLUMES:
        return {"emptyDir": {}}
    source = copy.deepcopy(VOLUMES[path[0]])
    files = _CONTAINER_FILES if "resourceFieldRef" in path else _POD_FILES
    if path[:3] == ("projected", "sources", "[]") and len(path) > 3:
        kind = path[3]
        source["sources"] = [
            {kind: {"items": copy.deepcopy(files)} if kind == "downwardAPI" else copy.deepcopy(_OBJECT)}
        ]
    elif path[0] == "downwardAPI":
        source["items"] = copy.deepcopy(files)
    return {path[0]: source}


def _changed(path: Path, change: Callable[[Any], Any]) -> tuple[dict[str, Any], str]:
    """The specification with the value at `path` changed, and the path's name in messages."""
    spec, way = _prepared(path)
    holder: Any = spec
    for step in way[:-1]:
        holder = holder.setdefault(step, {}) if isinstance(holder, dict) else holder[step]
    last = way[-1]
    old = holder.get(last) if isinstance(holder, dict) else holder[last]
    holder[last] = change(copy.deepcopy(old))
    field = "spec" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way)
    return spec, field


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _without(name: str) -> Callable[[Any], Any]:
    return lambda old: {key: old[key] for key in old if key != name}


_WRONG_TYPES = {"string": 7, "integer": "seven", "boolean": "yes", "array": "text", "object": "text"}
_UNMATCHED = ("", " ", "/", "a b", "-", "!")


def _spoiled(schema: dict[str, Any]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Changes that break one bound of the schema each."""
    yield "of another type", lambda _: _WRONG_TYPES[schema["type"]]
    if "enum" in schema:
        yield "not among its words", lambda _: "Unheard"
    yield from _spoiled_number(schema)
    yield from _spoiled_text(schema)
    yield from _spoiled_list(schema)
    if "maxProperties" in schema:
        yield "with too many keys", lambda _: {f"k{number}": "x" for number in range(schema["maxProperties"] + 1)}
    if schema.get("properties"):
        yield "with an unknown field", lambda old: {**(old or {}), "unheardOf": 1}


def _spoiled_number(schema: dict[str, Any]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    if "minimum" in schema:
        yield "too small", lambda _: schema["minimum"] - schema.get("multipleOf", 1)
        yield "a fraction", lambda _: schema["minimum"] + 0.5
    if "maximum" in schema:
        yield "too large", lambda _: schema["maximum"] + schema.get("multipleOf", 1)
    if "multipleOf" in schema:
        yield "between the multiples", lambda _: schema["minimum"] + 1


def _spoiled_text(schema: dict[str, Any]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    if "maxLength" in schema:
        beginning = "/" if schema.get("pattern", "").startswith("^/") else ""
        yield "too long", lambda _: beginning + "1" * (schema["maxLength"] + 1)
    if schema.get("minLength"):
        yield "empty", lambda _: ""
    if "pattern" in schema:
        for text in _UNMATCHED:
            if not re.search(schema["pattern"], text):
                yield f"spelled {text!r}", _constant(text)


def _spoiled_list(schema: dict[str, Any]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    if "minItems" in schema:
        yield "with too few items", lambda _: []
    if "maxItems" in schema:
        yield "with too many items", lambda old: [_another(old[0], number) for number in range(schema["maxItems"] + 1)]
    if schema.get("x-kubernetes-list-type") in ("set", "map"):
        yield "with an item twice", lambda old: [*old, old[0]]


def _another(item: Any, number: int) -> Any:
    if isinstance(item, str):
        return f"{item}{number}"
    changed = {key: f"{item[key]}{number}" for key in ("mountPath", "name") if key in item}
    return {**item, **({"mountPath": changed["mountPath"]} if "mountPath" in changed else changed)}


def _is_repeated(path: Path) -> bool:
    """Decode has the fields of prefill, and the router's pods those of engines: they are the same lines of the CRD."""
    if "podAntiAffinity" in path[:-1] or {"namespaceSelector", "mismatchLabelKeys"} & set(path[:-1]):
        return True  # the lines of podAffinity, labelSelector and matchLabelKeys
    return (path[0] == "decode" and len(path) > 2) or (path[:2] == ("router", "podTemplate") and len(path) > 3)


def schema_faults() -> Iterator[Fault]:
    """Every bound of every field of the specification, broken alone; every required field, left out."""
    for path, schema in walk(schema_of(crd())["properties"]["spec"]):
        if not path or _is_repeated(path):
            continue
        for title, change in _spoiled(schema):
            spec, field = _changed(path, change)
            yield Fault(f"{'.'.join(path)} {title}", field, spec)
        for name in schema.get("required", ()):
            spec, field = _changed(path, _without(name))
            yield Fault(f"{'.'.join(path)} without {name}", f"{field}.{name}", spec)


_KEYS = ("a b", "/x", "a/b/c", "-a", "a" * 64)


def key_faults() -> Iterator[Fault]:
    """Keys of maps that no object may have. A schema cannot say it, a rule does."""
    for place in (("prefill",), ("decode",), ("router",)):
        for field in ("labels", "annotations", "nodeSelector"):
            for key in _KEYS[: 2 if place == ("decode",) else 1]:
                spec, name = _changed((*place, "podTemplate", field), _constant({key: "x"}))
                yield Fault(f"{name} with the key {key!r}", name, spec)
