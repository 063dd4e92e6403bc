"""What the suite on a cluster lets pass of logs and restarts, and which images it loads."""

import json

import pytest

from pdd_e2e.cluster.kind_provider import missing_images
from pdd_e2e.cluster.product_images import LOADED_BEFORE, ProductImages
from pdd_e2e.kind_suite.conduct import Moment, ProductPod, complains, restarted
from pdd_e2e.kind_suite.evidence import metrics_port

IMAGES = ProductImages({"operator": "0a", "router": "0b"}, ("localhost/pdd-engine:e2e", "localhost/pdd-engine:0c"))
OPERATOR, ROUTER = "localhost/pdserve/pdd-operator:0a", "localhost/pdserve/pdd-router:0b"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (json.dumps({"level": "info", "message": "reconciled"}), False),
        (json.dumps({"level": "debug"}), False),
        (json.dumps({"level": "warning"}), True),
        (json.dumps({"message": "of no level"}), True),
        (json.dumps(["info"]), True),
        ("Traceback (most recent call last):", True),
    ],
)
def test_what_a_log_may_hold(line: str, *, expected: bool) -> None:
    assert complains(line) is expected


def test_a_pod_that_was_started_again_is_named_unless_its_role_may() -> None:
    before = Moment("2026-01-01T00:00:00Z", {"1": 2, "2": 0})
    same, again = ProductPod("a", "x", "1", "router", 2), ProductPod("a", "y", "2", "prefill", 1)
    new = ProductPod("a", "z", "3", "decode", 1)
    assert restarted(before, [same]) == []
    assert restarted(before, [same, again, new], ["prefill"]) == ["decode a/z was started again (1 times in all)"]
    assert len(restarted(before, [again, new])) == 2


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (list(IMAGES.all), []),
        ([OPERATOR, *IMAGES.engine], [ROUTER]),
        ([OPERATOR, ROUTER, "localhost/pdd-engine:e2e"], list(IMAGES.engine)),
        ([], [OPERATOR, ROUTER, *IMAGES.engine]),
    ],
    ids=["all", "one is new", "the engine's tag is an older build's", "none"],
)
def test_images_that_are_loaded(present: list[str], expected: list[str]) -> None:
    assert missing_images(IMAGES, present) == expected


def test_a_foreign_cluster_has_the_tags_that_the_guide_names() -> None:
    assert LOADED_BEFORE.all[0] == "localhost/pdserve/pdd-operator:e2e"


def test_where_a_pod_has_its_metrics() -> None:
    http, metrics = {"name": "http", "containerPort": 8000}, {"name": "metrics", "containerPort": 9000}
    assert metrics_port({"spec": {"containers": [{}, {"ports": [http, metrics]}]}}) == 9000
    assert metrics_port({"spec": {"containers": [{"ports": [http]}]}}) == 8000
    assert metrics_port({"spec": {"containers": [{}]}}) is None
