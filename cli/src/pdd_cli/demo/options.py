"""What the person asked `pdd demo` for, with every default filled in."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdd_cli.errors import InvalidUsageError
from pdd_cli.local.environment import checkout_start, find_engine_python
from pdd_cli.local.model import default_cache


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`target_seconds`: what prefill of the longest prompt should take when it is computed afresh."""

    turns: int
    prefills: int
    quick: bool
    keep: bool
    out: Path
    cache: Path
    engine_python: Path
    max_tokens: int
    target_seconds: float

    @classmethod
    def resolve(
        cls,
        turns: int | None,
        prefills: int,
        quick: bool,
        keep: bool,
        out: Path,
        cache: Path | None,
        engine_python: Path | None,
        environment: Mapping[str, str],
    ) -> "DemoOptions":
        """Raises InvalidUsageError if --out cannot be written, MissingEngineError if there is no engine interpreter."""
        try:
            (out / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InvalidUsageError(f"--out {out} cannot be made: {problem.strerror}") from None
        return cls(
            turns=turns or (4 if quick else 7),
            prefills=prefills,
            quick=quick,
            keep=keep,
            out=out,
            cache=(cache or default_cache(environment)).absolute(),
            engine_python=find_engine_python(engine_python, environment, checkout_start()),
            max_tokens=6 if quick else 12,
            target_seconds=8.0 if quick else 10.0,
        )
