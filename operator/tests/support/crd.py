"""The CRD and its examples as tests read them: every rule with its place, every example as a whole specification."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[3]
CRD_FILE = REPOSITORY / "crds" / "pddeployments.yaml"
EXAMPLES_FILE = REPOSITORY / "crds" / "examples" / "rules.yaml"


@cache
def _crd() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CRD_FILE.read_text(encoding="utf-8"))
    return loaded


def crd() -> dict[str, Any]:
    """A copy without shared parts, that may be changed at one place."""
    definition: dict[str, Any] = _unshared(_crd())
    return definition


def _unshared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


def schema_of(definition: Mapping[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every schema with its path; `[]` stands for an item of a list, `{}` for a value of a map."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from walk(part, (*path, name))
    if "items" in schema:
        yield from walk(schema["items"], (*path, "[]"))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], (*path, "{}"))


def rules_of(definition: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every rule with the path of the schema that it stands in."""
    for path, schema in walk(schema_of(definition)):
        for rule in schema.get("x-kubernetes-validations", ()):
            yield path, rule


def without_rules(definition: dict[str, Any], messages: Collection[str]) -> dict[str, Any]:
    """The same definition without the rules that say one of `messages`."""
    changed: dict[str, Any] = _unshared(definition)
    for _, schema in walk(schema_of(changed)):
        rules = schema.pop("x-kubernetes-validations", ())
        kept = [rule for rule in rules if rule["message"] not in messages]
        if kept:
            schema["x-kubernetes-validations"] = kept
    return changed


def merged(value: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(value) if isinstance(value, Mapping) else {}
    for key, part in patch.items():
        if part is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), part)
    return result


@dataclass(frozen=True)
class Case:
    """One object: a name and a specification; `before` is what it was, where a rule is about a change."""

    name: str
    spec: dict[str, Any]
    before: dict[str, Any] | None = None

    @property
    def manifest(self) -> dict[str, Any]:
        return manifest(self.name, self.spec)


@dataclass(frozen=True)
class Example:
    """What a rule refuses and what it takes."""

    rule: str
    field: str
    bad: Case
    good: Case


def manifest(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "pdserve.io/v1alpha1", "kind": "PDDeployment", "metadata": {"name": name}, "spec": spec}


@cache
def _file() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(EXAMPLES_FILE.read_text(encoding="utf-8"))
    return loaded


def base(name: str) -> dict[str, Any]:
    """A valid specification: gpu, cpu or trainium."""
    spec: dict[str, Any] = copy.deepcopy(_file()["specs"][name])
    return spec


def examples() -> list[Example]:
    return [
        Example(entry["rule"], entry["field"], _case(entry["spec"], entry["bad"]), _case(entry["spec"], entry["good"]))
        for entry in _file()["rules"]
    ]


def _case(spec: str, entry: dict[str, Any]) -> Case:
    before = merged(base(spec), entry["from"]) if "from" in entry else None
    return Case(entry.get("name", "example"), merged(base(spec), entry.get("patch", {})), before)
