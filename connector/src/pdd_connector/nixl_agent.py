"""Lets NIXL's progress thread sleep until something arrives, where it would take a core from the model.

NIXL's Python API asks for a thread that polls without a pause (`pthrDelay` 0, no setting for it). On a host whose CPU computes the model, that
thread of every connected engine takes what the model needs, and reads become slower, not faster: 12 to 90 ms instead of 4 for 4 MB between two
idle agents on two cores. With GPUs it is left as it is. Used only while the worker's agent is made; no file of NIXL is edited.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

SLEEP_MICROSECONDS: Final = 100_000
"""Longest sleep: events wake the thread sooner, so this is only a net beneath them."""


@contextmanager
def sleeping_progress_thread() -> Iterator[None]:
    """NIXL agents made meanwhile have a progress thread that sleeps."""
    from vllm.distributed.nixl_utils import NixlWrapper

    bindings: Any = sys.modules[NixlWrapper.__module__].__dict__["nixlBind"]
    original = bindings.nixlAgentConfig

    class PatientAgentConfig(original):  # type: ignore[misc, valid-type]  # NIXL ships no types
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, SLEEP_MICROSECONDS if name == "pthrDelay" else value)

    bindings.nixlAgentConfig = PatientAgentConfig
    try:
        yield
    finally:
        bindings.nixlAgentConfig = original
