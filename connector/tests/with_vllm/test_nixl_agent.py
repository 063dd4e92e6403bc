"""NIXL's progress thread sleeps in agents that we have made so, and in no others."""

import importlib
import time
from typing import Any

import pytest

from pdd_connector.nixl_agent import SLEEP_MICROSECONDS, sleeping_progress_thread


@pytest.fixture
def api() -> Any:
    """The Python API of NIXL that vLLM uses."""
    wrapper = importlib.import_module("vllm.distributed.nixl_utils").NixlWrapper
    return importlib.import_module(wrapper.__module__)


def test_only_agents_made_meanwhile_sleep(api: Any) -> None:
    original = api.nixlBind.nixlAgentConfig
    with sleeping_progress_thread():
        patient = api.nixlBind.nixlAgentConfig()
        patient.pthrDelay = 0
        patient.listenPort = 4321
    assert (patient.pthrDelay, patient.listenPort) == (SLEEP_MICROSECONDS, 4321)
    assert api.nixlBind.nixlAgentConfig is original


def test_the_api_is_as_it_was_after_a_failure(api: Any) -> None:
    original = api.nixlBind.nixlAgentConfig
    with pytest.raises(ValueError, match="no agent"), sleeping_progress_thread():
        raise ValueError("no agent")
    assert api.nixlBind.nixlAgentConfig is original


def test_an_idle_agent_takes_no_core(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time, not wall time: however loaded the machine is, a thread that sleeps uses almost none."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    with sleeping_progress_thread():
        agent = api.nixl_agent("idle", api.nixl_agent_config(num_threads=4))
    time.sleep(0.5)  # until its threads have started
    before = time.process_time()
    time.sleep(1.0)
    used = time.process_time() - before
    del agent
    assert used < 0.05
