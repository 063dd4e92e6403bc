"""values.yaml is the source: its comments become values.schema.json and the table in the chart's README.

``values_reference.py`` writes both, ``--check`` fails where they differ. A comment directly above a key describes it; a line
``# @schema {…}`` in it adds to the JSON schema that follows from the default; ``is: KIND`` in it stands for one of ``KINDS``. Every object
is closed (``additionalProperties: false``) unless a ``@schema`` says what its own keys may be, and every key of ours is required unless it
may be null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[1] / "pdd-operator"
_MARK = "# @schema "
_BEGIN, _END = "<!-- values: made from values.yaml by `make sync-crds` -->", "<!-- end of values -->"
_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_NAME = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_HOST = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]+)?"
_FOLDER = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_VALUE = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_KEY = rf"^({_DNS_NAME}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$"
# Everything but keys and a variable may be empty here; `minLength: 1` beside `is` forbids that.
KINDS: dict[str, dict[str, Any]] = {
    "name": {"maxLength": 253, "pattern": rf"^({_DNS_NAME})?$"},
    "registry": {"pattern": rf"^({_HOST}(/{_FOLDER})*/?)?$"},
    # It may begin with a registry, in small letters, where no other is given.
    "repository": {"pattern": rf"^(({_DNS_NAME}(:[0-9]+)?/)?{_FOLDER}(/{_FOLDER})*)?$"},
    "tag": {"not": {"const": "latest"}, "pattern": "^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$"},
    "digest": {"pattern": "^(sha256:[0-9a-f]{64})?$"},
    "labels": {
        "patternProperties": {_KEY: {"type": "string", "maxLength": 63, "pattern": f"^({_VALUE})?$"}},
        "additionalProperties": False,
    },
    "annotations": {"patternProperties": {_KEY: {"type": "string"}}, "additionalProperties": False},
    "variable": {"type": "string", "pattern": "^[-._A-Za-z][-._A-Za-z0-9]*$"},
}
"""Forms that Kubernetes or a registry asks for, by what a ``@schema`` calls them."""
_TYPES: dict[type, str] = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}


class ValuesError(Exception):
    """A key without description, or a default whose schema does not follow from it."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of values.yaml. ``children`` only where the default is a map that is not empty."""

    path: tuple[str, ...]
    default: Any
    text: str
    extra: dict[str, Any]
    children: tuple[Key, ...]


def parse(text: str) -> tuple[Key, ...]:
    """The keys of values.yaml, in order. Raises ValuesError."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        raise ValuesError("values.yaml must be a map")
    return tuple(_keys(node, text.splitlines(), ()))


def _keys(node: yaml.MappingNode, lines: list[str], above: tuple[str, ...]) -> Iterator[Key]:
    for name, value in node.value:
        path = (*above, name.value)
        text, extra = _comment(lines, name.start_mark.line, name.start_mark.column)
        children: tuple[Key, ...] = ()
        if isinstance(value, yaml.MappingNode) and value.value and "properties" not in extra:
            children = tuple(_keys(value, lines, path))
        elif not text:
            raise ValuesError(f"{'.'.join(path)} must have a comment that describes it")
        yield Key(path, _plain(value), text, extra, children)


def _plain(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node, Dumper=yaml.SafeDumper))


def _comment(lines: list[str], line: int, column: int) -> tuple[str, dict[str, Any]]:
    """Description and ``@schema`` directly above ``line``, at the same indentation."""
    words: list[str] = []
    extra: dict[str, Any] = {}
    while line > 0 and lines[line - 1].startswith(" " * column + "#"):
        line -= 1
        comment = lines[line].strip()
        if comment.startswith(_MARK):
            extra = _spelt(yaml.safe_load(comment.removeprefix(_MARK))) | extra
        else:
            words.insert(0, comment.removeprefix("#").strip())
    return " ".join(words), extra


def _spelt(schema: Any) -> Any:
    """``schema`` with kinds in full. Raises ValuesError."""
    if isinstance(schema, list):
        return [_spelt(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("is")
    if kind is not None and kind not in KINDS:
        raise ValuesError(f"@schema: is must be one of {', '.join(KINDS)}, not {kind}")
    own = {name: _spelt(part) for name, part in schema.items() if name != "is"}
    return (KINDS[kind] if kind else {}) | own


def schema_of(keys: tuple[Key, ...]) -> dict[str, Any]:
    """The JSON schema of values."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of pdd-operator",
        **_object(keys),
    }


