"""The stack with stand-ins for engines: order of life, and that nothing is left however it ends."""

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pdd_cli.errors import StartError
from pdd_cli.local.engines import EngineOptions, Role
from pdd_cli.local.kv_config import Connector
from pdd_cli.local.process_groups import living_members
from pdd_cli.local.stack import LocalStack, StackSpec
from pdd_cli.local.waiting import until

Marked = Callable[[str], list[int]]


def make_spec(python: Path, mode: str = "", **changes: object) -> StackSpec:
    folder = python.parent
    options = EngineOptions(environment={"STAND_IN": mode})
    return StackSpec(python=python, model=folder / "model", run_folder=folder / "logs", options=options, **changes)  # type: ignore[arg-type]  # a table of fields


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if living_members(pid)]


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


async def test_life_of_a_stack(stand_in: Path, marked: Marked, own_temporary_folder: Path) -> None:
    spec = make_spec(stand_in, prefills=2, aggregates=1, connector={"recompute_threshold_tokens": 5})
    async with LocalStack(spec) as stack:
        assert [engine.name for engine in stack.engines] == ["prefill-0", "prefill-1", "decode-0", "aggregate-0"]
        assert len(alive(marked("engine"))) == 4
        ports = [port for e in stack.engines for port in (e.spec.port, e.spec.side_channel_port, e.spec.claim_port)]
        assert len(set(ports)) == 12
        config = json.loads(stack.prefills[1].spec.kv_transfer_config or "")
        assert config == {
            "kv_role": "prefill",
            "port": stack.prefills[1].spec.claim_port,
            "recompute_threshold_tokens": 5,
        }
        assert stack.aggregates[0].spec.kv_transfer_config is None
        async with stack.session.get(f"{stack.decodes[0].url}/health") as answer:
            assert answer.status == 200
    assert not alive(marked("engine"))
    assert is_empty(own_temporary_folder)


async def test_restart_keeps_the_address_and_changes_the_process(stand_in: Path, marked: Marked) -> None:
    async with LocalStack(make_spec(stand_in)) as stack:
        engine = stack.decodes[0]
        url, pid = engine.url, engine.pid
        await stack.restart(engine)
        assert engine.url == url
        assert engine.pid not in (None, pid)
        assert pid is not None
        assert not living_members(pid)
    assert len(marked("engine")) == 3
    assert not alive(marked("engine"))


@pytest.mark.parametrize("mode", ["deaf", "grandchild"])
async def test_stubborn_engines_are_ended_too(stand_in: Path, marked: Marked, mode: str) -> None:
    async with LocalStack(make_spec(stand_in, mode)) as stack:
        pids = marked("engine")
        await asyncio.gather(*(engine.stop(grace_seconds=0.3) for engine in stack.engines))
    assert len(pids) == 2
    assert not alive(pids)


async def test_an_engine_that_dies_says_why_and_takes_the_stack_with_it(
    stand_in: Path, marked: Marked, own_temporary_folder: Path
) -> None:
    spec = make_spec(stand_in, options_of={Role.DECODE: EngineOptions(environment={"STAND_IN": "dies"})})
    with pytest.raises(StartError, match=r"(?s)decode-0 ended with exit code 9 .*start again.*Address already in use"):
        async with LocalStack(spec):
            pytest.fail("it must not come up")
    assert not alive(marked("engine"))
    assert is_empty(own_temporary_folder)


async def test_an_engine_that_never_gets_ready(stand_in: Path, marked: Marked) -> None:
    with pytest.raises(StartError, match="was not ready after 1 s"):
        async with LocalStack(make_spec(stand_in, "never-ready", ready_timeout_seconds=1.0)):
            pytest.fail("it must not come up")
    assert not alive(marked("engine"))


async def test_cancelled_while_starting(stand_in: Path, marked: Marked, own_temporary_folder: Path) -> None:
    async def run() -> None:
        async with LocalStack(make_spec(stand_in, "never-ready")):
            pytest.fail("it must not come up")

    task = asyncio.ensure_future(run())

    async def both_run() -> bool:
        return len(marked("engine")) == 2

    assert await until(both_run, 0.02, timeout_seconds=20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(marked("engine"))
    assert is_empty(own_temporary_folder)


async def test_an_end_that_nobody_asked_for_is_noticed(stand_in: Path) -> None:
    async with LocalStack(make_spec(stand_in)) as stack:
        pid = stack.prefills[0].pid
        assert pid is not None
        os.kill(pid, 9)
        with pytest.raises(StartError, match="prefill-0 ended by itself with exit code -9"):
            await stack.wait_for_an_end()


async def test_logs_of_an_earlier_run_are_gone(stand_in: Path) -> None:
    log = stand_in.parent / "logs" / "decode-0.log"
    log.parent.mkdir()
    log.write_text("an earlier run\n")
    async with LocalStack(make_spec(stand_in)):
        assert "an earlier run" not in log.read_text()


async def test_the_stock_connector_is_configured_without_our_builder(stand_in: Path) -> None:
    spec = make_spec(stand_in, connector_kind=Connector.STOCK, connector={"kv_lease_duration": 6})
    async with LocalStack(spec) as stack:
        config = json.loads(stack.decodes[0].spec.kv_transfer_config or "")
    assert config["kv_connector"] == "NixlConnector"
    assert config["kv_role"] == "kv_consumer"
    assert config["kv_connector_extra_config"]["kv_lease_duration"] == 6
