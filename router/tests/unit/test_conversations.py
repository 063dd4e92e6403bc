"""Chains and the index of them."""

from typing import Any

import pytest

from pdd_router.config import Limits
from pdd_router.endpoints.engine import EngineId, Living
from pdd_router.openai.request import ClientRequest, Endpoint, parse_request
from pdd_router.policy.chain import Chain, Link, chain_of
from pdd_router.policy.conversations import Conversations, Handle, Served
from pdd_router.policy.estimate import TokenEstimator

D0, D1 = Living(EngineId("d0", "http://d0"), 1), Living(EngineId("d1", "http://d1"), 1)
P0, P1 = Living(EngineId("p0", "http://p0"), 2), Living(EngineId("p1", "http://p1"), 2)
SYSTEM = {"role": "system", "content": "Be brief."}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def chat(*messages: Any, **fields: Any) -> ClientRequest:
    body = {"model": "m", "messages": list(messages), **fields}
    return parse_request(Endpoint.CHAT, body, (None, None), Limits())


def text(prompt: Any) -> ClientRequest:
    return parse_request(Endpoint.COMPLETIONS, {"model": "m", "prompt": prompt}, (None, None), Limits())


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def shared(one: ClientRequest, other: ClientRequest) -> int:
    mine, theirs = chain_of(one).links, chain_of(other).links
    return sum(a.digest == b.digest for a, b in zip(mine, theirs, strict=False))


def test_chains_are_equal_exactly_up_to_the_first_difference() -> None:
    base = [SYSTEM, said("user", "a"), said("assistant", "b"), said("user", "c")]
    assert shared(chat(*base), chat(*base, said("assistant", "d"))) == 4
    for at in range(4):
        edited = [*base[:at], {**base[at], "content": "edited"}, *base[at + 1 :]]
        assert shared(chat(*base), chat(*edited)) == at
        assert shared(chat(*base), chat(*base[:at], *base[at + 1 :])) == at, "removed"
        assert shared(chat(*base), chat(*base[:at], said("user", "new"), *base[at:])) == at, "inserted"


@pytest.mark.parametrize(
    "fields", [{"tools": [{"type": "function"}]}, {"chat_template_kwargs": {"x": 1}}, {"model": "other"}]
)
def test_everything_rendered_before_the_messages_counts(fields: dict[str, Any]) -> None:
    one = chat(SYSTEM)
    other = parse_request(Endpoint.CHAT, {**one.body, **fields}, (None, None), Limits())
    assert shared(one, other) == 0


def test_what_renders_alike_is_alike() -> None:
    one = chat(said("assistant", "x"))
    assert shared(one, chat({"role": "assistant", "content": "x", "refusal": None, "tool_calls": []})) == 1
    assert shared(one, chat(said("assistant", [{"type": "text", "text": "x"}]))) == 1
    assert shared(one, chat({"content": "x", "role": "assistant"}, temperature=0.3)) == 1


def test_bare_prompts_share_whole_chunks() -> None:
    long = "word " * 400
    assert shared(text(long), text(long + "more " * 100)) == len(long) // 256
    ids = list(range(1000))
    assert shared(text(ids), text([*ids, 5, 6])) == 1000 // 64
    assert chain_of(text(ids)).chars == 4000
    assert chain_of(text("short")).links == ()
    assert chain_of(text(["two", "prompts"])).links == ()


def index(clock: Clock, **changes: Any) -> Conversations:
    return Conversations(clock=clock, **{"ttl_seconds": 100, "max_entries": 1000, **changes})


def served(chain: Chain, decode: Living = D0, prefill: Living = P0, at: float = 0.0) -> Served:
    return Served(decode, (prefill,), at, chain.chars)


def test_longest_prefix_wins_and_preambles_are_no_conversation() -> None:
    known = index(Clock())
    first = chain_of(chat(SYSTEM, said("user", "a")))
    other = chain_of(chat(SYSTEM, said("user", "b")))
    known.remember("t", None, first, served(first, D0))
    known.remember("t", None, other, served(other, D1, P1))
    more = chain_of(chat(SYSTEM, said("user", "a"), said("assistant", "x"), said("user", "c")))
    match = known.find("t", None, more)
    assert (match.holder, match.is_conversation) == (D0, True)
    assert match.known == (D0, D1, P0, P1), "whoever served the shared preamble comes after"
    preamble = known.find("t", None, chain_of(chat(SYSTEM, said("user", "new"))))
    assert (preamble.is_conversation, preamble.held_chars) == (False, len("Be brief."))
    assert known.find("t", None, chain_of(chat(said("user", "else")))).turns == ()


