"""The mutations of the suite on a cluster fit what they change, and their runner tells a failure from an accident."""

from pathlib import Path

import pytest

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.product_images import ROOT
from pdd_e2e.kind_suite.mutations import TESTS, Mutation, load_mutations, noticed

MUTATIONS = load_mutations()
CASE = '<testsuite><testcase name="{name}">{inside}</testcase></testsuite>'


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_product_and_names_a_test(mutation: Mutation, tmp_path: Path) -> None:
    copy = tmp_path / mutation.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / mutation.file).read_text())
    mutation.apply(tmp_path)
    assert copy.read_text() != (ROOT / mutation.file).read_text()
    module, _, function = mutation.test.partition("::")
    assert f"def {function}(" in (TESTS / module).read_text()
    assert mutation.why


def test_every_module_on_the_cluster_has_a_mutation_that_it_notices() -> None:
    modules = {path.name for path in TESTS.glob("test_*.py")} - {"test_runc_wrapper.py"}  # that tests no product
    assert {mutation.test.partition("::")[0] for mutation in MUTATIONS} == modules


def test_a_guard_that_has_moved_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a a")
    for old in ("a", "b"):
        with pytest.raises(ClusterError, match=r"old text [02] times"):
            Mutation("m", "file", old, "c", "t::t", "because").apply(tmp_path)


@pytest.mark.parametrize(
    ("name", "inside", "expected"),
    [
        ("test_x", "<failure/>", True),
        ("test_x[a]", "<failure/>", True),
        ("test_x", "<error/>", False),
        ("test_x", "", False),
        ("test_xy", "<failure/>", False),
    ],
    ids=["failed", "one case failed", "never began", "passed", "another"],
)
def test_only_a_failure_of_the_test_itself_counts(tmp_path: Path, name: str, inside: str, *, expected: bool) -> None:
    report = tmp_path / "report.xml"
    report.write_text(CASE.format(name=name, inside=inside))
    assert noticed(report, "test_x") is expected
