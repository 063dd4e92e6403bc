"""What programs that a cache keeps have in common: a version that a go.mod asks for, an archive that may hold one, and how it appears."""

import lzma
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdd_e2e.control_plane.errors import ControlPlaneError


def required_version(source: Path, module: str) -> str:
    """The version of `module` that the go.mod in `source` asks for, as `v1.37.2`. Raises ControlPlaneError."""
    asked = rf"^(?:require)?\s*{re.escape(module)} (v\S+)"
    found = re.search(asked, (source / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ControlPlaneError(f"{source}/go.mod does not require {module}")
    return found[1]


@contextmanager
def made_once(kept: Path) -> Iterator[Path]:
    """Where to make the program that is to be `kept`: it appears by a rename, never half; two runs at once do the work twice and agree."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        target = Path(folder) / kept.name
        yield target
        target.replace(kept)


def unpack(archive: Path, target: Path) -> None:
    """One program that was compressed with xz."""
    with lzma.open(archive) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    target.chmod(0o755)
