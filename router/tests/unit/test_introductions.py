"""Which pairs are introduced when; and files that are followed."""

from pathlib import Path

import pytest

from pdd_router.config import ConfigError, Direction
from pdd_router.endpoints.engine import ClaimAddress, Engine, EngineId, EngineView, Role
from pdd_router.endpoints.introductions import MAX_OWNERS, Introductions
from pdd_router.following import FollowedFile


def view(name: str, *, group: str = "g", epoch: int = 1, available: bool = True, claim: bool = True) -> EngineView:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    address = ClaimAddress(name, 1) if claim else None
    return EngineView(Engine(EngineId(name, f"http://{name}"), role, group, address), epoch, available)


def make(direction: Direction = Direction.BIDIRECTIONAL) -> Introductions:
    return Introductions(direction, retry_base_seconds=1, retry_max_seconds=4)


def wanted(introductions: Introductions, *views: EngineView) -> set[tuple[str, str]]:
    return {(reader.id.name, owner.id.name) for reader, owner in introductions.wanted(views)}


def test_all_pairs_of_a_group_both_ways() -> None:
    views = (view("p0"), view("d0"), view("x", group="other"), view("n", claim=False), view("u", available=False))
    assert wanted(make(), *views) == {("p0", "d0"), ("d0", "p0")}
    one_way = make(Direction.PREFILL_TO_DECODE)
    assert wanted(one_way, view("p0"), view("p1"), view("d0")) == {("d0", "p0"), ("d0", "p1")}


def test_what_failed_is_due_again_later_each_time() -> None:
    introductions, p0, d0 = make(), view("p0"), view("d0")
    views, now = (p0, d0), 100.0
    for delay in (1, 2, 4, 4):
        assert introductions.due(views, now)[p0.living] == [d0.living]
        introductions.record(p0.living, [d0.living], [], now)
        introductions.record(d0.living, [p0.living], [p0.living], now)
        assert introductions.next_due(views, ()) == now + delay
        assert introductions.next_due(views, {p0.living}) is None
        assert p0.living not in introductions.due(views, now + delay - 0.01)
        now += delay
    introductions.record(p0.living, [d0.living], [d0.living], now)
    assert introductions.due(views, now) == {}
    introductions.forget_pair(p0.living, d0.living)
    assert introductions.due(views, now) == {p0.living: [d0.living]}


def test_a_message_names_at_most_eight_owners() -> None:
    views = [view(f"p{at}") for at in range(12)]
    batches = make().due(views, 0)
    assert {len(owners) for owners in batches.values()} == {MAX_OWNERS}


def test_pairs_of_a_past_life_are_forgotten() -> None:
    introductions, p0, d0 = make(), view("p0"), view("d0")
    introductions.record(p0.living, [d0.living], [d0.living], 0)
    reborn = view("d0", epoch=2)
    introductions.keep_only([p0.living, reborn.living])
    assert introductions.introduced == set()
    assert introductions.due((p0, reborn), 0)[p0.living] == [reborn.living]


def parse(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError("must be a number") from None


def test_followed_file_keeps_the_last_good_state(tmp_path: Path) -> None:
    path, seen, results = tmp_path / "n", [], []
    file = FollowedFile(
        "numberFile", path, parse=parse, apply=seen.append, on_result=lambda _, good: results.append(good)
    )
    with pytest.raises(ConfigError, match="numberFile: cannot read"):
        file.load()
    path.write_text("bad")
    with pytest.raises(ConfigError, match="numberFile: must be a number"):
        file.load()
    path.write_text("1")
    file.load()
    for text, applied in (("1", False), ("2", True), ("bad", False), ("bad", False), ("worse", False), ("2", True)):
        path.write_text(text)
        assert file.poll() is applied
    path.write_bytes(b"\xff")
    assert not file.poll()
    path.unlink()
    assert not file.poll()
    assert not file.poll()
    (tmp_path / "new").write_text("3")
    (tmp_path / "new").rename(path)
    assert file.poll()
    assert seen == [1, 2, 2, 3]
    assert results == [True, False, False, True, False, False, True]
