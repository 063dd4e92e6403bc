"""The store with a shelf per tenant against a plain model of what it promises."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pdd_router.policy.shelves import Shelves

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "wait"]), st.sampled_from("abcd"), st.integers(0, 6)), max_size=120
)
TTL = 5


@given(OPERATIONS, st.integers(1, 9))
def test_who_holds_most_gives_up_its_oldest_and_nothing_outlives_twice_its_time(
    operations: list[tuple[str, str, int]], limit: int
) -> None:
    now, store = 0, Shelves[int, int](limit)
    held: dict[tuple[str, int], int] = {}  # oldest first; every value is the time at which it was put
    for kind, tenant, number in operations:
        if kind == "wait":
            now += number
            continue
        store.forget(tenant, lambda put: now - put >= TTL)  # noqa: B023  # it is called here and now
        assert all(now - held.pop(key) >= TTL for key in gone_from(store, held))
        assert all(now - put < TTL for (whose, _), put in held.items() if whose == tenant)
        assert all(now - put < 2 * TTL for put in held.values())
        store.put(tenant, number, now)
        held.pop((tenant, number), None)
        held[(tenant, number)] = now
        gone, counts = gone_from(store, held), Counter(whose for whose, _ in held)
        assert len(gone) == max(len(held) - limit, 0), "nothing goes without need"
        for key in gone:
            assert counts[key[0]] == max(counts.values()), "of whoever has most"
            assert key == next(one for one in held if one[0] == key[0]), "its oldest"
            del held[key]
        assert all(store.get(*key) == put for key, put in held.items())
        assert len(store) == len(held)


def gone_from(store: Shelves[int, int], held: dict[tuple[str, int], int]) -> list[tuple[str, int]]:
    return [key for key in held if store.get(*key) is None]


@given(OPERATIONS)
def test_tenant_with_nothing_left_takes_no_room(operations: list[tuple[str, str, int]]) -> None:
    store = Shelves[int, int](4)
    for _, tenant, number in operations:
        store.put(tenant, number, 0)
    store.forget("nobody", lambda _: True)
    assert len(store) == 0
    left = [part for part in vars(store).values() if isinstance(part, dict)]
    assert len(left) == 2, "control: its shelves and its counts"
    assert not any(left)
