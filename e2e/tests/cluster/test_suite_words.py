"""What the suite on kind reads out of documents, notes, metrics and receipts."""

from pathlib import Path

import pytest

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.kind_suite.bad_objects import bad_changes, bad_files, judged_by_the_cluster
from pdd_e2e.kind_suite.conversation import Turn
from pdd_e2e.kind_suite.revision_groups import groups_of, mixed, pairs
from pdd_e2e.kind_suite.terminal import guide_blocks, indented_commands

GUIDE = """## One

```sh
first
second
```

```text
not this
```

## Two

```sh
third
```
"""
METRICS = """# TYPE pdd_router_pairs_total counter
pdd_router_pairs_total{decode_group="95dac2",prefill_group="95dac2"} 12.0
pdd_router_pairs_total{decode_group="0ddba1",prefill_group="95dac2"} 1.0
pdd_router_legs_total{role="Decode"} 3.0
"""


def turn(prefill: str | None, decode: str, owner: str | None = None) -> Turn:
    receipt = {"decode": {"engine": decode}, "prefill": prefill and {"engine": prefill, "owner": owner}}
    return Turn("text", 10, 0, 5, 1.0, receipt)


def test_blocks_are_those_of_their_section_and_language(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text(GUIDE)
    assert guide_blocks("One", guide=guide) == ["first\nsecond\n"]
    assert guide_blocks("One", language="text", guide=guide) == ["not this\n"]
    assert guide_blocks("Two", guide=guide) == ["third\n"]
    with pytest.raises(ClusterError, match="no section 'Three'"):
        guide_blocks("Three", guide=guide)


def test_notes_have_commands_where_they_are_indented() -> None:
    assert indented_commands("1. Wait:\n\n   kubectl get pods\n\nkubectl not this\n   nor this\n") == [
        "kubectl get pods"
    ]


def test_pairs_are_counted_by_both_groups() -> None:
    assert pairs(METRICS) == {("95dac2", "95dac2"): 12.0, ("95dac2", "0ddba1"): 1.0}


@pytest.mark.parametrize(
    ("prefill", "decode", "owner", "is_mixed"),
    [
        ("small-prefill-95dac2-0", "small-decode-95dac2-0", None, False),
        (None, "small-decode-95dac2-0", None, False),
        ("small-prefill-0ddba1-0", "small-decode-95dac2-0", None, True),
        ("small-prefill-95dac2-0", "small-decode-95dac2-0", "small-decode-0ddba1-0", True),
    ],
    ids=["one group", "decode alone", "another prefill", "another owner"],
)
def test_an_answer_of_two_groups_is_noticed(
    prefill: str | None, decode: str, owner: str | None, is_mixed: bool
) -> None:
    found = turn(prefill, decode, owner)
    assert mixed([found], "small") == ([found] if is_mixed else [])
    assert ("95dac2" in groups_of(found, "small")) is True


def test_an_engine_that_is_no_pod_of_the_deployment_is_an_error() -> None:
    with pytest.raises(ClusterError, match="other-decode"):
        groups_of(turn(None, "other-decode-95dac2-0"), "small")


def test_every_fault_of_the_catalog_fits_its_sample() -> None:
    """Each edit is made, in one place: where a sample has moved on, this says so before there is a cluster."""
    for faults in (bad_files(), bad_changes(), judged_by_the_cluster()):
        assert len({fault.name for fault in faults}) == len(faults) > 0