def test_held_text_includes_what_the_model_answered() -> None:
    known = index(Clock())
    first = chain_of(chat(said("user", "aaaa")))
    entry = served(first)
    known.remember("t", None, first, entry)
    entry.generated_chars = 6
    more = chain_of(chat(said("user", "aaaa"), said("assistant", "x" * 10), said("user", "c" * 5)))
    assert known.find("t", None, more).held_chars == 4 + 6
    entry.generated_chars = 99
    assert known.find("t", None, more).held_chars == 4 + 10
    not_its_own = chain_of(chat(said("user", "aaaa"), said("user", "x" * 10)))
    assert known.find("t", None, not_its_own).held_chars == 4


def test_id_beats_prefix_and_tenants_never_meet() -> None:
    known = index(Clock())
    one, other = chain_of(chat(said("user", "one"))), chain_of(chat(said("user", "other")))
    known.remember("t", "id", one, served(one, D0))
    known.remember("t", None, other, served(other, D1, P1))
    match = known.find("t", "id", other)
    assert (match.holder, match.known) == (D0, (D0, D1, P0, P1))
    assert match.held_chars == 0, "of this prompt, the one that the id names holds nothing"
    assert known.find("t", "id", one).held_chars == len("one")
    for tenant in ("u", "", "t\0"):
        assert known.find(tenant, "id", one).turns == ()


def test_old_entries_are_not_used_and_the_least_used_are_forgotten() -> None:
    clock = Clock()
    known = index(clock, max_entries=3)
    chains = [chain_of(chat(said("user", str(at)))) for at in range(5)]
    for at, chain in enumerate(chains):
        known.remember("t", f"id{at}", chain, served(chain))
    assert len(known) == 6
    assert [bool(known.find("t", None, chain).turns) for chain in chains] == [False, False, True, True, True]
    clock.now = 100
    assert not known.find("t", "id4", chains[4]).turns
    known.remember("t", "new", chains[0], served(chains[0], at=100))
    assert len(known) == 2, "what nobody will hear of again takes no room"


@pytest.mark.parametrize("by_id", [False, True], ids=["by text", "by id"])
def test_no_tenant_pushes_another_out(by_id: bool) -> None:
    known = index(Clock(), max_entries=300)
    quiet = [chain_of(chat(said("user", f"quiet {at}"))) for at in range(100)]
    for at, chain in enumerate(quiet):
        known.remember("quiet", f"id{at}", chain, served(chain))
    for at in range(1000):
        chain = chain_of(chat(said("user", f"loud {at}")))
        known.remember("loud", f"id{at}", chain, served(chain))
    assert len(known) == 600, "control: it is full"
    unknown = chain_of(chat(said("user", "unknown")))
    for at, chain in enumerate(quiet):
        match = known.find("quiet", f"id{at}", unknown) if by_id else known.find("quiet", None, chain)
        assert match.is_conversation


def test_one_request_takes_little_room_and_is_found_wherever_it_was_edited() -> None:
    links = tuple(Link(b"%d" % place, chars=place, is_turn=True) for place in range(1, 1025))
    known = index(Clock(), max_entries=10_000)
    known.remember("t", None, Chain(links, 1024), Served(D0, (P0,), 0.0, 1024))
    assert 64 <= len(known) <= 100
    for equal in range(1, 1025):
        edited = Chain((*links[:equal], Link(b"edited", equal + 1, is_turn=True)), equal + 1)
        match = known.find("t", None, edited)
        assert match.holder == D0
        assert equal >= match.held_chars >= equal * 0.8
        assert match.held_chars == equal or equal <= 1024 - 64


def test_handle_is_taken_once_from_the_longest_prefix() -> None:
    clock = Clock()
    known = index(clock)
    first = chain_of(chat(said("user", "a")))
    entry = served(first)
    known.remember("t", "id", first, entry)
    entry.handle = Handle({"a": 1}, D0, expires=50)
    matches = [known.find("t", "id", first) for _ in range(2)]
    assert known.take_handle(matches[0], {D1}) is None, "its holder is not among the living"
    assert known.take_handle(matches[0], {D0, D1}) == {"a": 1}
    assert known.take_handle(matches[0], {D0}) is None
    assert known.take_handle(matches[1], {D0}) is None
    assert matches[0].handle is None
    entry.handle = Handle({"b": 1}, D0, expires=50)
    clock.now = 50
    assert known.take_handle(matches[0], {D0}) is None, "too old"
    clock.now = 0
    assert known.take_handle(matches[0], {D0}) is None, "and gone, although it was not given out"


