"""The cached model: made once, whole or not at all."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from pdd_cli.errors import CliError, MissingEngineError, StartError
from pdd_cli.local.model import default_cache, locate, prepare_model
from pdd_cli.local.process_groups import living_members
from pdd_cli.local.progress import Silent
from pdd_cli.local.waiting import until

Marked = Callable[[str], list[int]]


def in_cache(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


async def test_converted_once(stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "deep" / "cache"
    folder = await prepare_model(stand_in, cache, Silent())
    assert folder == cache / "model-float32-1.0"
    assert (folder / "config.json").exists()
    assert in_cache(cache) == ["model-float32-1.0"]
    monkeypatch.setenv("STAND_IN", "failing-convert")
    assert await prepare_model(stand_in, cache, Silent()) == folder


async def test_two_at_once_convert_once(stand_in: Path, tmp_path: Path) -> None:
    first, second = await asyncio.gather(*(prepare_model(stand_in, tmp_path / "c", Silent()) for _ in range(2)))
    assert first == second
    assert in_cache(tmp_path / "c") == ["model-float32-1.0"]


async def test_a_failure_leaves_nothing(stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "failing-convert")
    with pytest.raises(StartError, match=r"(?s)exit code 1.*cannot read it"):
        await prepare_model(stand_in, tmp_path / "c", Silent())
    assert in_cache(tmp_path / "c") == []


async def test_an_interruption_leaves_nothing(
    stand_in: Path, tmp_path: Path, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "slow-convert")
    task = asyncio.ensure_future(prepare_model(stand_in, tmp_path / "c", Silent()))

    async def converting() -> bool:
        return bool(marked("converting"))

    assert await until(converting, 0.02, timeout_seconds=20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert in_cache(tmp_path / "c") == []
    assert not living_members(marked("converting")[0])


async def test_a_cache_that_cannot_be(stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="name another with --cache"):
        await prepare_model(stand_in, tmp_path / "file" / "c", Silent())


async def test_an_environment_without_the_wheel(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho null\n")
    bare.chmod(0o755)
    with pytest.raises(MissingEngineError, match="make setup"):
        await locate(bare)


@pytest.mark.parametrize("says", ["", "hello", "5", "{}", "[]", '{"file": 5}', "\\377"])
async def test_an_interpreter_that_is_no_python(tmp_path: Path, says: str) -> None:
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\nprintf '{says}'\n")
    other.chmod(0o755)
    with pytest.raises(MissingEngineError, match=r"is no Python.*give the python of an environment"):
        await locate(other)


async def test_an_interpreter_that_fails(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho broken >&2\nexit 7\n")
    other.chmod(0o755)
    with pytest.raises(MissingEngineError, match=r"-c \.\.\.` ended with exit code 7:\n  broken$"):
        await locate(other)


@pytest.mark.parametrize("mode", [0o644, 0o755])
async def test_an_interpreter_that_cannot_be_executed(tmp_path: Path, mode: int) -> None:
    words = tmp_path / "python"
    words.write_text("just words\n")
    words.chmod(mode)
    with pytest.raises(MissingEngineError, match=r"cannot be executed \((Permission denied|Exec format error)\)"):
        await locate(words)


def test_default_cache() -> None:
    assert default_cache({"XDG_CACHE_HOME": "x"}) == Path("x/pdd")
    assert default_cache({}) == Path.home() / ".cache" / "pdd"
