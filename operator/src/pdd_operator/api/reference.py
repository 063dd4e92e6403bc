"""``python -m pdd_operator.api.reference CRD EXAMPLES``: the reference of PDDeployment as Markdown, for crds/README.md (``make docs``).

Says what the two files say and nothing of its own but how to read it. Part of no running operator.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

Schema: TypeAlias = Mapping[str, Any]

_HEAD: Final = """\
# PDDeployment

[pddeployments.yaml](pddeployments.yaml) is the source of this API; this page is made from it and from [examples/rules.yaml](examples/rules.yaml)
by `make docs`. The same text is at hand in a cluster: `kubectl explain pdd.spec.kvTransfer`.

```
kubectl apply --server-side -f crds/pddeployments.yaml
```

The smallest PDDeployment names a model and what engines run on; every other field has a default, which `kubectl get pdd NAME -o yaml` shows:

```yaml
apiVersion: pdserve.io/v1alpha1
kind: PDDeployment
metadata: {name: smollm2}
spec:
  model: {name: HuggingFaceTB/SmolLM2-135M-Instruct}
  prefill: {accelerator: {type: CPU}}
  decode: {accelerator: {type: CPU}}
  transport: {backend: Socket}
```

- `kubectl get pdd` shows ready pods per role; `-o wide` also how many there should be, and why it is not ready.
- `kubectl scale pdd/NAME --replicas N` sets `spec.decode.replicas`.
- Whoever may write a PDDeployment decides what its pods run. Secrets, volumes and ConfigMaps are those of its own namespace.
- Only `spec.model.name` cannot be changed: clients, conversations and API keys belong to it. Everything else may, accelerators and mechanism
  included, because a change of what engines share is rolled out as a new revision group.
- v1alpha1 gains optional fields and values of enums, and nothing else, until there is a v1beta1.
"""
_FIELDS: Final = """
## Fields

`!` must be set. Sizes of texts and lists that nobody reaches are left out here; `kubectl explain` and the CRD have them.

| Field | Type | Default | Meaning |
|---|---|---|---|
"""
_STATUS: Final = """
## Status

| Field | Type | Meaning |
|---|---|---|
"""
_RULES: Final = """
## Rules

Judged by the API server when the object is written (Kubernetes 1.32 and later); `pdd render` and the operator judge by the same, in the
same words. Examples are changes of one of the three valid specifications in examples/rules.yaml.

| Where | Rule | Refused | Taken |
|---|---|---|---|
"""


def reference(definition: Mapping[str, Any], examples: Mapping[str, Any]) -> str:
    """The whole page."""
    schema: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    fields = "".join(_field_row(*field) for field in _fields(spec, "spec", {}))
    of_status = "".join(
        _row(f"`{path}`", _type(part), _cell(part.get("description", "")))
        for path, part, _, _ in _fields(status, "status", {})
    )
    return _HEAD + _FIELDS + fields + _STATUS + of_status + _RULES + "".join(_rule_rows(schema, examples))


def _fields(schema: Schema, path: str, seen: dict[str, str]) -> Iterator[tuple[str, Schema, bool, str | None]]:
    """Every field: path, schema, whether it must be set, and the path of an equal part that was listed before."""
    for name, part in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        inner = part["items"] if part["type"] == "array" else part
        key = json.dumps(inner.get("properties"), sort_keys=True)
        equal = seen.get(key) if len(inner.get("properties", {})) > 1 else None
        seen.setdefault(key, here)
        yield here, part, name in schema.get("required", ()), equal
        if equal is None:
            yield from _fields(inner, f"{here}[]" if part["type"] == "array" else here, seen)


def _field_row(path: str, schema: Schema, required: bool, equal: str | None) -> str:
    text = schema.get("description", "") + (f" Fields as in `{equal}`." if equal else "")
    default = f"`{json.dumps(schema['default'])}`" if "default" in schema else "**!**" if required else ""
    return _row(f"`{path}`", _type(schema), default, _cell(text))


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema["type"] == "integer" and "maximum" in schema:
        step = f", in steps of {schema['multipleOf']}" if "multipleOf" in schema else ""
        return f"{schema['minimum']} to {schema['maximum']}{step}"
    if schema["type"] == "array":
        return f"list, at most {schema['maxItems']}"
    if "additionalProperties" in schema:
        return f"map, at most {schema['maxProperties']}"
    return str(schema["type"])


def _rule_rows(schema: Schema, examples: Mapping[str, Any]) -> Iterator[str]:
    places: dict[str, list[str]] = {}
    for path, message in _rules(schema, ""):
        places.setdefault(message, []).append(path)
    for message, paths in places.items():
        (entry,) = (entry for entry in examples["rules"] if message.startswith(entry["rule"]))
        where = " ".join(f"`{path}`" for path in paths)
        yield _row(where, _cell(message), _example(entry, "bad"), _example(entry, "good"))


def _rules(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    """Every rule: the field that it names, and its message."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"{path}{rule.get('fieldPath', '')}".removeprefix("."), rule["message"]
    for name, part in schema.get("properties", {}).items():
        yield from _rules(part, f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")


def _example(entry: Mapping[str, Any], kind: str) -> str:
    change = entry[kind]
    if "name" in change:
        return f"`{change['name']}`"
    if "from" in change:
        return f"changed from `{_flow(change['from'])}`"
    return f"{entry['spec']}: `{_flow(change['patch'])}`"


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.strip().removeprefix("{").removesuffix("}").replace("|", "\\|")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    crd_file, examples_file = sys.argv[1:]
    loaded = [yaml.safe_load(Path(name).read_text(encoding="utf-8")) for name in (crd_file, examples_file)]
    sys.stdout.write(reference(*loaded))
