"""An API server of thirty lines, its clock, and one process that looks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_cluster import Clock, FakeCluster
from looks import looks_of_a_new_process

from pdd_operator.workqueue import Done, Retry


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def clock(cluster: FakeCluster) -> Clock:
    return cluster.clock


@pytest.fixture
def look(cluster: FakeCluster) -> Callable[[], Done | Retry]:
    return looks_of_a_new_process(cluster)
