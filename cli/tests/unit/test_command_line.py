"""What the person sees who asks for help or for something that cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)


def pdd(*arguments: str, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PDD_ENGINE_PYTHON"}
    return subprocess.run(
        [sys.executable, "-m", "pdd_cli", *arguments],
        capture_output=True, text=True, check=False, cwd=folder, env=inherited | environment, timeout=90,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("demo", "--help")])
def test_help(arguments: tuple[str, ...]) -> None:
    done = pdd(*arguments)
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert not done.stderr


@pytest.mark.parametrize("command", ["demo", "render", "status", "doctor"])
def test_help_of_every_command_has_examples(command: str) -> None:
    text = pdd(command, "--help", COLUMNS="120").stdout
    assert "Examples:" in text
    assert text.count(f"pdd {command} ") >= 2
    assert command in pdd("--help").stdout


def test_help_of_demo_names_every_option() -> None:
    text = pdd("demo", "--help", COLUMNS="120").stdout
    for option in ("--turns", "--prefills", "--quick", "--keep", "--out", "--cache", "--engine-python"):
        assert option in text


def test_nothing_asked_for_shows_help() -> None:
    done = pdd()
    assert done.returncode == 2
    assert "Usage: pdd" in done.stdout
    assert not done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dmo",), "No such command 'dmo'"),
        (("demo", "--turn", "3"), "No such option"),
        (("demo", "--turns", "2"), "--turns"),
        (("demo", "--turns", "many"), "--turns"),
        (("demo", "--prefills", "5"), "--prefills"),
        (("demo", "extra"), "extra"),
        (("demo", "--out", "a-file/below"), "--out a-file/below cannot be made"),
        (("demo", "--out", "a-file"), "--out"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "a-file").write_text("")
    done = pdd(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("pdd: ")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_missing_engine_interpreter(tmp_path: Path, how: str) -> None:
    if how == "option":
        done = pdd("demo", "--engine-python", "nowhere/python", folder=tmp_path)
        source = "--engine-python"
    else:
        done = pdd("demo", folder=tmp_path, PDD_ENGINE_PYTHON="nowhere/python")
        source = "PDD_ENGINE_PYTHON"
    assert done.returncode == 3
    assert f"{source} names nowhere/python" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_help_does_not_load_what_only_a_run_needs() -> None:
    code = "import sys; from pdd_cli.app import app; print([n for n in ('openai', 'matplotlib', 'aiohttp', 'kubernetes', 'pdd_operator') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
