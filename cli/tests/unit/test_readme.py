"""What the documents say of the demo is one thing, and all of it."""

import re

import pytest
from rendering import ROOT

from pdd_cli import errors
from pdd_cli.app import demo

READMES = {name: (ROOT / name).read_text() for name in ("README.md", "cli/README.md")}


def test_the_memory_that_the_demo_needs() -> None:
    texts = [*READMES.values(), demo.__doc__ or ""]
    assert [set(re.findall(r"(\d+) GB of memory", text)) for text in texts] == [{"12"}] * 3


@pytest.mark.parametrize(
    "error",
    [
        errors.CliError,
        errors.InvalidUsageError,
        errors.MissingEngineError,
        errors.StartError,
        errors.LostEngineError,
        errors.BrokenPromiseError,
    ],
)
def test_every_exit_code_of_the_demo_is_told(error: type[errors.CliError]) -> None:
    section = READMES["cli/README.md"].partition("## pdd demo")[2]
    assert f"\n| {error.exit_code} | " in section
