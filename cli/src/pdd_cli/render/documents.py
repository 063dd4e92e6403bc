"""From text to PDDeployments: every document, and every problem of every document. Pure.

Reads YAML as kubectl does: several documents, empty ones left out, `kind: List` unpacked, a doubled key refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdd_cli.yaml_text import load_all
from pdd_operator.api.names import NamespacedName
from pdd_operator.api.parse import InvalidSpecError, parse_deployment
from pdd_operator.api.v1alpha1 import PDDeployment


@dataclass(frozen=True, slots=True)
class Document:
    """``where``: file and, where it has several, number of the document, for a person."""

    where: str
    content: Any


@dataclass(frozen=True, slots=True)
class Judged:
    """``problems``: one line each, with file, object, field and what it must be."""

    deployments: tuple[PDDeployment, ...]
    problems: tuple[str, ...]


def parse_documents(text: str, name: str) -> tuple[Document, ...]:
    """Raises ValueError with line and column where it is no YAML."""
    try:
        loaded = load_all(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    contents = [(number, content) for number, content in enumerate(loaded, 1) if content is not None]
    several = len(contents) > 1
    return tuple(
        Document(f"{name}, document {number}" if several else name, item)
        for number, content in contents
        for item in _unpacked(content)
    )


def judge(documents: Sequence[Document], namespace: str | None) -> Judged:
    """``namespace``: of objects that name none; one that names another is refused, as kubectl does."""
    deployments: dict[NamespacedName, PDDeployment] = {}
    problems: list[str] = []
    for document in documents:
        try:
            deployment = _parse(document.content, namespace)
        except InvalidSpecError as error:
            problems += [f"{document.where}{_name_of(document.content)}: {problem}" for problem in error.problems]
            continue
        except ValueError as error:
            problems.append(f"{document.where}{_name_of(document.content)}: {error}")
            continue
        key = NamespacedName(deployment.metadata.namespace, deployment.metadata.name)
        if key in deployments:
            problems.append(f"{document.where}: metadata.name: `name` must not be there twice: {key}")
        deployments[key] = deployment
    return Judged(tuple(deployments.values()), tuple(problems))


def _parse(content: Any, namespace: str | None) -> PDDeployment:
    if not isinstance(content, Mapping):
        raise ValueError(f"must be a PDDeployment, not {type(content).__name__}")
    metadata = content.get("metadata")
    if not isinstance(metadata, Mapping):
        return parse_deployment(content)
    own = metadata.get("namespace")
    if own and namespace and own != namespace:
        raise ValueError(f'metadata.namespace: `namespace` must be "{namespace}", as --namespace says, not "{own}"')
    return parse_deployment({**content, "metadata": {**metadata, "namespace": own or namespace or "default"}})


def _unpacked(content: Any) -> Iterator[Any]:
    """What `kubectl get -o yaml` makes of several objects."""
    items = content.get("items") if isinstance(content, Mapping) else None
    if isinstance(items, list) and str(content.get("kind")).endswith("List"):
        yield from items
    else:
        yield content


def _name_of(content: Any) -> str:
    if not isinstance(content, Mapping):
        return ""
    metadata = content.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f" ({content.get('kind', 'no kind')!s:.80} {name or 'without a name'!s:.80})"
