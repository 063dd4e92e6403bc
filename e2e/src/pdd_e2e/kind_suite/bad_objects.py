"""The catalog of what users get wrong, in e2e/samples/bad: files that are refused, changes that are, and what only the cluster can judge."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.kind_suite.installation import SAMPLES

_CATALOG: Final = SAMPLES / "bad"
SHARED_NAMESPACE: Final = "bad-objects"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and what must stand on the terminal."""

    name: str
    says: tuple[str, ...]

    def missing_in(self, text: str) -> list[str]:
        """What is not said."""
        return [words for words in self.says if words not in text]


@dataclass(frozen=True, slots=True)
class BadFile(Fault):
    """`text`: a sample with one fault."""

    text: str


@dataclass(frozen=True, slots=True)
class BadChange(Fault):
    """`command`: for a shell whose SAMPLES is the folder of samples."""

    command: str


@dataclass(frozen=True, slots=True)
class Judged(Fault):
    """`objects`: what there is before, and the PDDeployment last, all of `namespace`. `condition` is False or Unknown for `reason`."""

    deployment: str
    namespace: str
    objects: tuple[dict[str, Any], ...]
    condition: str
    reason: str


def bad_files() -> list[BadFile]:
    """Raises ClusterError where a sample has not exactly one place for a fault."""
    return [BadFile(item["fault"], tuple(item["says"]), _edited(item)) for item in _read("refused.yaml")]


def bad_changes() -> list[BadChange]:
    return [BadChange(item["fault"], tuple(item["says"]), item["run"]) for item in _read("changes.yaml")]


def judged_by_the_cluster() -> list[Judged]:
    catalog = _read("judged.yaml")
    return [_judged(catalog["base"], item) for item in catalog["faults"]]


def _edited(item: Mapping[str, Any]) -> str:
    sample: str = item["sample"]
    file = ROOT / sample if "/" in sample else SAMPLES / sample
    text = file.read_text()
    if text.count(item["from"]) != 1:
        raise ClusterError(f"{item['fault']}: {sample} has {item['from']!r} {text.count(item['from'])} times, not once")
    return text.replace(item["from"], item["to"])


def _judged(base: Mapping[str, Any], item: Mapping[str, Any]) -> Judged:
    namespace = f"bad-{item['name']}" if item.get("alone") else SHARED_NAMESPACE
    deployment = {
        "apiVersion": "pdserve.io/v1alpha1",
        "kind": "PDDeployment",
        "metadata": {"name": item["name"]},
        "spec": _merged(base, item.get("spec", {})),
    }
    return Judged(
        item["fault"],
        tuple(item["says"]),
        item["name"],
        namespace,
        (*item.get("objects", ()), deployment),
        item.get("condition", "PrefillAvailable"),
        item["reason"],
    )


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """As a JSON merge patch: null takes away."""
    merged = dict(base)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = _merged(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _read(name: str) -> Any:
    file: Path = _CATALOG / name
    return yaml.safe_load(file.read_text())
