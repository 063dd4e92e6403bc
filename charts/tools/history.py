"""Chart and definition as an earlier commit had them."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

PARTS = ("charts/pdd-operator",)


@dataclass(frozen=True, slots=True)
class History:
    """The git repository at ``root``."""

    root: Path

    def earlier(self) -> str | None:
        """The newest commit whose chart differs from the one in the working tree. None: there is none."""
        for commit in self._git("log", "--format=%H", "--", *PARTS).decode().split():
            if self._holds_chart(commit) and self._differs(commit):
                return commit
        return None

    def unpack(self, commit: str, folder: Path) -> Path:
        """The chart of ``commit``, in ``folder``."""
        with tarfile.open(fileobj=io.BytesIO(self._git("archive", commit, "--", *PARTS))) as archive:
            archive.extractall(folder, filter="data")
        return folder / PARTS[0]

    def _holds_chart(self, commit: str) -> bool:
        """A chart without the definition is none that anybody could have run."""
        listed = self._git("ls-tree", "-r", "--name-only", commit, "--", f"{PARTS[0]}/templates/crds")
        return bool(listed.strip())

    def _differs(self, commit: str) -> bool:
        return bool(self._git("diff", "--name-only", commit, "--", *PARTS).strip())

    def _git(self, *arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=self.root, check=True, capture_output=True, timeout=60).stdout  # noqa: S603, S607  # git from PATH
