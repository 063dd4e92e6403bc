"""Whatever the API server says: reading never fails, and the table is what a fresh list would give."""

import json
from typing import Any

from fake_api_server import pod
from hypothesis import given
from hypothesis import strategies as st

from pdd_router.endpoints.engine import Listed, Standing
from pdd_router.pods.reading import NotListed, Ports, read_pod
from pdd_router.pods.table import PodTable

PORTS = Ports(8000, 6600)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS: dict[str, Any] = {
    "role": st.sampled_from(["prefill", "decode", "router", None]),
    "group": st.sampled_from(["a", "b", None]),
    "ip": st.sampled_from(["10.0.0.1", "fd00::1", None, "x"]),
    "uid": st.sampled_from(["u1", "u2"]),
    "ready": st.booleans(),
    "restarts": st.integers(0, 3),
    "draining": st.booleans(),
    "deleted": st.booleans(),
    "phase": st.sampled_from(["Pending", "Running", "Failed"]),
}
PODS = st.builds(pod, st.sampled_from(["p-0", "p-1", "d-0"]), **FIELDS)
KEYS = ["metadata", "name", "uid", "labels", "annotations", "deletionTimestamp", "status", "podIP", "conditions",
        "containerStatuses", "restartCount", "phase", "type"]  # fmt: skip


@given(JSON)
def test_reading_anything_never_fails(value: Any) -> None:
    assert isinstance(read_pod(value, PORTS), NotListed)


@given(PODS, st.sampled_from(KEYS), JSON)
def test_reading_a_pod_with_one_wrong_field_never_fails(value: dict[str, Any], key: str, wrong: Any) -> None:
    def spoil(item: Any) -> Any:
        if isinstance(item, dict):
            return {name: wrong if name == key else spoil(inner) for name, inner in item.items()}
        return [spoil(inner) for inner in item] if isinstance(item, list) else item

    assert isinstance(read_pod(spoil(value), PORTS), Listed | NotListed)


@given(PODS)
def test_serving_means_all_that_it_must(value: dict[str, Any]) -> None:
    read = read_pod(value, PORTS)
    if isinstance(read, Listed) and read.standing is Standing.SERVING:
        assert value["status"]["podIP"]
        assert {"type": "Ready", "status": "True"} in value["status"]["conditions"]
        assert "deletionTimestamp" not in value["metadata"]
        assert "annotations" not in value["metadata"]
        assert value["metadata"]["labels"]["pdserve.io/role"] == str(read.engine.role).lower()
        assert read.engine.group == value["metadata"]["labels"]["pdserve.io/revision-group"]


@given(st.lists(PODS, max_size=3), st.lists(st.tuples(st.booleans(), PODS), max_size=10))
def test_watching_comes_to_what_a_list_would_give(first: list[Any], events: list[tuple[bool, Any]]) -> None:
    """The API server's own order: a pod is deleted as what it last was, and a name is given anew only after that."""
    there = {value["metadata"]["name"]: value for value in first}
    watched, listed = PodTable(PORTS), PodTable(PORTS)
    watched.reset(there.values())
    for deletes, value in events:
        name = value["metadata"]["name"]
        old = there.get(name)
        if old is not None and (deletes or old["metadata"]["uid"] != value["metadata"]["uid"]):
            watched.apply("DELETED", there.pop(name))
        if not deletes:
            watched.apply("MODIFIED" if name in there else "ADDED", json.loads(json.dumps(value)))
            there[name] = value
    listed.reset(there.values())
    assert watched.listing() == listed.listing()
