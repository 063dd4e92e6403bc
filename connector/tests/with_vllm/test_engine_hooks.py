"""What is wrapped of vLLM's engine: the lock, the wake, the state, and frees that wait for steps in flight."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlConnector
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineShutdownState

from pdd_connector import engine_hooks
from pdd_connector.claims.messages import RefuseReason
from pdd_connector.engine_hooks import ENGINE_LOCK, LOCKED, engine_unavailable, install, wake_engine, weight_version

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def installed() -> None:
    install()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    sent: list[Any] = []
    engine = SimpleNamespace(
        shutdown_state=EngineShutdownState.RUNNING,
        scheduler=SimpleNamespace(pause_state=PauseState.UNPAUSED),
        input_queue=SimpleNamespace(put_nowait=sent.append),
        get_weight_version=lambda: "w7",
        sent=sent,
    )
    monkeypatch.setattr(engine_hooks, "_engine", engine)
    yield engine


def test_installing_twice_wraps_once() -> None:
    before = {name: getattr(Scheduler, name) for name in LOCKED}
    install()
    assert {name: getattr(Scheduler, name) for name in LOCKED} == before


@pytest.mark.parametrize("name", LOCKED)
def test_the_engine_thread_waits_for_whoever_uses_the_pool(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = threading.Event()
    method = engine_hooks._under_lock(lambda _self: entered.set())
    monkeypatch.setattr(Scheduler, name, method)
    with ENGINE_LOCK:
        thread = threading.Thread(target=getattr(Scheduler, name), args=(None,))
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(5)
    thread.join()


def test_an_idle_engine_is_woken(engine: Any) -> None:
    wake_engine()
    assert engine.sent == [(EngineCoreRequestType.WAKEUP, None)]


def test_a_stopping_or_pausing_engine_is_unavailable(engine: Any) -> None:
    assert engine_unavailable() is None
    engine.scheduler.pause_state = PauseState.PAUSED_NEW
    assert engine_unavailable() is RefuseReason.ASLEEP
    engine.shutdown_state = EngineShutdownState.REQUESTED
    assert engine_unavailable() is RefuseReason.STOPPING


def test_an_engine_that_does_not_run_yet_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_hooks, "_engine", None)
    assert engine_unavailable() is RefuseReason.STOPPING
    assert weight_version() == ""


def test_the_version_of_the_weights_is_the_engines(engine: Any) -> None:
    assert weight_version() == "w7"


@pytest.mark.parametrize("role", ["Prefill", "Decode"])
@pytest.mark.parametrize("ours", [True, False])
def test_with_several_steps_in_flight_freed_blocks_wait_for_them(
    role: str, ours: bool, make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM itself does so on decode only: on a prefill engine that reads, a step in flight would write over what was read."""
    monkeypatch.setattr(VllmConfig, "max_concurrent_batches", property(lambda _self: 2))
    if ours:
        monkeypatch.setattr(NixlConnector, "reads_into_freed_blocks", True, raising=False)
    engine = make_engine(role, stock=True)
    engine.scheduler.schedule()
    assert engine.scheduler.defer_block_free == (ours or role == "Decode")


def test_with_one_step_at_a_time_nothing_waits(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NixlConnector, "reads_into_freed_blocks", True, raising=False)
    engine = make_engine("Prefill", stock=True)
    engine.scheduler.schedule()
    assert not engine.scheduler.defer_block_free


@pytest.mark.parametrize("guarded", [True, False])
def test_in_a_process_that_has_no_worker_blocks_of_a_step_in_flight_are_not_read_into(
    guarded: bool, model_folder: Path
) -> None:
    """As with tensor parallelism: a new process, where our connector is first heard of while the scheduler is made."""
    program = [sys.executable, str(Path(__file__).with_name("scheduler_alone.py")), str(model_folder), str(guarded)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=100)  # this Python
    written, read_into = (set(blocks) for blocks in json.loads(done.stdout.splitlines()[-1]))
    assert len(written) > 1 and len(read_into) > 1
    assert bool(written & read_into) is not guarded, "without the guard it happens"
