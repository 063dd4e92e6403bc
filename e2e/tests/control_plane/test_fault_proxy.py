"""Each fault as scripted, and with no rule the very same calls pass unharmed."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdd_cli.local.ports import free_ports
from pdd_e2e.control_plane.api import Json, KubeApi
from pdd_e2e.control_plane.certificates import KeyPair
from pdd_e2e.control_plane.errors import ApiError, ApiUnreachableError, ControlPlaneError
from pdd_e2e.control_plane.fault_proxy import FaultProxy
from pdd_e2e.control_plane.fault_rules import (
    Answer,
    CutWatch,
    Delay,
    Fault,
    Hang,
    ResetAfter,
    ResetBefore,
    Rule,
    StallWatch,
)
from pdd_e2e.control_plane.local_control_plane import LocalControlPlane
from pdd_e2e.control_plane.request_info import RequestInfo

AGENT = "tested/1"


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


class Through:
    """A client behind the proxy, and the truth from beside it."""

    def __init__(self, plane: LocalControlPlane, proxy: FaultProxy, api: KubeApi, namespace: str) -> None:
        self.plane, self.proxy, self.api, self.namespace = plane, proxy, api, namespace
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"

    def stored(self) -> set[str]:
        names = {one["metadata"]["name"] for one in self.plane.api.items(self.path)}
        return names - {"kube-root-ca.crt"}

    def rule(self, fault: Fault, verb: str, nth: int = 1) -> Rule:
        return Rule(fault=fault, verbs={verb}, resource="configmaps", namespace=self.namespace, nth=nth)


@pytest.fixture
def through(control_plane: LocalControlPlane, fault_proxy: FaultProxy, namespace: str) -> Iterator[Through]:
    base = control_plane.kubeconfig_for(user="proxied", groups=["system:masters"])
    with KubeApi(fault_proxy.kubeconfig(base), user_agent=AGENT, timeout_seconds=1.0) as api:
        yield Through(control_plane, fault_proxy, api, namespace)


def test_without_a_rule_nothing_happens(through: Through) -> None:
    start = through.plane.audit.position()
    through.api.create(through.path, config_map("a"))
    through.api.patch(f"{through.path}/a", {"data": {"k": "v"}})
    assert through.api.get(f"{through.path}/a")["data"] == {"k": "v"}
    through.api.delete(f"{through.path}/a")
    assert through.stored() == set()
    counts = {(verb, resource): n for (agent, verb, resource), n in through.proxy.counts().items() if agent == AGENT}
    assert counts == {(verb, "configmaps"): 1 for verb in ("create", "patch", "get", "delete")}
    writes = through.plane.audit.writes(since=start, user="proxied")
    assert [call.verb for call in writes] == ["create", "patch", "delete"]


def test_the_server_sees_the_same_user_with_certificate_and_with_token(
    control_plane: LocalControlPlane, fault_proxy: FaultProxy, namespace: str
) -> None:
    for direct in (
        control_plane.kubeconfig_for(user="ann", groups=["one", "two"]),
        control_plane.kubeconfig_for(service_account=(namespace, "default")),
    ):
        beside = control_plane.kubectl("auth", "whoami", kubeconfig=direct)
        through_it = control_plane.kubectl("auth", "whoami", kubeconfig=fault_proxy.kubeconfig(direct))
        assert groups_and_name(through_it) == groups_and_name(beside)


def groups_and_name(whoami: str) -> list[str]:
    return [" ".join(line.split()) for line in whoami.splitlines() if line.startswith(("Username", "Groups"))]


@pytest.mark.parametrize("code", [409, 429, 500, 503])
def test_the_nth_call_is_answered_by_the_proxy(through: Through, code: int) -> None:
    entry = through.proxy.add(through.rule(Answer(code), "create", nth=2))
    through.api.create(through.path, config_map("a"))
    with pytest.raises(ApiError) as refused:
        through.api.create(through.path, config_map("b"))
    assert refused.value.code == code
    assert refused.value.body["kind"] == "Status"
    through.api.create(through.path, config_map("c"))
    assert through.stored() == {"a", "c"}
    assert (entry.matched, entry.hits) == (3, 1)


def test_retry_after_is_said(through: Through) -> None:
    through.proxy.add(through.rule(Answer(429, retry_after_seconds=7), "list"))
    with pytest.raises(ApiError) as refused:
        through.api.get(through.path)
    assert refused.value.body["details"] == {"retryAfterSeconds": 7}


def test_a_rule_holds_for_its_verb_and_resource_only(through: Through) -> None:
    entry = through.proxy.add(through.rule(Answer(500), "delete"))
    through.api.create(through.path, config_map("a"))
    through.api.get(f"/api/v1/namespaces/{through.namespace}/secrets")
    assert entry.matched == 0
    with pytest.raises(ApiError, match="500"):
        through.api.delete(f"{through.path}/a")
    through.proxy.clear()
    through.api.delete(f"{through.path}/a")


def test_a_reset_before_leaves_nothing_and_a_reset_after_leaves_the_write(through: Through) -> None:
    through.proxy.add(through.rule(ResetBefore(), "create"))
    through.proxy.add(through.rule(ResetAfter(), "create", nth=2))
    for name in ("before", "after"):
        with pytest.raises(ApiUnreachableError):
            through.api.create(through.path, config_map(name))
    assert through.stored() == {"after"}
    through.api.create(through.path, config_map("later"))
    assert through.stored() == {"after", "later"}


def test_a_call_that_hangs_never_arrives_and_a_late_one_does(through: Through) -> None:
    through.proxy.add(through.rule(Hang(), "create"))
    through.proxy.add(through.rule(Delay(0.4), "create", nth=2))
    with pytest.raises(ApiUnreachableError):
        through.api.create(through.path, config_map("hangs"))
    began = time.monotonic()
    through.api.create(through.path, config_map("late"))
    assert time.monotonic() - began >= 0.4
    assert through.stored() == {"late"}


def added(through: Through, count: int) -> Iterator[str]:
    """Names that a watch through the proxy shows while `count` objects are made one after another."""
    version = through.plane.api.get(through.path)["metadata"]["resourceVersion"]
    watch = through.api.watch(through.path, version)
    for number in range(count):
        through.plane.api.create(through.path, config_map(f"map-{number}"))
    ending = threading.Timer(1.0, watch.close)
    ending.start()
    try:
        for event in watch:
            if event["type"] == "ADDED":
                yield event["object"]["metadata"]["name"]
    finally:
        ending.cancel()
        ending.join()


def test_a_watch_streams_and_is_cut_after_so_many_events(through: Through) -> None:
    seen: list[str] = []
    through.proxy.add(through.rule(CutWatch(after_events=2), "watch", nth=2))
    assert list(added(through, 3)) == ["map-0", "map-1", "map-2"]
    through.plane.api.delete(through.path)
    with pytest.raises(ApiUnreachableError, match="watch broke"):
        seen.extend(added(through, 3))
    assert seen == ["map-0", "map-1"] or seen == []  # a reset may overtake what was sent before it


def test_a_stalled_watch_shows_the_past(through: Through) -> None:
    through.proxy.add(through.rule(StallWatch(after_events=1, seconds=30), "watch"))
    assert list(added(through, 3)) == ["map-0"]
    assert through.stored() == {"map-0", "map-1", "map-2"}


def test_hooks_run_around_every_write_and_may_drop_it(through: Through) -> None:
    before: list[tuple[int, str, set[str]]] = []
    after: list[tuple[int, int, set[str]]] = []

    def look_before(call: RequestInfo, number: int) -> bool:
        before.append((number, call.verb, through.stored()))
        return number != 2

    def look_after(call: RequestInfo, number: int, code: int) -> None:
        after.append((number, code, through.stored()))

    through.proxy.before_write, through.proxy.after_write = look_before, look_after
    through.api.create(through.path, config_map("a"))
    with pytest.raises(ApiUnreachableError):
        through.api.create(through.path, config_map("dropped"))
    through.api.get(through.path)
    through.api.delete(f"{through.path}/a")
    assert before == [(1, "create", set()), (2, "create", {"a"}), (3, "delete", {"a"})]
    assert after == [(1, 201, {"a"}), (3, 200, set())]


def test_what_a_hook_raises_fails_its_test(control_plane: LocalControlPlane, namespace: str) -> None:
    def wrong(call: RequestInfo, number: int) -> bool:
        raise ValueError("not what the test expected")

    with pytest.raises(ControlPlaneError, match="not what the test expected"), FaultProxy(control_plane) as proxy:
        proxy.before_write = wrong
        with KubeApi(proxy.kubeconfig(control_plane.kubeconfig)) as api, pytest.raises(ApiUnreachableError):
            api.create(f"/api/v1/namespaces/{namespace}/configmaps", config_map("a"))


def test_waiting_for_calls_ends_with_them(through: Through) -> None:
    assert not through.proxy.wait_for(lambda calls: len(calls) >= 2, 0.05)
    listing = threading.Thread(target=lambda: [through.api.get(through.path) for _ in range(2)])
    listing.start()
    assert through.proxy.wait_for(lambda calls: len(calls) >= 2, 10.0)
    listing.join()
    assert [(call.info.verb, call.info.resource) for call in through.proxy.calls()] == [("list", "configmaps")] * 2


@dataclass(frozen=True)
class Away:
    """A control plane whose API server is not there."""

    url: str
    authority: Path
    serving: KeyPair
    front_proxy: KeyPair


def test_an_api_server_that_is_away_is_away_through_the_proxy(control_plane: LocalControlPlane) -> None:
    plane = control_plane
    url = f"https://127.0.0.1:{free_ports(1)[0]}"
    away = Away(url, plane.authority, plane.serving, plane.front_proxy)
    with FaultProxy(away) as proxy, KubeApi(proxy.kubeconfig(plane.kubeconfig)) as api:
        with pytest.raises(ApiUnreachableError):
            api.get("/version")
        assert [call.info.resource for call in proxy.calls()] == ["/version"]
    with FaultProxy(plane) as proxy, KubeApi(proxy.kubeconfig(plane.kubeconfig)) as api:
        assert api.get("/version")["major"] == "1"
