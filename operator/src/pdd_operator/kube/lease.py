"""Leader election on a ``coordination.k8s.io/v1`` Lease: at most one process writes.

Clocks of machines are not compared: a standby takes a lease over only after it saw it unchanged for the whole duration by its own
monotonic clock, and a leader counts its own time from before it asked for the renewal. So the old leader's time ends before anybody
else's can begin. ``may_write`` is asked before every write; what was paused (SIGSTOP, a suspended machine) finds its lease over there.
Left open: a process that is stopped between that check and the sending of the same request.
A Lease that is made here belongs to the ServiceAccount of its maker, so that it goes with the installation: it is in no chart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from pdd_operator.api.labels import FIELD_MANAGER
from pdd_operator.api.names import NamespacedName
from pdd_operator.api.objects import Manifest
from pdd_operator.errors import AlreadyExistsError, ClusterError, ConflictError, LeaseLostError

_log = structlog.stdlib.get_logger(__name__)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
_MARGIN = 0.2
"""Part of the duration at whose end the leader already holds still: what it sent before may take that long to arrive."""


def boot_clock() -> float:
    """Monotonic seconds that also pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Account:
    """A ServiceAccount."""

    key: NamespacedName
    uid: str


class LeaseStore(Protocol):
    """Optimistic reads and writes of a Lease, and who asks. Raises ClusterError."""

    def own_account(self) -> Account | None: ...

    def get_lease(self, key: NamespacedName) -> Manifest | None: ...

    def create_lease(self, lease: Manifest) -> Manifest: ...

    def replace_lease(self, lease: Manifest) -> Manifest: ...


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """``identity``: of this process, never used again. ``duration_seconds``: how long a leader that is not heard of keeps the lease."""

    key: NamespacedName
    identity: str
    duration_seconds: float


class Lease:
    """One process' view of the lease. ``try_once`` takes or renews it; the threads around it are in ``LeaseKeeper``."""

    def __init__(self, store: LeaseStore, terms: LeaseTerms, clock: Callable[[], float] = boot_clock) -> None:
        self._store = store
        self._terms = terms
        self._clock = clock
        self._held_until = float("-inf")
        self._seen_version = ""
        self._seen_at = 0.0

    @property
    def held(self) -> bool:
        """Whether this process may write now."""
        return self._clock() < self._held_until

    def may_write(self) -> None:
        """Raises LeaseLostError."""
        if not self.held:
            raise LeaseLostError("the lease ran out before it was renewed")

    def try_once(self) -> bool:
        """Takes or renews the lease if it may. ClusterError (not a conflict) when the API server could not be asked."""
        asked_at = self._clock()
        live = self._store.get_lease(self._terms.key)
        if live is not None and not self._is_mine(live) and not self._is_over(live):
            return False
        try:
            stored = self._store.create_lease(self._new()) if live is None else self._replace(live)
        except (AlreadyExistsError, ConflictError):
            return False
        self._held_until = asked_at + self._terms.duration_seconds * (1 - _MARGIN)
        self._note(stored)
        return True

    def release(self) -> None:
        """Gives it up, so that a standby need not wait. Nothing is written after this."""
        held, self._held_until = self.held, float("-inf")
        live = self._store.get_lease(self._terms.key) if held else None
        if live is not None and self._is_mine(live):
            live["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
            self._store.replace_lease(live)

    def _is_mine(self, live: Manifest) -> bool:
        return bool(live.get("spec", {}).get("holderIdentity") == self._terms.identity)

    def _is_over(self, live: Manifest) -> bool:
        """Released, or unchanged for its whole duration since this process first saw it so."""
        if self._note(live):
            return not live.get("spec", {}).get("holderIdentity")
        spec = live.get("spec", {})
        duration = max(float(spec.get("leaseDurationSeconds") or 0), self._terms.duration_seconds)
        return not spec.get("holderIdentity") or self._clock() - self._seen_at >= duration

    def _note(self, live: Manifest) -> bool:
        """Whether it has changed since it was last seen."""
        version = str(live["metadata"]["resourceVersion"])
        if changed := version != self._seen_version:
            self._seen_version, self._seen_at = version, self._clock()
        return changed

    def _replace(self, live: Manifest) -> Manifest:
        return self._store.replace_lease(self._wanted(live))

    def _new(self) -> Manifest:
        lease = self._wanted(None)
        account = self._store.own_account()
        if account is not None and account.key.namespace == self._terms.key.namespace:
            owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": account.key.name, "uid": account.uid}
            lease["metadata"]["ownerReferences"] = [owner]
        return lease

    def _wanted(self, live: Manifest | None) -> Manifest:
        old: dict[str, Any] = dict((live or {}).get("spec") or {})
        now = _now()
        if old.get("holderIdentity") != self._terms.identity:
            old |= {"acquireTime": now, "leaseTransitions": int(old.get("leaseTransitions") or 0) + (live is not None)}
        spec = old | {
            "holderIdentity": self._terms.identity,
            "leaseDurationSeconds": max(1, round(self._terms.duration_seconds)),
            "renewTime": now,
        }
        key = self._terms.key
        metadata: dict[str, Any] = {"name": key.name, "namespace": key.namespace}
        if live is not None:
            metadata = live["metadata"]
        else:
            metadata["labels"] = {"app.kubernetes.io/managed-by": FIELD_MANAGER}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


class LeaseKeeper:
    """Takes the lease, then renews it in a thread of its own; ``on_lost`` is called in that thread, once, when it ran out.

    ``on_lost`` must end the process: level-based work needs no farewell, and every moment longer is a second writer.
    """

    def __init__(self, lease: Lease, renew_seconds: float, on_lost: Callable[[], None]) -> None:
        self._lease = lease
        self._renew_seconds = renew_seconds
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def acquire(self) -> bool:
        """Blocks until the lease is ours; False when ``stop`` was called before."""
        while not self._stop.is_set():
            try:
                if self._lease.try_once():
                    self._thread.start()
                    return True
            except ClusterError as error:
                _log.warning("Could not ask for the lease", error=str(error))
            self._stop.wait(self._renew_seconds)
        return False

    def give_up(self) -> None:
        """Ends ``acquire``. Safe in any thread."""
        self._stop.set()

    def stop(self) -> None:
        """Ends the renewal and releases the lease. Call it when nothing writes any more."""
        self._stop.set()
        if self._thread.ident is None:
            return
        self._thread.join()
        try:
            self._lease.release()
        except ClusterError as error:
            _log.warning("Could not release the lease; it ends by itself", error=str(error))

    def _renew(self) -> None:
        while not self._stop.wait(self._renew_seconds):
            if not self._lease.held:
                break
            try:
                if not self._lease.try_once():
                    break
            except ClusterError as error:
                _log.warning("Could not renew the lease", error=str(error))
        else:
            return
        self._on_lost()


def _now() -> str:
    """For people who read the Lease; nothing here computes with it."""
    return datetime.now(UTC).strftime(_TIME_FORMAT)
