"""Pod → engine, and events → engines, by cases."""

from typing import Any

import pytest
from fake_api_server import pod

from pdd_router.endpoints.engine import ClaimAddress, Engine, EngineId, Listed, Role, Standing
from pdd_router.pods.reading import NotListed, Ports, read_pod
from pdd_router.pods.table import MalformedEventError, PodTable

PORTS = Ports(engine=8000, claim=6600)


def read(**fields: Any) -> Listed | NotListed:
    return read_pod(pod("d-0", **{"role": "decode", **fields}), PORTS)


def listed(**fields: Any) -> Listed:
    value = read(**fields)
    assert isinstance(value, Listed)
    return value


def test_pod_is_an_engine() -> None:
    assert listed(ip="10.1.2.3", uid="u-1", restarts=2) == Listed(
        Engine(EngineId("d-0", "http://10.1.2.3:8000", "u-1.2"), Role.DECODE, "g1", ClaimAddress("10.1.2.3", 6600)),
        Standing.SERVING,
    )
    assert listed(role="prefill").engine.role is Role.PREFILL


def test_ipv6_is_in_brackets_in_the_url_only() -> None:
    engine = listed(ip="fd00::0:1").engine
    assert (engine.id.url, engine.claim) == ("http://[fd00::1]:8000", ClaimAddress("fd00::1", 6600))


def test_engine_without_claim_port_cannot_be_claimed_from() -> None:
    value = read_pod(pod("d-0", "decode"), Ports(8000, None))
    assert isinstance(value, Listed)
    assert value.engine.claim is None


@pytest.mark.parametrize(
    ("fields", "standing"),
    [
        ({}, Standing.SERVING),
        ({"ready": False}, Standing.NOT_READY),
        ({"draining": True}, Standing.DRAINING),
        ({"deleted": True}, Standing.DRAINING),
        ({"deleted": True, "ready": False}, Standing.DRAINING),
    ],
)
def test_standing(fields: dict[str, Any], standing: Standing) -> None:
    assert listed(**fields).standing is standing


def test_only_true_drains() -> None:
    value = pod("d-0", "decode")
    value["metadata"]["annotations"] = {"pdserve.io/draining": "false"}
    assert read_pod(value, PORTS) == listed()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"role": None}, NotListed.MISSING_LABEL),
        ({"group": None}, NotListed.MISSING_LABEL),
        ({"group": ""}, NotListed.MISSING_LABEL),
        ({"role": "router"}, NotListed.UNKNOWN_ROLE),
        ({"ip": None}, NotListed.PENDING),
        ({"ip": ""}, NotListed.PENDING),
        ({"ip": "example.org"}, NotListed.MALFORMED),
        ({"restarts": "1"}, NotListed.MALFORMED),
        ({"phase": "Failed"}, NotListed.ENDED),
        ({"phase": "Succeeded"}, NotListed.ENDED),
    ],
)
def test_what_is_no_engine(fields: dict[str, Any], reason: NotListed) -> None:
    assert read(**fields) is reason
    assert reason.is_fault == (reason not in (NotListed.PENDING, NotListed.ENDED))


@pytest.mark.parametrize("value", [5, [], "pod", {"metadata": 5}, {"metadata": {"labels": []}}])
def test_what_is_no_pod(value: object) -> None:
    assert read_pod(value, PORTS) is NotListed.MALFORMED


def test_other_restarts_and_other_pods_are_other_engines_but_readiness_is_not() -> None:
    ids = {listed(**fields).engine.id for fields in ({}, {"restarts": 1}, {"uid": "other"})}
    assert len(ids) == 3
    assert listed(ready=False).engine == listed().engine
    sidecar = pod("d-0", "decode")
    sidecar["status"]["containerStatuses"][0]["restartCount"] = 100
    assert read_pod(sidecar, PORTS) == listed(), "only the engine's own container counts"


def names(table: PodTable) -> list[str]:
    return [item.engine.id.name for item in table.listing().engines]


def test_events_change_what_a_list_gave() -> None:
    table = PodTable(PORTS)
    table.reset([pod("p-0"), pod("d-0", "decode"), pod("x", None), 5])
    assert names(table) == ["d-0", "p-0"]
    assert table.listing().faults == {"x": NotListed.MISSING_LABEL, "#3": NotListed.MALFORMED}
    table.apply("ADDED", pod("d-1", "decode", ip=None))
    assert names(table) == ["d-0", "p-0"]
    table.apply("MODIFIED", pod("d-1", "decode"))
    table.apply("DELETED", pod("p-0"))
    table.apply("DELETED", pod("never-seen"))
    table.apply("DELETED", pod("x", None))
    assert names(table) == ["d-0", "d-1"]
    table.reset([])
    assert table.listing().engines == ()
    assert table.listing().faults == {}


def test_late_deletion_of_a_replaced_pod_takes_nothing() -> None:
    table = PodTable(PORTS)
    table.reset([pod("d-0", "decode", uid="new")])
    table.apply("DELETED", pod("d-0", "decode", uid="old"))
    assert names(table) == ["d-0"]
    table.apply("DELETED", pod("d-0", "decode", uid="new"))
    assert names(table) == []


@pytest.mark.parametrize(
    ("kind", "value"), [("ADDED", 5), ("ADDED", {}), ("DELETED", {"metadata": {}}), ("NONSENSE", pod("p-0"))]
)
def test_event_that_cannot_be_applied(kind: str, value: object) -> None:
    with pytest.raises(MalformedEventError):
        PodTable(PORTS).apply(kind, value)