def stored(known: Conversations, request: ClientRequest, name: str, conversation_id: str | None = None) -> Served:
    """A turn that has ended and left a handle."""
    chain = chain_of(request)
    entry = served(chain)
    entry.handle = Handle({"of": name}, D0, expires=50)
    known.remember("t", conversation_id, chain, entry)
    return entry


def handle_for(known: Conversations, request: ClientRequest, conversation_id: str | None = None) -> Any:
    match = known.find("t", conversation_id, chain_of(request))
    offered = match.handle
    params = known.take_handle(match, {D0})
    assert (offered is None) == (params is None), "both look at the same turns"
    return params and params["of"]


A1 = [said("user", "a1"), said("assistant", "A1")]
A2 = [*A1, said("user", "a2"), said("assistant", "A2")]


@pytest.mark.parametrize(
    ("before", "then", "taken"),
    [
        ([SYSTEM, *A1[:1]], [SYSTEM, said("user", "b1")], False),
        ([SYSTEM, *A2[:3]], [SYSTEM, *A1, said("user", "fork")], False),
        ([SYSTEM, *A2[:3]], [SYSTEM, *A1, said("user", "fork"), *A2[3:], said("user", "a3")], False),
        ([SYSTEM, *A2[:3]], [SYSTEM, *A1[:1]], False),
        ([SYSTEM, *A1[:1]], [SYSTEM, *A2[:3]], True),
        ([SYSTEM, *A1[:1]], [SYSTEM, *A1[:1], said("assistant", "not what it said"), said("user", "a2")], True),
        ([SYSTEM, *A1[:1]], [SYSTEM, *A1[:1]], True),
    ],
    ids=["preamble", "fork", "earlier turn edited", "back", "next turn", "branch from its end", "again"],
)
def test_handle_is_for_what_goes_on_from_its_turn(before: Any, then: Any, taken: bool) -> None:
    known = index(Clock())
    stored(known, chat(*before), "a")
    assert known.find("t", None, chain_of(chat(*then))).holder == D0, "a hint it is in any case"
    assert handle_for(known, chat(*then)) == ("a" if taken else None)
    if not taken:
        more = chat(*before, said("assistant", "x"), said("user", "y"))
        assert handle_for(known, more) == "a", "it waits for its own"


def test_forks_go_on_with_their_own_handles() -> None:
    known = index(Clock())
    stored(known, chat(SYSTEM, *A2[:3]), "a")
    forked = [SYSTEM, *A1, said("user", "fork")]
    stored(known, chat(*forked), "fork")
    assert handle_for(known, chat(*forked, said("assistant", "x"), said("user", "y"))) == "fork"
    assert handle_for(known, chat(*forked, said("assistant", "x"), said("user", "z"))) is None, "gone; a's is a's"
    assert handle_for(known, chat(SYSTEM, *A2, said("user", "a3"))) == "a"


def test_bare_prompt_goes_on_from_the_one_whose_every_chunk_it_has() -> None:
    known = index(Clock())
    prompt = "word " * 400
    stored(known, text(prompt), "a")
    assert handle_for(known, text(prompt[:1500] + "else " * 100)) is None
    assert handle_for(known, text(prompt + "more " * 10)) == "a"


def test_id_gives_the_handle_of_an_edited_conversation_and_the_text_is_asked_first() -> None:
    known = index(Clock())
    stored(known, chat(SYSTEM, *A2[:3]), "a", "id")
    edited = chat(SYSTEM, *A1, said("user", "edited"))
    assert handle_for(known, edited, "other") is None
    assert handle_for(known, edited, "id") == "a"
    stored(known, chat(SYSTEM, *A2[:3]), "a", "id")
    stored(known, chat(SYSTEM, said("user", "b")), "b", "id")
    assert handle_for(known, chat(SYSTEM, *A2, said("user", "a3")), "id") == "a", "two by one id: each has its own"


def test_estimator_learns_slowly_per_model_and_ignores_nonsense() -> None:
    estimator = TokenEstimator()
    assert estimator.tokens("m", 400) == 100
    for _ in range(100):
        estimator.learn("m", 300, 100)
    assert estimator.tokens("m", 300) == 100
    assert estimator.tokens("other", 400) == 100
    for chars, tokens in ((0, 5), (5, 0), (-1, -1)):
        estimator.learn("m", chars, tokens)
    assert estimator.tokens("m", 300) == 100
    estimator.learn("m", 10**9, 1)
    assert estimator.ratio("m") < 5
