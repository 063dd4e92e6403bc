"""Every PDDeployment that users are shown, in files and in documents, is taken by the cluster as it stands: `kubectl apply --dry-run=server`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pdd_e2e.cluster.kubectl import Kubectl
from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.kind_suite.installation import SAMPLES
from pdd_e2e.kind_suite.large_samples import USER_SAMPLES, sample
from pdd_e2e.kind_suite.terminal import Terminal

# Blocks of documents that are no part of a PDDeployment, by their first key, and what holds them.
OTHER_BLOCKS: Final = {
    "listen": "a router's configuration: router/tests",
    "engines": "a router's file of engines: router/tests",
    "images": "values of the chart",
    "rules": "values of prometheus-adapter's chart",
}
LEAST_SHOWN: Final = 9


def documents() -> list[Path]:
    return sorted(
        [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("charts/*/README.md")]
    )


def blocks() -> Iterator[tuple[str, dict[str, Any]]]:
    """YAML blocks with where they stand."""
    for document in documents():
        for number, text in enumerate(
            re.findall(r"^```ya?ml\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
        ):
            yield f"{document.relative_to(ROOT)} block {number}", yaml.safe_load(text)


def shown() -> Iterator[tuple[str, dict[str, Any]]]:
    """PDDeployments; a document's part of a specification within the sample that it is about."""
    for file in sorted([*USER_SAMPLES.glob("*.yaml"), *SAMPLES.glob("*.yaml")]):
        yield str(file.relative_to(ROOT)), yaml.safe_load(file.read_text())
    for place, block in blocks():
        if block.get("kind") == "PDDeployment":
            yield place, block
        elif set(block) <= {"prefill", "decode", "engine", "model", "transport", "kvTransfer", "router", "rollout"}:
            whole = sample("p5en-efa.yaml")
            yield place, whole | {"spec": whole["spec"] | block}


def test_blocks_of_documents_are_all_accounted_for() -> None:
    """A new kind of block in a document is either held here or says who holds it."""
    taken = {place for place, _ in shown()}
    assert {
        place: next(iter(block))
        for place, block in blocks()
        if place not in taken and next(iter(block)) not in OTHER_BLOCKS
    } == {}


def test_what_users_are_shown_is_taken_by_the_cluster(
    installed: Kubectl, terminal: Terminal, subtests: pytest.Subtests
) -> None:
    """All of it at once, each under a name of its own."""
    found = list(shown())
    assert len(found) >= LEAST_SHOWN
    for number, (_, deployment) in enumerate(found):
        deployment["metadata"]["name"] = f"shown-{number}"
    file = terminal.home / "shown.yaml"
    file.write_text(yaml.safe_dump_all([deployment for _, deployment in found]))
    done = terminal.run(f"kubectl apply --namespace default --dry-run=server --filename {file}")
    for number, (place, _) in enumerate(found):
        with subtests.test(msg=place):
            assert f"pddeployment.pdserve.io/shown-{number} created (server dry run)" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr


def test_files_that_documents_name_are_there() -> None:
    """What a reader is told to apply."""
    named = {
        name
        for document in documents()
        for name in re.findall(r"(?:docs|e2e)/samples/[\w./-]+\.yaml", document.read_text())
    }
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
