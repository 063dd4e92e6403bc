"""The process: settings → logging → probes → lease → watches, workers, resync. Decides nothing about any object.

A standby waits for the lease with its probes answering. What holds the lease ends at once, without farewell, when it loses it; on SIGTERM it
stops within seconds and gives the lease up, so that the next one need not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from uuid import uuid4

import kopf
import structlog

from pdd_operator import logs
from pdd_operator.api.names import NamespacedName
from pdd_operator.errors import OperatorError, SettingsError
from pdd_operator.handlers import Told, make_registry, make_settings
from pdd_operator.kube import kinds
from pdd_operator.kube.cluster import KubeCluster, connect
from pdd_operator.kube.events import EventRecorder
from pdd_operator.kube.kinds import Kind
from pdd_operator.kube.lease import Lease, LeaseKeeper, LeaseTerms
from pdd_operator.metrics import Metrics
from pdd_operator.observe.observed import Observed
from pdd_operator.probes import serve_probes
from pdd_operator.reconcile import Clocks, Reconciler
from pdd_operator.sampling import ReuseSampler
from pdd_operator.scrape import sample_engines
from pdd_operator.settings import Settings
from pdd_operator.watches import WatchMonitor
from pdd_operator.workqueue import Done, Retry, WorkQueue, serve

T = TypeVar("T")
_log = structlog.stdlib.get_logger("pdd_operator")

EXIT_SETTINGS = 2
EXIT_LEASE_LOST = 3
EXIT_BROKEN = 4
_STOP_SECONDS = 5.0
"""How long what is in flight may take when the process is asked to stop."""
_AGAIN_SECONDS = 1.0
_LOOK_SECONDS = 0.2
_BEGIN_SECONDS = 30.0
"""In that time every kind must be watched, or the process begins again: a definition may be missing, or a permission."""
_SPREAD = 0.1
"""Part of the resync period over which objects are spread."""


class Operator:
    """One process. ``run`` returns its exit code."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._identity = f"{settings.pod_name}_{uuid4().hex[:8]}"
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self._end_watches = threading.Event()
        self._ill: str | None = None
        self._stop_kopf: Callable[[], object] = _always
        # Clocks of reconciles may stand still while the machine sleeps; that of the lease (kube.lease) may not.
        self._queue = WorkQueue(time.monotonic, random.random, on_add=self._wake.set)
        api = connect(f"pdd-operator/{self._identity}", settings.kubeconfig)
        count = self._metrics.count_call
        leases = KubeCluster(api, timeout_seconds=settings.lease_renew_seconds, may_write=_always, count_call=count)
        terms = LeaseTerms(
            NamespacedName(settings.namespace, settings.lease_name), self._identity, settings.lease_duration_seconds
        )
        self._lease = Lease(leases, terms)
        self._keeper = LeaseKeeper(self._lease, settings.lease_renew_seconds, _end_at_once)
        self._cluster = KubeCluster(
            api,
            timeout_seconds=settings.request_timeout_seconds,
            may_write=self._lease.may_write if settings.leader_election else _always,
            count_call=count,
        )
        self._sampler = ReuseSampler(sample_engines, settings.sample_seconds, self._queue.add)
        self._watches = WatchMonitor(time.monotonic, settings.stuck_seconds)
        self._threads = ThreadPoolExecutor(settings.workers, "reconcile")
        self._reconciler = Reconciler(
            self._cluster,
            settings.render,
            EventRecorder(self._cluster, self._identity, _now),
            self._metrics,
            Clocks(_now, time.monotonic),
            identity=settings.identity,
            resync_seconds=settings.resync_seconds,
            reuse=self._sampler.window,
            saw=self._saw,
        )
        self._metrics.watch(
            lambda: self._lease.held or not settings.leader_election,
            lambda: self._queue.depth,
            lambda: self._queue.oldest_seconds,
        )

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        settings = self._settings
        async with AsyncExitStack() as stack:
            probes = serve_probes(settings.http_address, settings.http_port, self._illness, self._metrics.expose)
            await stack.enter_async_context(probes)
            if settings.leader_election and not await self._lead():
                return 0
            try:
                return await self._work()
            finally:
                if settings.leader_election:
                    await asyncio.to_thread(self._keeper.stop)

    async def _lead(self) -> bool:
        """Waits for the lease; False when asked to stop before."""
        _log.info("Waiting for the lease", identity=self._identity)
        acquiring = asyncio.create_task(asyncio.to_thread(self._keeper.acquire))
        stopping = asyncio.create_task(self._stopped.wait())
        await asyncio.wait((acquiring, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not acquiring.done():
            self._keeper.give_up()
        stopping.cancel()
        if leads := await acquiring:
            _log.info("Became leader", identity=self._identity)
        return leads

    async def _work(self) -> int:
        """Until asked to stop, or until something that must run for ever ends."""
        watched = await self._answer("kinds are served", partial(_served, self._cluster))
        namespaces = await self._answer("namespaces may be read", self._readable_namespaces)
        if watched is None or namespaces is None:
            return 0
        self._watches.expect(kind.kind for kind in (*watched, kinds.POD, kinds.DEPLOYMENT))
        loop = asyncio.get_running_loop()

        def told(key: NamespacedName, uid: str, version: str, gone: bool) -> None:
            loop.call_soon_threadsafe(self._told, key, uid, version, gone)

        broken = asyncio.Event()
        broke = partial(loop.call_soon_threadsafe, broken.set)
        lasting = {
            asyncio.create_task(_apart(self._watching(watched, namespaces, told, broke)), name="watches"),
            asyncio.create_task(broken.wait(), name="a watch"),
            asyncio.create_task(
                serve(self._queue, self._wake, self._reconcile, self._settings.workers), name="workers"
            ),
            asyncio.create_task(self._resync(), name="resync"),
            asyncio.create_task(self._until_readable(namespaces), name="namespaces"),
            asyncio.create_task(self._sampler.run(), name="sampling"),
            asyncio.create_task(self._stopped.wait(), name="stop"),
        }
        ended, going = await asyncio.wait(lasting, return_when=asyncio.FIRST_COMPLETED)
        asked = self._stopped.is_set()
        for task in ended:
            if not asked:
                _log.error("Ended because a part of the operator did", part=task.get_name(), exc_info=task.exception())
        self._end_watches.set()
        with contextlib.suppress(RuntimeError):  # its loop may be closed already
            self._stop_kopf()
        for task in going:
            if task.get_name() != "watches":  # its thread ends by itself, or with the process
                task.cancel()
        if going:
            await asyncio.wait(going, timeout=_STOP_SECONDS)
        return 0 if asked else EXIT_BROKEN

    async def _answer(self, of_what: str, ask: Callable[[], tuple[T, ...]]) -> tuple[T, ...] | None:
        """What holds until the next start. None: stopped."""
        while not self._stopped.is_set():
            try:
                return await asyncio.to_thread(ask)
            except OperatorError as error:
                _log.warning(f"Could not ask which {of_what}", error=str(error))
                await asyncio.sleep(_AGAIN_SECONDS)
        return None

    def _readable_namespaces(self) -> tuple[str, ...]:
        """Of those to be watched. One that is deleted takes its Role along, and a watch that is refused ends the process: the others must not go with it."""
        asked = self._settings.watch_namespaces
        readable = tuple(filter(self._cluster.may_read, asked))
        if left_out := [name for name in asked if name not in readable]:
            _log.warning("Left out namespaces that may not be read", namespaces=left_out)
        return readable or asked  # none at all would mean the whole cluster

    async def _until_readable(self, watched: tuple[str, ...]) -> None:
        """Ends when one that was left out may be read: the process begins again, and watches it."""
        left_out = [name for name in self._settings.watch_namespaces if name not in watched]
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            for name in left_out:
                with contextlib.suppress(OperatorError):
                    if await asyncio.to_thread(self._cluster.may_read, name):
                        _log.info("May read a namespace that was left out", namespace=name)
                        return

    async def _watching(
        self, watched: tuple[Kind, ...], namespaces: tuple[str, ...], told: Told, broke: Callable[[], object]
    ) -> None:
        """In a loop of its own, as kopf at its end cancels every task that it did not find at its beginning.

        A watcher of kopf gives up on answers that it does not know (410), and kopf's end may then hang for ever: ``broke`` says so.
        """
        # Not the threads' event: kopf would wait for it in a thread, and asyncio.run for that thread, also when kopf dies of something else.
        stop = asyncio.Event()
        self._stop_kopf = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        if self._end_watches.is_set():
            return
        watching = asyncio.create_task(
            kopf.operator(
                registry=make_registry(told, watched),
                settings=make_settings(watched, self._settings.request_timeout_seconds),
                namespaces=namespaces,
                clusterwide=not namespaces,
                standalone=True,
                stop_flag=stop,
                # Its own would begin with the name of a user that the image need not know.
                identity=self._identity,  # type: ignore[arg-type]  # a NewType of str that kopf does not export
            )
        )
        expected = (len(watched) + 2) * max(1, len(namespaces))  # pods and PDDeployments, too
        deadline = time.monotonic() + _BEGIN_SECONDS
        seen: set[asyncio.Task[object]] = set()
        while not watching.done():
            await asyncio.wait((watching,), timeout=_LOOK_SECONDS)
            watchers = {task for task in asyncio.all_tasks() if task.get_name().startswith("watcher for ")}
            too_few = len(watchers) < expected and time.monotonic() > deadline
            if (seen - watchers or too_few) and not stop.is_set():
                broke()
            seen |= watchers
        watching.result()

    async def _reconcile(self, key: NamespacedName) -> Done | Retry:
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, self._reconciler.reconcile, key)
        if isinstance(result, Done) and result.gone:
            self._sampler.forget(key)
        return result

    async def _resync(self) -> None:
        """The net below the watches: every object now and then."""
        period = self._settings.resync_seconds
        while True:
            await asyncio.sleep(period)
            for key in self._queue.keys:
                self._queue.add(key, random.random() * period * _SPREAD)  # noqa: S311  # spreads load, hides nothing

    def _told(self, key: NamespacedName, uid: str, version: str, gone: bool) -> None:
        self._watches.told(uid, version, deleted=gone)
        self._queue.add(key)

    def _saw(self, observed: Observed, read_at: float) -> None:
        self._sampler.noted(observed)
        self._watches.listed((observed.deployment, *observed.children.values(), *observed.pods), read_at)

    def _illness(self) -> str | None:
        """Why the kubelet should start the process again. Said in the log, too: no event of a failed probe shows it."""
        reason = self._find_illness()
        if reason is not None and self._ill is None:
            _log.error("Unhealthy, to be started again", reason=reason)
        self._ill = reason
        return reason

    def _find_illness(self) -> str | None:
        if (waited := self._queue.oldest_seconds) > self._settings.stuck_seconds:
            return f"an object has waited for {waited:.0f} s"
        if silent := self._watches.silent_kinds():
            return f"the watches are silent about changes of {', '.join(silent)}"
        return None


async def _apart(work: Coroutine[object, object, None]) -> None:
    """Runs it in a loop and a thread of its own. Not in one of asyncio's threads: the end of a loop waits for those, and kopf may hang for ever."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(work)
        except BaseException as raised:  # noqa: BLE001  # raised where it is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # that loop may be closed already
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="watches", daemon=True).start()
    await done


def _served(cluster: KubeCluster) -> tuple[Kind, ...]:
    """Child kinds to be watched. Those that come later are restored by the resync only, until the next start."""
    return tuple(kind for kind in kinds.CHILD_KINDS if not kind.optional or cluster.has_kind(kind))


def _always() -> None:
    """Nothing forbids it."""


def _now() -> datetime:
    return datetime.now(UTC)


def _end_at_once() -> None:
    _log.error("Lost the lease, ended at once")
    sys.stdout.flush()
    os._exit(EXIT_LEASE_LOST)


async def _run(settings: Settings) -> int:
    return await Operator(settings).run()


def main() -> int:
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETTINGS
    logs.set_up(settings.log_level)
    return asyncio.run(_run(settings))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread that waits for the API server may not write any more and need not be waited for
