"""vLLM's own NIXL connector as it is, for the control of the suite. Loaded by test engines only, by its path.

Only its waiting is made quiet, as ours is: two of them would starve each other, and every other test, on two cores.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlConnector

from pdd_connector.nixl_agent import sleeping_progress_thread
from pdd_connector.waiting import nap_instead_of_yielding


class StockConnector(NixlConnector):  # type: ignore[misc]  # vLLM ships no types
    """What `kv_connector` names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        nap_instead_of_yielding()
        with sleeping_progress_thread():
            super().__init__(*args, **kwargs)
