"""What is shown: tables, picture, JSON. Data in, something readable out."""

import json
from io import StringIO
from pathlib import Path

import pytest
from matplotlib.image import imread
from rich.console import Console

from pdd_cli.demo import checks, report, table
from pdd_cli.demo.chart import OFF, ON, OWN, READ, draw, split_prefill
from pdd_cli.demo.results import Cache, LegResult, Pair


def rendered(what: object, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, no_color=True)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]  # it is the StringIO


def test_table_has_every_turn_and_fits_into_80_columns(emptied: Pair) -> None:
    text = rendered(table.pair_table(emptied))
    assert "…" not in text
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[0][3:6] == ["-", "-", "(Empty)"]
    assert rows[4] == ["5", "user", "1,080", "1,024", "47", "decode-0", "1,080", "56", "10.80", "1.00", "10.8"]
    assert rows[3][1] == "tool"


def test_table_names_the_prefill_engine_where_there_are_several(make_leg: object) -> None:
    pair = Pair(make_leg(False, Cache.KEPT, 2), make_leg(True, Cache.KEPT, 2))  # type: ignore[operator]  # a fixture
    text = rendered(table.pair_table(pair))
    assert "…" not in text
    assert "Turns land on different P in turn" in text
    assert "prefill-1" in text


def test_titles_say_what_p_had(emptied: Pair, kept: Pair) -> None:
    assert "emptied before every turn" in rendered(table.pair_table(emptied))
    assert "left alone" in rendered(table.pair_table(kept))


def test_check_lines_mark_what_did_not_hold(emptied: Pair) -> None:
    good, bad = checks.check_speedup(emptied, 5), checks.check_speedup(emptied, 50)
    lines = [str(line) for line in table.check_lines([good, bad])]
    assert lines[0].startswith("✓ speed-up  10.8 times faster")
    assert lines[1].startswith("✗ speed-up")


def colours(path: Path) -> dict[str, int]:
    """How many pixels have exactly this colour."""
    pixels = (imread(path)[:, :, :3] * 255).round().astype(int)
    wanted = {name: [int(name[index : index + 2], 16) for index in (1, 3, 5)] for name in (OFF, ON, READ, OWN)}
    return {name: int((pixels == rgb).all(axis=2).sum()) for name, rgb in wanted.items()}


def test_picture_shows_lines_and_bars(tmp_path: Path, emptied: Pair, kept: Pair) -> None:
    draw(emptied, kept.off, tmp_path / "demo.png")
    assert imread(tmp_path / "demo.png").shape[:2] == (1536, 1600)
    found = colours(tmp_path / "demo.png")
    assert found[OFF] > 5 * found[ON] > 0, "bars and line of reuse off are far bigger"
    assert found[READ] > 500
    assert found[OWN] > 100


def test_picture_without_reading_has_no_bars_of_it(tmp_path: Path, make_leg: object) -> None:
    off = make_leg(False)  # type: ignore[operator]  # a fixture
    draw(Pair(off, off), None, tmp_path / "demo.png")
    assert colours(tmp_path / "demo.png")[READ] == 0


def test_bars_split_the_leg(emptied: Pair) -> None:
    for bar, turn in zip(split_prefill(emptied.on), emptied.on.turns, strict=True):
        assert bar.compute + bar.transfer == pytest.approx(turn.receipt.seconds)
        assert bar.transfer == pytest.approx(turn.read_seconds)


def test_summary(emptied: Pair, kept: Pair) -> None:
    figures = report.summary([emptied, kept])
    assert figures["speedup"] == pytest.approx(10.8)
    assert figures["on_over_own_cache"] == pytest.approx(1.0)
    line = report.summary_line([emptied, kept])
    assert line == (
        "At 1,080 prompt tokens the first token came after 1.0 s instead of 10.8 s: 10.8 times faster, "
        "1.00 times what P's own cache gives."
    )
    assert "own cache" not in report.summary_line([emptied])


def test_summary_of_several_prefill_engines(make_leg: object) -> None:
    def tokens(leg: LegResult) -> int:
        return leg.computed_tokens

    pair = Pair(make_leg(False), make_leg(True, Cache.KEPT))  # type: ignore[operator]  # a fixture
    pair = Pair(LegResult(False, Cache.KEPT, pair.off.turns), pair.on)
    assert f"{tokens(pair.on):,} prompt tokens instead of {tokens(pair.off):,}" in report.summary_line([pair])


def test_report_is_json_with_everything(tmp_path: Path, emptied: Pair) -> None:
    found = [checks.check_speedup(emptied, 5)]
    report.write_json(tmp_path / "demo.json", report.report([emptied], found, {"turns": 5}))
    read = json.loads((tmp_path / "demo.json").read_text())
    assert read["format"] == 1
    assert read["setting"] == {"turns": 5}
    assert read["checks"][0]["held"] is True
    assert [leg["reuse"] for leg in read["legs"]] == [False, True]
    assert read["legs"][1]["turns"][4]["receipt"]["read_tokens"] == 1024
