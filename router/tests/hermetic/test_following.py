"""Engines and keys change while the router runs."""

import asyncio
from typing import Any

from pdd_e2e.fake_engine import SlowChunks

LONG = [{"role": "user", "content": "Tell me all that you know of lighthouses. " * 12}]


async def test_engine_that_is_added_serves(cluster: Any) -> None:
    async with cluster(decodes=2) as c:
        c.write_engines([c.prefills[0], c.decodes[0]])
        await c.until(lambda: len(c.registry.states()) == 2)
        for _ in range(3):
            assert (await c.chat(LONG)).receipt["decode"]["engine"] == "d0"
        c.write_engines()
        await c.until(lambda: len(c.registry.states()) == 3 and all(s.healthy for s in c.registry.states()))
        await c.until_introduced()
        assert {
            (await c.chat([{"role": "user", "content": f"{at} " * 90}])).receipt["decode"]["engine"] for at in range(4)
        } == {
            "d0",
            "d1",
        }


async def test_engine_that_is_removed_ends_what_it_has_and_gets_nothing_new(cluster: Any) -> None:
    """R13, as far as the router goes: 0 cut streams, 0 failures."""
    async with cluster(decodes=2) as c:
        c.decodes[0].script(SlowChunks(0.05))
        running = asyncio.create_task(c.chat(LONG, stream=True, max_tokens=8))
        await c.until(lambda: c.decodes[0].running == 1)
        c.write_engines([c.prefills[0], c.decodes[1]])
        await c.until(lambda: any(state.draining for state in c.registry.states()))
        for _ in range(4):
            assert (await c.chat(LONG)).receipt["decode"]["engine"] == "d1"
        reply = await running
        assert reply.done
        assert reply.receipt["decode"]["engine"] == "d0"
        await c.until(lambda: len(c.registry.states()) == 2)
        assert len(c.legs(c.decodes[0])) == 1


async def test_same_name_with_another_incarnation_is_another_engine(cluster: Any) -> None:
    async with cluster() as c:
        history: list[Any] = list(LONG)
        first = await c.chat(history)
        history += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Go on. " * 30}]
        c.write_engines(d0="second")
        await c.until(lambda: any(s.engine.id.incarnation == "second" and s.healthy for s in c.registry.states()))
        await c.until_introduced()
        await c.chat(history)
        assert c.legs(c.prefills[0])[1].body["kv_transfer_params"]["claim"]["owners"] == []


async def test_bad_file_keeps_the_last_good_state(cluster: Any) -> None:
    async with cluster() as c:
        for at, text in enumerate(
            (
                "not: [valid",
                "engines: 5",
                "engines: [{name: x}]",
                "engines: [{name: p0, role: Teapot, url: 'http://x'}]",
                "engines: [{name: a, role: Decode, url: 'http://x'}, {name: a, role: Decode, url: 'http://y'}]",
                "engines: [{name: a, role: Decode, url: 'ftp://x'}]",
                "engines: [{name: a, role: Decode, url: 'http://u:p@x'}]",
                "engines: [{name: a, role: Decode, url: 'http://x:65536'}]",
                "engines: [{name: a, role: Decode, url: 'http://x:0'}]",
                "engines: [{name: a, role: Decode, url: 'http://x:80/'}, {name: b, role: Prefill, url: 'http://X'}]",
                "[]",
                "engines: [{name: a, role: Decode, url: 'http://x', group: 2024-99-99}]",  # YAML's own converters fail
            )
        ):
            (c.folder / "engines.yaml").write_text(text)
            await c.until(
                lambda at=at: (
                    c.router.services.metrics.registry.get_sample_value(
                        "pdd_router_file_reloads_total", {"file": "engines.yaml", "result": "Refused"}
                    )
                    == at + 1
                )
            )
            assert (await c.chat(LONG)).status == 200
        (c.folder / "engines.yaml").unlink()
        await asyncio.sleep(0.15)
        assert (await c.chat(LONG)).status == 200
        c.write_engines([c.decodes[0]])
        await c.until(lambda: len(c.registry.states()) == 1)
        assert (await c.chat(LONG)).receipt["why"] == "NoPrefill"


async def test_empty_list_drains_everything(cluster: Any) -> None:
    async with cluster() as c:
        c.write_engines([])
        await c.until(lambda: not c.registry.states())
        assert (await c.chat(LONG)).status == 503


async def test_keys_are_followed(cluster: Any) -> None:
    config = {"authentication": {"apiKeysFile": "keys.yaml"}}
    async with cluster(config=config, files={"keys.yaml": "first-key: alice\n"}) as c:
        first, second = ({"Authorization": f"Bearer {name}-key"} for name in ("first", "second"))
        assert (await c.chat(LONG, headers=first)).status == 200
        (c.folder / "keys.yaml").write_text("second-key: alice\n")
        assert c.router.files[1].poll()
        assert (await c.chat(LONG, headers=second)).status == 200
        assert (await c.chat(LONG, headers=first)).status == 401
        (c.folder / "keys.yaml").write_text("{}")
        await asyncio.sleep(0.15)
        assert (await c.chat(LONG, headers=second)).status == 200, "no keys at all is a bad file, not open house"


async def test_revision_groups_are_never_paired(cluster: Any) -> None:
    """Half of a rollout: prefill and decode of one revision only ever work with each other."""
    async with cluster(prefills=2, decodes=2) as c:
        for engine, group in ((c.prefills[0], "a"), (c.decodes[0], "a"), (c.prefills[1], "b"), (c.decodes[1], "b")):
            c_group[engine.settings.name] = group
        write_groups(c)
        await c.until(lambda: {s.engine.group for s in c.registry.states()} == {"a", "b"})
        await c.until(lambda: len(c.registry.states()) == 4 and all(s.healthy for s in c.registry.states()))
        await c.until_introduced()
        assert len(c.registry.introductions.introduced) == 4, "two pairs in each group, none across"
        for at in range(12):
            receipt = (await c.chat([{"role": "user", "content": f"{at} " * 90}])).receipt
            assert receipt["prefill"]["engine"][1] == receipt["decode"]["engine"][1]


c_group: dict[str, str] = {}


def write_groups(c: Any) -> None:
    import yaml

    entries = [
        {
            "name": engine.settings.name,
            "role": str(engine.settings.role),
            "url": engine.url,
            "claim": {"host": engine.claim_host, "port": engine.claim_port},
            "group": c_group[engine.settings.name],
        }
        for engine in c.engines
    ]
    (c.folder / "engines.yaml").write_text(yaml.safe_dump({"engines": entries}))
