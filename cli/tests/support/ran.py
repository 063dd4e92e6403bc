"""What a run of `pdd` left behind."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str
