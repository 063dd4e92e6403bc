"""Where the engine interpreter is looked for."""

from pathlib import Path

import pytest

from pdd_cli.errors import MissingEngineError
from pdd_cli.local.environment import find_engine_python


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("")
    return path


def test_order_option_variable_checkout(tmp_path: Path) -> None:
    option, variable = make(tmp_path / "o" / "python"), make(tmp_path / "v" / "python")
    checkout = make(tmp_path / "connector/.venv/bin/python")
    start = tmp_path / "cli" / "src"
    start.mkdir(parents=True)
    named = {"PDD_ENGINE_PYTHON": str(variable)}
    assert find_engine_python(option, named, start) == option
    assert find_engine_python(None, named, start) == variable
    assert find_engine_python(None, {}, start) == checkout
    assert find_engine_python(None, {"PDD_ENGINE_PYTHON": ""}, start) == checkout


def test_a_link_is_kept_as_it_is(tmp_path: Path) -> None:
    """The link is the virtual environment: resolved, it would be the system's python."""
    real = make(tmp_path / "real" / "python")
    link = tmp_path / "connector/.venv/bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert find_engine_python(None, {}, tmp_path) == link


def test_none_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(MissingEngineError, match="make setup"):
        find_engine_python(None, {}, tmp_path)
