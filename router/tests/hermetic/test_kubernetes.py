"""Discovery on Kubernetes: a real router before fake engines and a fake API server, each on real ports."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_api_server import DEPLOYMENT, NAMESPACE, Fail, FakeApiServer, pod

from pdd_e2e.fake_engine import SlowChunks
from pdd_router.app import running
from pdd_router.config import ConfigError, parse_config
from pdd_router.endpoints.engine import Standing
from pdd_router.pods.watching import Pace

LONG = [{"role": "user", "content": "Tell me all that you know of lighthouses. " * 12}]


def fresh(at: object) -> list[Any]:
    return [{"role": "user", "content": f"{at} " * 90}]


def follow_up(history: list[Any], reply: Any) -> list[Any]:
    return [*history, {"role": "assistant", "content": reply.text}, {"role": "user", "content": "Go on. " * 30}]


async def owners_named_to(c: Any, engine: Any) -> list[str]:
    claim = c.legs(engine)[-1].body["kv_transfer_params"]["claim"]
    by_host = {other.claim_host: other.settings.name for other in c.engines}
    return [by_host[owner["host"]] for owner in claim["owners"]]


# ---- the life of a pod ----


async def test_engines_come_from_pods_and_only_list_and_watch_are_asked(kube_cluster: Any) -> None:
    async with kube_cluster(["p0", "d0"]) as c:
        first = await c.chat(LONG)
        assert (first.receipt["why"], first.receipt["prefill"]["engine"]) == ("Split", "p0")
        await c.chat(follow_up(LONG, first))
        assert await owners_named_to(c, c.prefills[0]) == ["d0"], "its claim address is the pod's"
        assert c.state("d0").engine.id.incarnation == "uid-d0.0"
        assert {(method, path) for method, path, *_ in c.api.requests} == {
            ("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")
        }
        assert await c.metric("discovery_connected") == 1
        assert await c.metric("discovery_events_total", type="ADDED") == 2


async def test_pod_serves_only_once_it_is_ready(kube_cluster: Any) -> None:
    async with kube_cluster(["d0", "d1"], shown=["d0"]) as c:
        await c.show(c.decodes[1], ip=None, ready=False, phase="Pending")
        await c.show(c.decodes[1], ready=False)
        await c.until_state("d1", lambda state: state.healthy)  # its own health is not enough
        for at in range(4):
            assert (await c.chat(fresh(at))).receipt["decode"]["engine"] == "d0"
        await c.get("/metrics")
        assert await c.metric("engines", role="Decode", state="NotReady") == 1
        await c.show(c.decodes[1])
        await c.until_state("d1", lambda state: state.view().available)
        assert {(await c.chat(fresh(f"new {at}"))).receipt["decode"]["engine"] for at in range(4)} == {"d0", "d1"}


async def test_when_the_only_decode_goes_as_another_gets_ready_no_request_is_refused(kube_cluster: Any) -> None:
    """A rolling restart: the StatefulSet takes the next pod away as soon as the one before is Ready, and health is looked at every few seconds."""
    async with kube_cluster(["d0", "d1"], shown=["d0"], config={"health": {"intervalSeconds": 30}}) as c:
        await c.decodes[1].kill()
        await c.show(c.decodes[1], ready=False)
        await c.until_state("d1", lambda state: state.failed_checks > 0)
        await c.decodes[1].restart()
        await c.show(c.decodes[1])
        await c.show(c.decodes[0], deleted=True)
        await c.until_state("d0", lambda state: state.draining)
        assert (await c.chat(fresh("now"))).receipt["decode"]["engine"] == "d1"
        await c.decodes[1].kill()
        assert (await c.chat(fresh("later"))).status == 503, "it was met: nobody waits for it any more"


async def test_a_request_waits_for_an_engine_whose_health_is_being_asked(kube_cluster: Any) -> None:
    async with kube_cluster(["d0"], shown=[]) as c:
        await c.decodes[0].kill()
        await c.show(c.decodes[0])
        await c.until_state("d0", lambda state: state.failed_checks > 0)
        asking = asyncio.create_task(c.chat(fresh("early")))
        done, _ = await asyncio.wait([asking], timeout=0.3)
        assert not done, "it was listed as serving a moment ago"
        await c.decodes[0].restart()
        assert (await asking).status == 200


async def test_pod_that_loses_readiness_keeps_its_life(kube_cluster: Any) -> None:
    async with kube_cluster(["p0", "d0", "d1"]) as c:
        first = await c.chat(LONG)
        holder = first.receipt["decode"]["engine"]
        engine = next(engine for engine in c.decodes if engine.settings.name == holder)
        await c.show(engine, ready=False)
        await c.until_state(holder, lambda state: state.standing is Standing.NOT_READY)
        assert (await c.chat(fresh("other"))).receipt["decode"]["engine"] != holder
        await c.show(engine)
        await c.until_state(holder, lambda state: state.view().available)
        second = await c.chat(follow_up(LONG, first))
        assert second.receipt["decode"]["engine"] == holder
        assert (await owners_named_to(c, c.prefills[0]))[0] == holder, "what is known of it still holds"


@pytest.mark.parametrize("how", [{"draining": True}, {"deleted": True, "ready": False}])
async def test_draining_pod_ends_its_streams_gets_nothing_new_and_is_still_asked(
    kube_cluster: Any, how: dict[str, bool]
) -> None:
    """R13 on Kubernetes, and why a pod that goes away is worth knowing until it is gone."""
    async with kube_cluster(["p0", "p1", "d0", "d1"]) as c:
        c.decodes[0].script(SlowChunks(0.05))
        c.decodes[1].script(SlowChunks(0.05))
        stream = asyncio.create_task(c.chat(LONG, stream=True, max_tokens=12))
        await c.until(lambda: any(engine.running for engine in c.decodes))
        old = next(engine for engine in c.decodes if engine.running)
        new = next(engine for engine in c.decodes if engine is not old)
        name = old.settings.name
        await c.show(old, **how)
        await c.until_state(name, lambda state: state.draining)
        for at in range(3):
            assert (await c.chat(fresh(at))).receipt["decode"]["engine"] == new.settings.name
        reply = await stream
        assert reply.done
        assert reply.receipt["decode"]["engine"] == name
        # Its last request has ended and it is known all the same: the conversation that it held is read from it.
        second = await c.chat(follow_up(LONG, reply))
        assert second.receipt["decode"]["engine"] == new.settings.name
        prefill = next(e for e in c.prefills if e.settings.name == second.receipt["prefill"]["engine"])
        assert (await owners_named_to(c, prefill))[0] == name
        await c.api.delete(name)
        await c.until(lambda: c.state(name) is None)
        seen = len(c.legs(prefill))
        again = await c.chat(follow_up(follow_up(LONG, reply), second))
        assert again.receipt["prefill"]["engine"] == prefill.settings.name
        assert name not in await owners_named_to(c, prefill), "gone is gone"
        assert len(c.legs(prefill)) == seen + 1


async def test_container_that_restarted_in_its_pod_is_another_engine(kube_cluster: Any) -> None:
    async with kube_cluster(["p0", "d0"]) as c:
        first = await c.chat(LONG)
        history = follow_up(LONG, first)
        await c.show(c.decodes[0], restarts=1)
        await c.until(lambda: [s.engine.id.incarnation for s in c.registry.states()].count("uid-d0.1") == 1)
        await c.until(lambda: len(c.registry.states()) == 2 and all(s.healthy for s in c.registry.states()))
        await c.until_introduced()
        second = await c.chat(history)
        assert c.legs(c.prefills[0])[1].body["kv_transfer_params"]["claim"]["owners"] == []
        # The control: the same again without a restart, and it is asked.
        await c.show(c.decodes[0], restarts=1)
        await c.chat(follow_up(history, second))
        assert await owners_named_to(c, c.prefills[0]) == ["d0"]


async def test_pods_that_are_no_engines_are_said_once(kube_cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    async with kube_cluster(["d0"]) as c:
        for _ in range(3):
            await c.api.put(
                pod("router-x", "router"), pod("x", "teapot"), pod("odd", None), pod("bad", "decode", ip="nonsense")
            )
        await c.show(c.decodes[0], ready=False)
        await c.until_state("d0", lambda state: state.standing is Standing.NOT_READY)
        assert len(c.registry.states()) == 1
        for reason in ("UnknownRole", "MissingLabel", "Malformed"):
            assert await c.metric("discovery_ignored_pods", reason=reason) == 1
        said = capsys.readouterr()
        lines = [line for line in (said.out + said.err).splitlines() if "Ignored pod" in line]
        assert len(lines) == 3
        await c.api.delete("odd")
        await c.show(c.decodes[0])
        await c.until_state("d0", lambda state: state.standing is Standing.SERVING)
        assert await c.metric("discovery_ignored_pods", reason="MissingLabel") == 0


# ---- revision groups ----


async def test_only_pairs_of_one_group_while_two_live_at_once(kube_cluster: Any) -> None:
    groups = {"p0": "g1", "d0": "g1", "p1": "g2", "d1": "g2"}
    async with kube_cluster(["p0", "d0", "p1", "d1"], groups=groups) as c:
        replies = [await c.chat(fresh(at)) for at in range(8)]
        assert {reply.receipt["decode"]["engine"] for reply in replies} == {"d0", "d1"}, "any group serves"
        # The old one is drained, decode first: its conversations go on in the other, and ask nobody of the old.
        await c.show(c.decodes[0], draining=True)
        await c.until_state("d0", lambda state: state.draining)
        for at, reply in enumerate(replies):
            later = await c.chat(follow_up(fresh(at), reply))
            assert (later.receipt["decode"]["engine"], later.receipt["prefill"]["engine"]) == ("d1", "p1")
            assert "d0" not in await owners_named_to(c, c.prefills[1])
        assert await c.metric("pairs_total", prefill_group="g1", decode_group="g1") > 0
        assert await c.metric("pairs_total", prefill_group="g2", decode_group="g2") >= 8
        for one, other in (("g1", "g2"), ("g2", "g1")):
            assert await c.metric("pairs_total", prefill_group=one, decode_group=other) == 0


async def test_group_with_both_roles_is_preferred_and_half_a_group_serves_when_it_must(kube_cluster: Any) -> None:
    groups = {"d0": "g1", "p1": "g2", "d1": "g2"}
    async with kube_cluster(["d0", "p1", "d1"], groups=groups) as c:
        for at in range(4):
            assert (await c.chat(fresh(at))).receipt["decode"]["engine"] == "d1"
        await c.show(c.decodes[1], draining=True)
        await c.until_state("d1", lambda state: state.draining)
        receipt = (await c.chat(fresh("last"))).receipt
        assert (receipt["decode"]["engine"], receipt["why"]) == ("d0", "NoPrefill")
        assert await c.metric("pairs_total", prefill_group="g2", decode_group="g1") == 0


# ---- the API server's faults ----


async def until_error(c: Any, reason: str, count: int = 1) -> None:
    value = c.router.services.metrics.registry.get_sample_value
    name = "pdd_router_discovery_errors_total"
    await c.until(lambda: (value(name, {"reason": reason}) or 0) >= count)


async def learns(c: Any) -> None:
    """The control of every fault: afterwards news still arrives."""
    await c.show(c.decodes[0], ready=False)
    await c.until_state("d0", lambda state: state.standing is Standing.NOT_READY)
    await c.show(c.decodes[0])
    await c.until_state("d0", lambda state: state.view().available)
    assert (await c.chat(LONG)).status == 200


async def test_watches_end_and_begin_again_without_a_list(kube_cluster: Any) -> None:
    async with kube_cluster(["d0"]) as c:
        await c.until(lambda: sum(kind == "watch" for _, _, kind, _ in c.api.requests) >= 3)
        assert sum(kind == "list" for _, _, kind, _ in c.api.requests) == 1
        await learns(c)
        errors = c.router.services.metrics.render().decode()
        assert "discovery_errors_total{" not in errors, "the ordinary course of things is no error"


async def test_gone_lists_again(kube_cluster: Any) -> None:
    """What happened in between is seen although no event tells of it: a pod that went away, too."""
    async with kube_cluster(["d0", "d1"]) as c:
        c.api.pods.pop("d1")
        c.api.compact()
        c.api.cut_watches()
        await until_error(c, "Gone")
        await c.until(lambda: c.state("d1") is None)
        assert sum(kind == "list" for _, _, kind, _ in c.api.requests) == 2
        await learns(c)


async def test_cut_watch_goes_on(kube_cluster: Any) -> None:
    async with kube_cluster(["d0"]) as c:
        c.api.cut_watches()
        await until_error(c, "Cut")
        await learns(c)


@pytest.mark.parametrize(("status", "reason"), [(500, "Server"), (403, "Refused"), (410, "Gone"), (404, "Status")])
async def test_refused_requests_are_tried_again(kube_cluster: Any, status: int, reason: str) -> None:
    async with kube_cluster(["d0"]) as c:
        c.api.fail(*[Fail(status)] * 3)
        await until_error(c, reason, 3)
        assert (await c.chat(LONG)).status == 200
        await learns(c)


async def test_retry_after_is_honoured(kube_cluster: Any) -> None:
    async with kube_cluster(["d0"]) as c:
        c.api.fail(Fail(429, retry_after="1"))
        await until_error(c, "Throttled")
        asked = len(c.api.requests)
        at = c.api.requests[-1][3]
        await learns(c)
        assert c.api.requests[asked][3] - at >= 1.0, "the pace alone would have come back within 0.2 s"


async def test_silent_connection_is_noticed(kube_cluster: Any) -> None:
    async with kube_cluster(["d0"]) as c:
        c.api.fail(Fail(hang=True))
        await until_error(c, "Timeout")
        await learns(c)


async def test_malformed_objects_cost_a_list_and_nobody_else(kube_cluster: Any) -> None:
    async with kube_cluster(["d0"]) as c:
        for at, line in enumerate((b"not json", b"[]", b'{"type": 5}', b'{"type": "ADDED", "object": 5}'), start=1):
            while await c.metric("discovery_errors_total", reason="Malformed") < at:
                await c.api.send_raw(line)  # again where a list came in between, which need not tell of it
                await asyncio.sleep(0.05)
            assert c.state("d0").view().available
        await c.api.put(pod("odd", "decode", restarts="many"))  # type: ignore[arg-type]  # malformed on purpose
        await learns(c)
        assert [state.engine.id.name for state in c.registry.states()] == ["d0"]


# ---- the API server away ----


async def test_service_goes_on_without_api_server(kube_cluster: Any) -> None:
    """R7: control plane down is not service down."""
    async with kube_cluster(["p0", "d0", "d1"]) as c:
        await c.api.down()
        await until_error(c, "Connect", 2)
        assert await c.metric("discovery_connected") == 0
        for at in range(6):
            assert (await c.chat(fresh(at))).status == 200
        assert (await c.get("/ready")).status == 200
        await c.decodes[1].kill()
        await c.until_state("d1", lambda state: not state.healthy)  # health checks go on deciding
        assert (await c.chat(fresh("more"))).receipt["decode"]["engine"] == "d0"
        scraped = (await c.get("/metrics")).body
        age = float(scraped.split("\npdd_router_discovery_age_seconds ")[1].split("\n")[0])
        assert 0 < age < 60
        c.api.pods.pop("d1")
        c.api.compact()
        await c.api.up()
        await c.until(lambda: c.state("d1") is None)
        await learns(c)
        assert await c.metric("discovery_connected") == 1


async def test_not_ready_until_the_first_list(kube_cluster: Any) -> None:
    async with kube_cluster(["d0"], api_is_up=False) as c:
        await until_error(c, "Connect")
        ready = await c.get("/ready")
        assert (ready.status, ready.body["reason"]) == (503, "EnginesNotListed")
        assert "pdd_router_discovery_age_seconds +Inf" in (await c.get("/metrics")).body
        assert (await c.chat(LONG)).status == 503
        await c.api.up()
        await c.until_state("d0", lambda state: state.view().available)
        assert (await c.get("/ready")).status == 200


async def test_empty_list_is_a_list(kube_cluster: Any) -> None:
    async with kube_cluster(["d0"], shown=[]) as c:
        await c.until(lambda: c.router.services.discovery.listed)
        assert (await c.get("/ready")).body["reason"] == "NoDecode"


async def test_stops_at_once_in_the_middle_of_a_watch(kube_cluster: Any) -> None:
    """With the real pace: a watch of a minute does not hold up the router's end."""
    loop = asyncio.get_running_loop()
    async with kube_cluster(["d0"], pace=Pace()) as c:
        await c.until(lambda: c.api.watches == 1)
        began = loop.time()
    assert loop.time() - began < 2.0


async def test_retain_needs_no_claim_port(kube_cluster: Any) -> None:
    config = {"mechanism": "Retain", "discovery": {"kubernetes": {"claimPort": 0}}}
    async with kube_cluster(["p0", "d0"], config=config) as c:
        assert (await c.chat(LONG)).receipt["why"] == "Split"
        assert all(state.engine.claim is None for state in c.registry.states())


async def test_outside_a_cluster_without_kubeconfig_is_refused_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"namespace": NAMESPACE, "deployment": DEPLOYMENT}
    config = parse_config(yaml.safe_dump({"listen": {"port": 0}, "discovery": {"kubernetes": where}}))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "bad").write_text("a: [")
    for kubeconfig in (None, tmp_path / "none", tmp_path / "bad"):
        monkeypatch.delenv("KUBECONFIG", raising=False)
        if kubeconfig is not None:
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        with pytest.raises(ConfigError, match=r"discovery\.kubernetes: neither KUBECONFIG nor"):
            async with running(config):
                raise AssertionError
    async with FakeApiServer() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path)))
        async with running(config) as router:
            assert router.services.discovery is not None
