"""What strangers wrote is shown, and never obeyed by the terminal."""

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from ran import Done
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

import pdd_cli
from pdd_cli.console import SafeConsole
from pdd_cli.doctor.finding import failed
from pdd_cli.doctor.report import findings_json, findings_table

EVIL = "a\x1b[2J\x1b]0;title\x07b\x9b2J\x7f\rc\td"
SEEN = "a\\x1b[2J"


def in_a_table() -> Table:
    table = Table()
    table.add_row(EVIL)
    return table


@pytest.mark.parametrize(
    "renderable",
    [EVIL, Text(EVIL), Padding(Text(EVIL), 1), in_a_table(), Tree(EVIL), findings_table([failed(EVIL, EVIL, EVIL)])],
)
@pytest.mark.parametrize("soft_wrap", [False, True])
def test_control_characters_are_shown(renderable: RenderableType, soft_wrap: bool) -> None:
    console = SafeConsole(file=StringIO(), width=400)
    console.print(renderable, soft_wrap=soft_wrap, markup=False, highlight=False)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO
    assert SEEN in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_our_own_colours_stay() -> None:
    console = SafeConsole(file=StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print("[red]no[/]\x1b[2J")
    assert "\x1b[31mno" in console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO
    assert "\x1b[2J" not in console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO


def test_no_command_prints_to_another_console() -> None:
    sources = Path(pdd_cli.__file__).parent.rglob("*.py")
    assert not [path.name for path in sources if re.search(r"(?<!Safe)\bConsole\(", path.read_text())]


def test_findings_as_json() -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", findings_json([failed("x", EVIL, "")]))


def test_a_file_and_the_command_line_are_strangers_too(pdd: Callable[..., Done]) -> None:
    text = 'kind: "Po\\e[2Jd\\nmore"\nmetadata: {name: "x\\x9b2J"}\napiVersion: v1'
    done = pdd("render", "-f", "-", stdin=text)
    assert done.code == 2
    assert "Po\\x1b[2Jd\\nmore" in done.err
    done_too = pdd("render", "-f", "no\x1b[2Jthing")
    assert "-f no\\x1b[2Jthing cannot be read" in done_too.err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.err + done_too.err)
