"""vLLM's processes nap where they spun; the hook that this stands on is vLLM's."""

from typing import Any
from unittest.mock import Mock

import pytest
from vllm.distributed.device_communicators import shm_broadcast

from pdd_connector.waiting import NAP_SECONDS, nap_instead_of_yielding


def test_a_reader_that_waits_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_broadcast, "sched_yield", Mock(side_effect=AssertionError("it spun")))
    naps: list[float] = []
    monkeypatch.setattr("time.sleep", naps.append)
    reader: Any = object.__new__(shm_broadcast.SpinCondition)
    reader.is_reader, reader.busy_loop_s, reader.last_read = True, 1, float("inf")

    with pytest.raises(AssertionError, match="it spun"):
        reader.wait()
    nap_instead_of_yielding()
    reader.wait()

    assert naps == [NAP_SECONDS]
