"""Calibration against a fake engine whose speed is known."""

from pathlib import Path

import aiohttp
import pytest

from pdd_cli.demo.measure import measure
from pdd_cli.errors import StartError
from pdd_cli.local.engine import Engine
from pdd_cli.local.engines import EngineSpec, Role
from pdd_cli.local.progress import Silent
from pdd_e2e.fake_engine import FakeEngine, FakeFabric, Status

SECONDS_PER_TOKEN = 0.0004


def as_engine(fake: FakeEngine, folder: Path) -> Engine:
    port = int(fake.url.rpartition(":")[2])
    spec = EngineSpec(fake.settings.name, Role.PREFILL, folder, "fake", port, 1, fake.claim_port, None)
    return Engine(spec, folder / "python", folder, "", None)


async def test_finds_the_speed_and_the_length_of_tokens(tmp_path: Path) -> None:
    fabric = FakeFabric()
    async with (
        FakeEngine(fabric=fabric, role="Prefill", name="p", seconds_per_prompt_token=SECONDS_PER_TOKEN) as fake,
        FakeEngine(fabric=fabric, role="Decode", name="d") as other,
        aiohttp.ClientSession() as session,
    ):
        found = await measure(as_engine(fake, tmp_path), [as_engine(other, tmp_path)], session, Silent())
        again = await measure(as_engine(fake, tmp_path), [], session, Silent())
        warmed_up = len(other.requests)
    for measured in (found, again):  # no cache may help the second time
        for probe in measured.probes:
            assert probe.seconds > 0.9 * probe.tokens * SECONDS_PER_TOKEN
    assert found.rates.prose == pytest.approx(1.0, rel=0.2)  # a token of the fake is a byte
    assert warmed_up == 1


async def test_an_engine_that_refuses_is_named(tmp_path: Path) -> None:
    async with (
        FakeEngine(fabric=FakeFabric(), role="Prefill", name="p") as fake,
        aiohttp.ClientSession() as session,
    ):
        fake.script(Status(500), times=3)
        with pytest.raises(StartError, match="p answered 500"):
            await measure(as_engine(fake, tmp_path), [], session, Silent())
