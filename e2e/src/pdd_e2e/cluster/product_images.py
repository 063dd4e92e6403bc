"""Builds the product's images from their Dockerfiles, and an engine's image without an engine, as this machine's Docker has them.

Each is tagged with what is in it, so that a cluster gets what changed and nothing else, and another build is another reference. Where no base is
named, the base is a Debian with Python 3.11 made here, whose pip is set up as this machine's is: nothing about a package index is in any file of
the project.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdd_e2e.cluster.errors import ClusterError
from pdd_e2e.cluster.node_image import KIND_FILES, build, debian_image
from pdd_e2e.cluster.shell import run
from pdd_e2e.control_plane.binaries import Say

ROOT = Path(__file__).parents[4]
REGISTRY = "localhost"
BUILT = "e2e"  # the tag of the latest build here, and the one that nodes of somebody else's cluster must have
PARTS = ("operator", "router", "connector")
_PYTHON = "localhost/pdd-python:3.11"
ENGINE_IMAGE = f"localhost/pdd-engine:{BUILT}"  # samples name it
_ID_LENGTH = 12
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True, slots=True)
class ProductImages:
    """Tags of the product's images, by part, and the references of the engine's: samples name the first of them."""

    tags: Mapping[str, str]
    engine: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Every reference."""
        return (*(f"{_repository(part)}:{tag}" for part, tag in self.tags.items()), *self.engine)


# What nodes of a cluster of somebody else's have.
LOADED_BEFORE = ProductImages(dict.fromkeys(PARTS, BUILT), (ENGINE_IMAGE, ENGINE_IMAGE.replace(f":{BUILT}", ":other")))


def build_product_images(
    state: Path, say: Say, *, base_image: str | None = None, sources: Path = ROOT
) -> ProductImages:
    """Builds what changed in `sources`; Docker's cache keeps the rest. Raises ClusterError with the end of the build's output."""
    debian = debian_image(state, say)
    base = base_image or _python_image(state, say)
    tags = {}
    for part in PARTS:
        name = f"{_repository(part)}:{BUILT}"
        say(f"building {name}")
        final = debian if part == "connector" and base_image is None else base
        build(sources / part / "Dockerfile", sources, name, arguments={"BASE_IMAGE": final, "BUILD_IMAGE": base})
        tags[part] = _tag_by_content(name)
    say(f"building {ENGINE_IMAGE}")
    with tempfile.TemporaryDirectory(dir=state) as context:
        build(KIND_FILES / "engine" / "Dockerfile", Path(context), ENGINE_IMAGE)
    engine = f"{ENGINE_IMAGE.removesuffix(BUILT)}{_tag_by_content(ENGINE_IMAGE)}"
    return ProductImages(tags, (ENGINE_IMAGE, engine))


def _repository(part: str) -> str:
    return f"{REGISTRY}/pdserve/pdd-{part}"


def _tag_by_content(name: str) -> str:
    """Gives the image `name` a second tag, the beginning of its id, and returns that."""
    found = run(["docker", "image", "inspect", "--format", "{{.Id}}", name]).strip().removeprefix("sha256:")
    tag = found[:_ID_LENGTH]
    run(["docker", "tag", name, f"{name.removesuffix(BUILT)}{tag}"])
    return tag


def pip_settings(environment: Mapping[str, str], configured: Mapping[str, str]) -> str:
    """A pip.conf that says what `pip config list` and PIP_* variables say here, but for what names a file of this machine."""
    values = {key.partition(".")[2]: value for key, value in configured.items() if not key.startswith(":env:")}
    values |= {
        key.removeprefix("PIP_").lower().replace("_", "-"): value
        for key, value in environment.items()
        if key.startswith("PIP_")
    }
    kept = {key: value for key, value in values.items() if key and not value.startswith("/")}
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in sorted(kept.items()))


def _python_image(state: Path, say: Say) -> str:
    say(f"building {_PYTHON}")
    with tempfile.TemporaryDirectory(dir=state) as folder:
        context = Path(folder)
        (context / "pip.conf").write_text(pip_settings(os.environ, _configured()))
        if not _CERTIFICATES.is_file():
            raise ClusterError(f"{_CERTIFICATES} is missing: install ca-certificates")
        shutil.copy(_CERTIFICATES, context / "certificates.crt")
        build(KIND_FILES / "python" / "Dockerfile", context, _PYTHON)
    return _PYTHON


def _configured() -> dict[str, str]:
    """pip's configuration files of this user, as pip itself reads them."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)  # noqa: S603  # the pip of this environment
    lines = [line.partition("=") for line in done.stdout.splitlines() if "=" in line]
    return {key: value.strip("'\"") for key, _, value in lines}
