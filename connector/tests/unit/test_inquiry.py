"""Which answer wins, when a reader gives up, and what of a grant it uses."""

from hypothesis import given
from hypothesis import strategies as st

from pdd_connector.claims.inquiry import (
    Answer,
    GiveUp,
    Inquiry,
    Portion,
    Take,
    Unreachable,
    Wait,
    askable_blocks,
    usable_portion,
    worth_asking,
)
from pdd_connector.claims.messages import Grant, Refuse, RefuseReason
from pdd_connector.claims.params import Address, Outcome

ID = b"i" * 16
A, B, C = (Address(host="127.0.0.1", port=port) for port in (1, 2, 3))


def grant(blocks: int, claim_id: str = "c") -> Grant:
    return Grant(id=ID, engine_id="e", blocks=list(range(blocks)), claim_id=claim_id if blocks else "", hold_seconds=15)


def refuse(reason: RefuseReason = RefuseReason.GROUP) -> Refuse:
    return Refuse(id=ID, reason=reason, message="no")


def inquiry(**answers: Answer) -> Inquiry:
    question = Inquiry((A, B, C), first_block=2, blocks=10, asked_at=0.0, deadline=0.15)
    question.answers.update({{"a": A, "b": B, "c": C}[name]: answer for name, answer in answers.items()})
    return question


def test_it_waits_for_the_others_until_the_deadline() -> None:
    question = inquiry(a=grant(3), b=grant(5))
    assert question.verdict(0.1) == Wait()
    assert question.verdict(0.15) == Take(B, grant(5))


def test_a_complete_grant_ends_the_waiting() -> None:
    assert inquiry(b=grant(10)).verdict(0.01) == Take(B, grant(10))


def test_of_equal_grants_the_likeliest_owner_wins() -> None:
    assert inquiry(b=grant(4), a=grant(4), c=refuse()).verdict(0.01) == Take(A, grant(4))


def test_why_nothing_was_granted() -> None:
    assert inquiry().verdict(0.2) == GiveUp(Outcome.LATE)
    assert inquiry(a=grant(0), b=refuse(), c=Unreachable()).verdict(0.0) == GiveUp(Outcome.EMPTY)
    assert inquiry(a=refuse(), b=refuse(), c=Unreachable()).verdict(0.0) == GiveUp(Outcome.REFUSED, "Group")
    assert inquiry(a=Unreachable(), b=Unreachable(), c=Unreachable()).verdict(0.0) == GiveUp(Outcome.UNCONNECTED)


def test_every_grant_but_the_winners_is_let_go() -> None:
    question = inquiry(a=grant(3, "a"), b=grant(5, "b"), c=grant(0))
    assert question.losers(B) == [(A, grant(3, "a"))]
    assert question.losers(None) == [(A, grant(3, "a")), (B, grant(5, "b"))]


answers = st.one_of(
    st.builds(grant, st.integers(0, 12)), st.builds(refuse, st.sampled_from(RefuseReason)), st.just(Unreachable())
)


@given(st.dictionaries(st.sampled_from("abc"), answers), st.floats(0, 1))
def test_what_is_taken_is_the_longest_and_nothing_else_wins(given_answers: dict[str, Answer], now: float) -> None:
    question = inquiry(**given_answers)
    verdict = question.verdict(now)
    longest = max((len(a.blocks) for a in given_answers.values() if isinstance(a, Grant)), default=0)
    if isinstance(verdict, Take):
        assert len(verdict.grant.blocks) == longest > 0
    if now >= question.deadline or len(given_answers) == 3:
        assert not isinstance(verdict, Wait)


@given(st.integers(1, 5000), st.integers(1, 128))
def test_a_token_is_always_left_to_compute(prompt_tokens: int, block_size: int) -> None:
    blocks = askable_blocks(prompt_tokens, prompt_tokens // block_size, block_size)
    assert 0 <= blocks * block_size < prompt_tokens
    assert prompt_tokens - (blocks + 1) * block_size <= 0, "no askable block is left out"


def test_less_than_the_threshold_is_computed() -> None:
    assert not worth_asking(1, 32, 64)
    assert worth_asking(2, 32, 64)
    assert not worth_asking(0, 32, 0)


def test_a_prefix_that_grew_needs_less_of_the_grant_and_one_that_shrank_cannot_use_it() -> None:
    question = inquiry()
    assert usable_portion(question, grant(8), 2, 0, 32) == Portion(skip=0, blocks=8)
    assert usable_portion(question, grant(8), 5, 0, 32) == Portion(skip=3, blocks=5)
    assert usable_portion(question, grant(8), 10, 0, 32) is None
    assert usable_portion(question, grant(8), 1, 0, 32) is None, "there would be a hole between local and read blocks"


def test_more_blocks_than_were_asked_for_are_not_used() -> None:
    portion = usable_portion(inquiry(), grant(50), 2, 0, 32)
    assert portion == Portion(skip=0, blocks=10)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 200))
def test_a_portion_continues_the_local_prefix(granted: int, local: int, threshold: int) -> None:
    question = inquiry()
    portion = usable_portion(question, grant(granted), local, threshold, 32)
    if portion is not None:
        assert question.first_block + portion.skip == local
        assert portion.skip + portion.blocks == min(granted, question.blocks)
        assert portion.blocks * 32 >= threshold
