"""Copies crds/*.yaml into the chart: ``sync_crds.py`` writes, ``sync_crds.py --check`` fails where a copy differs.

Helm never upgrades what lies in a chart's ``crds/`` folder, so the copies are templates: they can be left out
(``crds.enabled``) and outlive the release (``crds.keep``). Text in, text out: comments and order of the source stay.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "crds"
COPIES = ROOT / "charts" / "pdd-operator" / "templates" / "crds"

_HEAD = """\
{{/* Made from crds/%s by `make sync-crds`: change it there. */}}
{{- if .Values.crds.enabled }}
"""
_METADATA = """\
metadata:
  labels:
    {{- include "pdd-operator.labels" . | nindent 4 }}
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""
_TAIL = "{{- end }}\n"


class SourceError(Exception):
    """The CRD is not written in the way that this script can wrap."""


def wrap(name: str, text: str) -> str:
    """The template for the CRD ``text`` of file ``name``. Raises SourceError."""
    documents = list(yaml.safe_load_all(text))
    if len(documents) != 1 or documents[0].get("kind") != "CustomResourceDefinition":
        raise SourceError(f"{name} must hold exactly one CustomResourceDefinition")
    if set(documents[0]["metadata"]) != {"name"}:
        raise SourceError(f"{name}: metadata must have a name and nothing else, the chart adds labels and annotations")
    lines = text.removeprefix("---\n").splitlines(keepends=True)
    if lines.count("metadata:\n") != 1:
        raise SourceError(f"{name}: `metadata:` must be a line of its own")
    body = "".join(_METADATA if line == "metadata:\n" else _escape(line) for line in lines)
    return _HEAD % name + body.rstrip("\n") + "\n" + _TAIL


def _escape(line: str) -> str:
    """``line`` so that Helm writes it as it stands."""
    return line.replace("{{", '{{ "{{" }}')


def wanted(sources: Path) -> dict[str, str]:
    """Every copy by its file name."""
    return {path.name: wrap(path.name, path.read_text(encoding="utf-8")) for path in sorted(sources.glob("*.yaml"))}


def differing(sources: Path, copies: Path) -> list[str]:
    """Names of the copies that are missing, old or left over."""
    files = wanted(sources)
    there = {path.name: path.read_text(encoding="utf-8") for path in copies.glob("*.yaml")}
    return sorted(name for name in files.keys() | there.keys() if files.get(name) != there.get(name))


def sync(sources: Path, copies: Path) -> None:
    """Makes ``copies`` exactly what ``sources`` ask for."""
    copies.mkdir(parents=True, exist_ok=True)
    for name in differing(sources, copies):
        content = wanted(sources).get(name)
        if content is None:
            (copies / name).unlink()
        else:
            (copies / name).write_text(content, encoding="utf-8")


def main(arguments: list[str]) -> int:
    try:
        if arguments == ["--check"]:
            stale = differing(SOURCES, COPIES)
            if stale:
                print(f"differ from crds/: {', '.join(stale)}: run `make sync-crds`", file=sys.stderr)
            return 1 if stale else 0
        sync(SOURCES, COPIES)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
