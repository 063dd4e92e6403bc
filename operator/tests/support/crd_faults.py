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


_TEMPLATE: dict[str, Any] = {
    "labels": {"team": "search"},
    "annotations": {"note": "x"},
    "nodeSelector": {"pool": "x"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "schedulerName": "other",
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
    "volumes": [{"name": "data", "emptyDir": {}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
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
    if path[-1:] == ("type",) and path[-2] == "accelerator":
        del spec[path[0]]["accelerator"]["instanceType"], spec[path[0]]["accelerator"]["efaDevices"]
    return spec, way


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
    if schema.get("properties") and not schema.get("x-kubernetes-preserve-unknown-fields"):
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
    return (path[0] == "decode" and len(path) > 2) or (path[:2] == ("router", "podTemplate") and len(path) > 3)


def schema_faults() -> Iterator[Fault]:
    """Every bound of every field of the specification, broken alone; every required field, left out."""
    for path, schema in walk(schema_of(crd())["properties"]["spec"]):
        if not path or path[-1] == "hostPath" or _is_repeated(path):
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
