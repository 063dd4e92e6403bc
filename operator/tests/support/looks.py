"""A reconciler of its own process, as tests of single looks have it: what it is told of, and how it is asked to look."""

from __future__ import annotations

from collections.abc import Callable

from fake_cluster import FakeCluster

from pdd_operator.api.names import NamespacedName, ObjectRef
from pdd_operator.kube.events import EventRecorder
from pdd_operator.metrics import Metrics
from pdd_operator.observe.observed import Observed, ReuseWindow
from pdd_operator.reconcile import Clocks, Reconciler
from pdd_operator.render.inputs import Images, Platform, RenderSettings
from pdd_operator.workqueue import Done, Retry

KEY = NamespacedName("agents", "small")
SETTINGS = RenderSettings(Images("router:1", "connector:1", {Platform.CPU: "cpu:1"}), "pdd-system")
RESYNC_SECONDS = 300.0


def looks_of_a_new_process(
    cluster: FakeCluster, settings: RenderSettings = SETTINGS, identity: str = "pdd-system/pdd-operator"
) -> Callable[[], Done | Retry]:
    clock = cluster.clock

    def saw(observed: Observed, read_at: float) -> None:
        assert read_at <= clock.now

    reconciler = Reconciler(
        cluster,
        settings,
        EventRecorder(cluster, "test", clock.utc),
        Metrics(),
        Clocks(clock.utc, clock),
        identity=identity,
        resync_seconds=RESYNC_SECONDS,
        reuse=lambda key: ReuseWindow(None, None),
        saw=saw,
    )
    return lambda: reconciler.reconcile(KEY)


def name_of(cluster: FakeCluster, kind: str, part: str = "") -> ObjectRef:
    return next(ref for ref in cluster.objects if ref.kind == kind and part in ref.name)
