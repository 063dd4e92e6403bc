"""Kubernetes' own schemas, strict (a field that does not exist is an error), each prepared once."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jsonschema.validators import Draft202012Validator
from referencing import Registry, Resource

VERSION: Final = "1.37"
_FOLDER: Final = f"kubernetes-json-schema/v{VERSION}.0-local-strict"


def problems_of(manifest: dict[str, Any]) -> list[str]:
    """What the schema of the object's kind has against it, as ``path: message``."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    schema = f"{manifest['kind'].lower()}-{group.split('.')[0] + '-' if group else ''}{version}.json"
    return [
        f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message[:300]}"
        for error in _validator(schema).iter_errors(manifest)
    ]


@cache
def _validator(schema: str) -> Draft202012Validator:
    contents = _load(schema)
    registry: Registry[Any] = Resource.from_contents(contents) @ _definitions()
    return Draft202012Validator(contents, registry=registry)


@cache
def _definitions() -> Registry[Any]:
    return Resource.from_contents(_load("_definitions.json")) @ Registry()


def _load(name: str) -> Any:
    return json.loads(files("kubernetes_validate").joinpath(_FOLDER, name).read_text(encoding="utf-8"))
