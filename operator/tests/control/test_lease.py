"""Leader election by a clock that is a number: who may write when, whatever is paused, slow or broken."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pdd_operator.api.names import NamespacedName
from pdd_operator.errors import AlreadyExistsError, ConflictError, LeaseLostError, TransientError
from pdd_operator.kube.lease import Account, Lease, LeaseTerms

KEY = NamespacedName("pdd-system", "pdd-operator")
DURATION = 15.0


class Store:
    """One Lease with optimistic locking. ``broken``: nobody answers."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.broken = False
        self.changes = 0
        self.account: Account | None = Account(NamespacedName("pdd-system", "operator"), "uid-1")

    def own_account(self) -> Account | None:
        return self.account

    def get_lease(self, key: NamespacedName) -> dict[str, Any] | None:
        if self.broken:
            raise TransientError("away")
        return copy.deepcopy(self.lease)

    def create_lease(self, lease: dict[str, Any]) -> dict[str, Any]:
        if self.lease is not None:
            raise AlreadyExistsError("there")
        return self._store(lease)

    def replace_lease(self, lease: dict[str, Any]) -> dict[str, Any]:
        assert self.lease is not None
        if lease["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        return self._store(lease)

    def _store(self, lease: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.changes += 1
        self.lease = copy.deepcopy(lease)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lease_of(store: Store, clock: Clock, identity: str) -> Lease:
    return Lease(store, LeaseTerms(KEY, identity, DURATION), clock)


def test_the_first_gets_it_and_the_second_waits_for_the_whole_duration(store: Store, clock: Clock) -> None:
    first, second = lease_of(store, clock, "first"), lease_of(store, clock, "second")
    assert first.try_once()
    assert not second.try_once()
    clock.now += DURATION - 0.1
    assert not second.try_once()
    clock.now += 0.2
    assert not first.held, "the old leader's time ended before"
    assert second.try_once()
    assert second.held


@pytest.mark.parametrize(
    ("account", "owners"),
    [
        (Account(NamespacedName("pdd-system", "operator"), "uid-1"), ["uid-1"]),
        (Account(NamespacedName("elsewhere", "operator"), "uid-1"), []),
        (None, []),
    ],
    ids=["its own", "of another namespace", "no ServiceAccount"],
)
def test_a_new_lease_goes_with_the_account_of_its_maker(
    store: Store, clock: Clock, account: Account | None, owners: list[str]
) -> None:
    store.account = account
    lease = lease_of(store, clock, "first")
    assert lease.try_once()
    store.account = None
    assert lease.try_once(), "renewed, it keeps what it had"
    assert store.lease is not None
    assert [owner["uid"] for owner in store.lease["metadata"].get("ownerReferences", [])] == owners


def test_a_renewing_leader_keeps_it(store: Store, clock: Clock) -> None:
    first, second = lease_of(store, clock, "first"), lease_of(store, clock, "second")
    assert first.try_once()
    for _ in range(20):
        clock.now += 5
        assert first.try_once()
        assert not second.try_once()
        first.may_write()


def test_a_leader_that_slept_may_not_write_and_finds_out_that_it_lost(store: Store, clock: Clock) -> None:
    first, second = lease_of(store, clock, "first"), lease_of(store, clock, "second")
    assert first.try_once()
    assert not second.try_once()
    clock.now += DURATION + 1
    assert second.try_once()
    with pytest.raises(LeaseLostError):
        first.may_write()
    assert not first.try_once()
    second.may_write()


@pytest.mark.parametrize("slow_seconds", [0.0, 1.0, 5.0])
def test_time_counts_from_before_the_renewal_was_asked_for(store: Store, clock: Clock, slow_seconds: float) -> None:
    """A slow answer must not lengthen the leader's time: the standby counts from when it saw the change."""
    first, second = lease_of(store, clock, "first"), lease_of(store, clock, "second")
    stored = store._store

    def slowly(lease: dict[str, Any]) -> dict[str, Any]:
        store._store = stored  # type: ignore[method-assign]  # once
        answer = stored(lease)
        assert not second.try_once()
        clock.now += slow_seconds
        return answer

    store._store = slowly  # type: ignore[method-assign]  # the server is slow to answer
    assert first.try_once()
    while not second.try_once():
        clock.now += 0.1
    assert not first.held


def test_while_the_server_is_away_the_leader_works_until_its_time_is_over(store: Store, clock: Clock) -> None:
    first = lease_of(store, clock, "first")
    assert first.try_once()
    store.broken = True
    clock.now += 10
    with pytest.raises(TransientError):
        first.try_once()
    first.may_write()
    clock.now += 5
    with pytest.raises(LeaseLostError):
        first.may_write()


def test_a_released_lease_is_taken_at_once(store: Store, clock: Clock) -> None:
    first, second = lease_of(store, clock, "first"), lease_of(store, clock, "second")
    assert first.try_once()
    first.release()
    with pytest.raises(LeaseLostError):
        first.may_write()
    assert second.try_once()
    assert store.lease is not None
    assert store.lease["spec"]["leaseTransitions"] == 1


def test_of_two_that_reach_for_it_at_once_one_gets_it(store: Store, clock: Clock) -> None:
    first, second, third = (lease_of(store, clock, name) for name in ("first", "second", "third"))
    assert first.try_once()
    assert not second.try_once()
    assert not third.try_once()
    clock.now += DURATION
    got = store.get_lease
    seen = got(KEY)
    store.get_lease = lambda key: copy.deepcopy(seen)  # type: ignore[method-assign]  # both read before either writes
    assert [second.try_once(), third.try_once()] == [True, False]
