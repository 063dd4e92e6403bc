"""YAML from strangers: every document of a text, as kubectl reads it, or one sentence with line and column. Pure.

Nothing is constructed, and nothing walks it, before its nodes have been counted: a few lines of aliases can mean more than fits into memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from pdd_cli.yaml_scalars import plain

MOST_REPEATED: Final = 100_000
"""Nodes that one document may have more than are written, by aliases."""
MOST_DEPTH: Final = 100
_YAML: Final = "tag:yaml.org,2002:"
_STRING: Final = f"{_YAML}str"
_MERGE: Final = f"{_YAML}merge"
_TAGS: Final = {
    str: _STRING,
    int: f"{_YAML}int",
    float: f"{_YAML}float",
    bool: f"{_YAML}bool",
    type(None): f"{_YAML}null",
}
_TYPES: Final = {tag: kind for kind, tag in _TAGS.items() if kind is not str}
_CONVERTERS: Final = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError)
"""What PyYAML's own converters let out: !!timestamp x, !!binary x."""
_TOO_DEEP: Final = f"must not be nested deeper than {MOST_DEPTH} levels"


def load_all(text: str, *, doubled_keys: bool = False) -> list[Any]:
    """``doubled_keys``: taken, the last one counting. Raises ValueError with line and column."""
    loader: _Loader | None = None
    try:
        loader = _Loader(text)  # a SafeLoader
        return list(_documents(loader, doubled_keys))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"must be YAML: line {line}: it has a character that no text has") from None
    except yaml.YAMLError as error:
        raise ValueError(_one_line(error)) from None
    except RecursionError:
        line = 1 if loader is None else loader.line + 1
        raise ValueError(f"must be YAML: line {line}: {_TOO_DEEP}") from None


def _documents(loader: _Loader, doubled_keys: bool) -> Iterator[Any]:
    while loader.check_node():
        node = loader.get_node()
        if node is not None:
            size = _Count(doubled_keys).of(node)
            if size.expanded - size.written > MOST_REPEATED:
                raise _refusal(node, f"aliases must not repeat more than {MOST_REPEATED:,} nodes")
            yield loader.construct_document(node)


@dataclass(frozen=True, slots=True)
class _Size:
    """``expanded``: nodes with aliases followed. ``written``: those that this node brought. ``height``: levels below."""

    expanded: int
    written: int
    height: int


@dataclass(slots=True)
class _Count:
    """Looks at every node once, and refuses what cannot be an object of Kubernetes."""

    doubled_keys: bool
    _sizes: dict[int, _Size | None] = field(default_factory=dict)
    """By the node's identity; None while it is being looked at."""

    def of(self, node: yaml.Node) -> _Size:
        if id(node) in self._sizes:
            known = self._sizes[id(node)]
            if known is None:
                raise _refusal(node, "an alias must not stand within what it names")
            return _Size(known.expanded, 0, known.height)
        self._sizes[id(node)] = None
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
        below = [self.of(child) for child in _children(node)]
        size = _Size(
            1 + sum(child.expanded for child in below),
            1 + sum(child.written for child in below),
            1 + max((child.height for child in below), default=0),
        )
        if size.height > MOST_DEPTH:
            raise _refusal(node, _TOO_DEEP)
        self._sizes[id(node)] = size
        return size

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal(key, "a key must be a string")
            if key.tag != _STRING:
                raise _refusal(key, f"a key must be a string: write '{key.value:.40}' with quotes")
            if key.value in seen and not self.doubled_keys:
                # Which of the two counts would be chance.
                raise _refusal(key, f"`{key.value}` must not be there twice")
            seen.add(key.value)


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        yield from (item for _, item in node.value)
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


class _Loader(yaml.SafeLoader):
    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803  # the base's name
        if self.flow_level >= MOST_DEPTH:  # its look-ahead costs the cube of what is open
            raise yaml.scanner.ScannerError(None, None, _TOO_DEEP, self.get_mark())
        super().fetch_flow_collection_start(TokenClass)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of what has none."""
        if kind is not yaml.ScalarNode or not implicit[0]:
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]  # PyYAML's
        return _MERGE if value == "<<" else _TAGS[type(plain(value))]

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Hashable:
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, super().construct_object)
        try:
            found: Hashable = super().construct_object(node, deep)
        except _CONVERTERS as error:
            raise _refusal(node, f"must be of type {_type(node)}") from error
        return found


def _scalar(node: yaml.ScalarNode, construct: Callable[[yaml.Node], Any]) -> Hashable:
    """``construct``: PyYAML's own, which is asked about tags that only a user wrote, not about values: those are kubectl's."""
    if node.tag == _MERGE:  # in a value's place it means nothing
        return str(node.value)
    wrong = f"`{node.value:.40}` must be of type {_type(node)}"
    if node.tag not in _TYPES:
        try:
            found = construct(node)
            return found.decode() if isinstance(found, bytes) else str(node.value)
        except _CONVERTERS as error:
            raise _refusal(node, wrong) from error
    value = plain(node.value)
    if (type(value), _TYPES[node.tag]) != (int, float) and type(value) is not _TYPES[node.tag]:
        raise _refusal(node, wrong)
    if isinstance(value, float) and not math.isfinite(value):
        raise _refusal(node, f"`{node.value}` must be a number that JSON has")
    return value


def _type(node: yaml.Node) -> str:
    return str(node.tag.rpartition(":")[2])


def _refusal(node: yaml.Node, said: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, said, node.start_mark)


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"must be YAML: line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return "must be YAML: " + " ".join(str(error).split())
