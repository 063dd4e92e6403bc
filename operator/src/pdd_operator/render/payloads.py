"""Text that ends in ConfigMaps: start scripts from templates, and scripts that are shipped as they are.

Pure but for reading this package's own files, once each. Values reach a shell script only through the filter ``quote``.
"""

from __future__ import annotations

import shlex
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, Template

_PACKAGE: Final = "pdd_operator.render"


@cache
def script(name: str) -> str:
    """A file of ``scripts/``, as it is."""
    return files(_PACKAGE).joinpath("scripts", name).read_text(encoding="utf-8")


def fill(template: str, **values: Any) -> str:
    """A template of ``templates/`` with these values; one that is missing is an error."""
    return _compiled(template).render(values)


@cache
def _compiled(template: str) -> Template:
    source = files(_PACKAGE).joinpath("templates", template).read_text(encoding="utf-8")
    return _environment().from_string(source)


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701 - shell text, not HTML: `quote` is what makes a value safe here
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["quote"] = shlex.quote
    return environment