def _object(keys: tuple[Key, ...]) -> dict[str, Any]:
    properties = {key.path[-1]: _schema(key) for key in keys}
    needed = [name for name, schema in properties.items() if "null" not in schema["type"]]
    if keys and len(keys[0].path) == 1:
        properties["global"] = {
            "type": "object",
            "description": "What Helm hands to every chart of a release. Not used.",
        }
    # Helm takes away a default that a user sets to null, before it asks the schema: what is missing was null.
    required = {"required": needed} if needed else {}
    return {"type": "object", "additionalProperties": False, **required, "properties": properties}


def _schema(key: Key) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": key.text} if key.text else {}
    if key.children:
        return schema | _object(key.children)
    if key.default is None and "type" not in key.extra:
        raise ValuesError(f"{'.'.join(key.path)}: a default of null needs a type in @schema")
    schema |= {"type": _TYPES.get(type(key.default), "null")} | key.extra
    if schema["type"] == "array" and "items" not in schema:
        raise ValuesError(f"{'.'.join(key.path)}: a list needs items in @schema")
    return _closed(schema, ".".join(key.path))


def _closed(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """``schema`` with every object in it closed. An object that says nothing of its keys is refused."""
    result = dict(schema)
    if schema.get("type") == "object":
        if "properties" not in schema and "additionalProperties" not in schema:
            raise ValuesError(f"{path}: a map needs properties or additionalProperties in @schema")
        result.setdefault("additionalProperties", False)
    if isinstance(schema.get("items"), dict):
        result["items"] = _closed(schema["items"], f"{path}[]")
    if isinstance(schema.get("properties"), dict):
        result["properties"] = {name: _closed(part, f"{path}.{name}") for name, part in schema["properties"].items()}
    return result


def leaves(keys: tuple[Key, ...]) -> Iterator[Key]:
    """Keys that have no keys below."""
    for key in keys:
        if key.children:
            yield from leaves(key.children)
        else:
            yield key


def table_of(keys: tuple[Key, ...]) -> str:
    """The README's table: key, default, meaning."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for key in leaves(keys):
        default = json.dumps(key.default, ensure_ascii=False).replace("|", "\\|")
        rows.append(f"| `{'.'.join(key.path)}` | `{default}` | {key.text.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def readme_with(readme: str, table: str) -> str:
    """``readme`` with ``table`` between its marks. Raises ValuesError."""
    if readme.count(_BEGIN) != 1 or readme.count(_END) != 1:
        raise ValuesError(f"README.md must have one line {_BEGIN!r} and one {_END!r}")
    head, rest = readme.split(_BEGIN)
    return f"{head}{_BEGIN}\n\n{table}\n\n{_END}{rest.split(_END)[1]}"


def wanted(chart: Path) -> dict[str, str]:
    """Content of the files that follow from values.yaml, by name."""
    keys = parse((chart / "values.yaml").read_text(encoding="utf-8"))
    schema = json.dumps(schema_of(keys), indent=2, ensure_ascii=False) + "\n"
    readme = readme_with((chart / "README.md").read_text(encoding="utf-8"), table_of(keys))
    return {"values.schema.json": schema, "README.md": readme}


def differing(chart: Path) -> list[str]:
    """Names of the files that do not follow from values.yaml."""
    return [
        name
        for name, content in wanted(chart).items()
        if not (chart / name).is_file() or (chart / name).read_text(encoding="utf-8") != content
    ]


def main(arguments: list[str]) -> int:
    try:
        stale = differing(CHART)
        if arguments == ["--check"]:
            if stale:
                print(f"do not follow from values.yaml: {', '.join(stale)}: run `make sync-crds`", file=sys.stderr)
            return 1 if stale else 0
        for name in stale:
            (CHART / name).write_text(wanted(CHART)[name], encoding="utf-8")
    except ValuesError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
