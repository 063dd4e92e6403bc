"""Finds the interpreter that has vLLM and NIXL. Looks, never installs."""

from collections.abc import Mapping
from pathlib import Path

from pdd_cli.errors import MissingEngineError

VARIABLE = "PDD_ENGINE_PYTHON"
INSIDE_CHECKOUT = Path("connector/.venv/bin/python")


def find_engine_python(given: Path | None, environment: Mapping[str, str], start: Path) -> Path:
    """The engine interpreter: `given` (--engine-python), else PDD_ENGINE_PYTHON, else connector/.venv of the checkout around `start`.

    Raises MissingEngineError, whose message says what to run.
    """
    named = given or (Path(environment[VARIABLE]) if environment.get(VARIABLE) else None)
    if named is not None:
        if named.is_file():
            return named.absolute()
        source = "--engine-python" if given else VARIABLE
        raise MissingEngineError(
            f"{source} names {named}, which is no file; give the python of an environment with vLLM and NIXL"
        )
    for folder in (start, *start.parents):
        candidate = folder / INSIDE_CHECKOUT
        if candidate.is_file():
            return candidate.absolute()  # not resolved: the link is what makes it a virtual environment
    raise MissingEngineError(
        f"no engine environment ({INSIDE_CHECKOUT}) in or above {start}; "
        f"run `make setup` in the checkout, or name an interpreter with --engine-python or {VARIABLE}"
    )


def checkout_start() -> Path:
    """Where the search begins: this file, which lies in the checkout when `pdd` is installed editable."""
    return Path(__file__).resolve().parent
