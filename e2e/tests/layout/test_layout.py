"""Rules of the layout that no linter knows: see CONTRIBUTING.md."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("operator", "charts", "connector", "router", "crds", "e2e", "cli", "docs")
LOCKS = (
    "requirements.lock",
    "connector/requirements.lock",
    "operator/requirements.lock",
    "router/requirements.lock",
    "images.lock",
)
MAX_LINES = 600
FORBIDDEN_NAMES = {"utils", "helpers", "common", "manager"}


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607  # git from PATH
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_folder_is_there_and_is_no_package(folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_modules_are_short_and_say_what_they_are() -> None:
    modules = tracked("*.py")
    assert len(modules) > 50
    for module in modules:
        text = module.read_text(encoding="utf-8")
        assert text.count("\n") <= MAX_LINES, f"{module} has more than {MAX_LINES} lines"
        assert module.stem not in FORBIDDEN_NAMES, f"{module}: name it for what it holds"
        if "/src/" in module.as_posix():
            assert text.lstrip().startswith('"""'), f"{module} must begin with a docstring"


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_pin_every_package_by_hash_and_name_no_index(lock: str) -> None:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    packages = [line for line in lines if re.match(r"[a-z0-9]", line)]
    assert packages
    assert all("==" in line for line in packages)
    assert sum("--hash=sha256:" in line for line in lines) >= len(packages)
    assert not any("://" in line for line in lines)


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in tracked("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), (
                    f"{page.relative_to(ROOT)} links to {target}, which is not there"
                )
