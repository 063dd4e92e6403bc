"""Which earlier chart the upgrade test begins with, and that none is said and not guessed."""

import subprocess
from pathlib import Path

import pytest
from history import PARTS, History


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True)  # noqa: S607  # git from PATH
    return done.stdout.strip()


def commit(root: Path, name: str, content: str) -> str:
    path = root / PARTS[0] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", content)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    return tmp_path


def test_a_first_version_has_none_before_it(root: Path) -> None:
    commit(root, "templates/crds/things.yaml", "first")
    assert History(root).earlier() is None


def test_it_is_the_newest_that_differs(root: Path) -> None:
    commit(root, "templates/crds/things.yaml", "first")
    second = commit(root, "templates/crds/things.yaml", "second")
    third = commit(root, "templates/crds/things.yaml", "third")
    assert History(root).earlier() == second
    (root / PARTS[0] / "values.yaml").write_text("not committed", encoding="utf-8")
    git(root, "add", ".")
    assert History(root).earlier() == third


def test_a_chart_without_its_definition_is_passed_over(root: Path) -> None:
    commit(root, "Chart.yaml", "no definition yet")
    commit(root, "templates/crds/things.yaml", "first")
    assert History(root).earlier() is None


def test_it_is_unpacked_as_it_was(root: Path, tmp_path: Path) -> None:
    first = commit(root, "templates/crds/things.yaml", "first")
    commit(root, "templates/crds/things.yaml", "second")
    chart = History(root).unpack(first, tmp_path / "earlier")
    assert (chart / "templates/crds/things.yaml").read_text(encoding="utf-8") == "first"
