"""The reader's side: for each request, ask owners for what is not cached here, and hand what they grant to the workers to read.

Runs on the engine thread, called by `connector.py` at vLLM's hooks; answers arrive through the channel's queue. Decides nothing about a grant's
worth itself: that is `claims/inquiry.py`. Whatever happens to a request, its grant is read or released, exactly once.
"""

from __future__ import annotations

import logging
import queue
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pdd_connector.channel import Arrival
from pdd_connector.claims.inquiry import (
    GiveUp,
    Inquiry,
    Take,
    Unreachable,
    Wait,
    askable_blocks,
    usable_portion,
    worth_asking,
)
from pdd_connector.claims.messages import MAX_HASHES, Ask, Grant, Hello, Refuse, Release, ToOwner, Welcome
from pdd_connector.claims.params import Address, ClaimParams, Outcome, Receipt, Refusal, parse_claim_params
from pdd_connector.claims.peers import PeerBook
from pdd_connector.owner import Identity
from pdd_connector.questions import Question, Read, Taken

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReaderLimits:
    """What a reader allows itself. Times in seconds."""

    threshold_tokens: int
    answer_seconds: float
    read_seconds: float
    connect_seconds: float
    max_owners_asked: int


class Channel(Protocol):
    """The claim channel, as far as a reader uses it."""

    arrivals: queue.SimpleQueue[Arrival]

    def send(self, address: Address, message: ToOwner) -> None: ...


class ReaderRecorder(Protocol):
    """Where a reader's numbers go."""

    def claim_asked(self) -> None: ...
    def claim_answered(self, seconds: float) -> None: ...
    def claim_ended(self, outcome: str, reason: str | None) -> None: ...
    def read(self, direction: str, tokens: int, size_bytes: int) -> None: ...


class ClaimReader:
    """Questions of the requests that this engine has not finished."""

    def __init__(
        self,
        identity: Identity,
        limits: ReaderLimits,
        channel: Channel,
        peers: PeerBook,
        block_size: int,
        bytes_per_block: int,
        recorder: ReaderRecorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._channel = channel
        self._peers = peers
        self._block_size = block_size
        self._bytes_per_block = bytes_per_block
        self._recorder = recorder
        self._clock = clock
        self._questions: dict[str, Question] = {}
        self._by_ask: dict[bytes, str] = {}
        self._greeted: dict[bytes, Address] = {}
        self._reads: list[Read] = []
        self._in_transit: dict[str, Read] = {}  # outlives its question where a request is aborted while it is read for

    # ---- vLLM's hooks, in the order they are called --------------------------------------------------------------------------

    def matched_tokens(
        self,
        request_id: str,
        params: Mapping[str, Any] | None,
        prompt_tokens: int,
        hashes: Sequence[bytes],
        local_tokens: int,
    ) -> int | None:
        """Tokens behind `local_tokens` that can be read from another engine; None: not known yet, ask again."""
        self.pump()
        question = self._questions.get(request_id)
        if question is None:
            question = self._open(request_id, params, prompt_tokens, hashes, local_tokens)
            if question is None:
                return 0
        question.local_tokens = local_tokens
        if question.receipt is not None or question.read is not None:
            return 0
        if question.inquiry is None:
            return self._introduced(question)
        return self._decide(question, question.inquiry, local_tokens // self._block_size)

    def allocated(self, request_id: str, block_ids: Sequence[int], external_tokens: int) -> None:
        """The scheduler made room: `block_ids` are all of the request's blocks. Queues the read, or lets the grant go."""
        question = self._questions.get(request_id)
        if question is None or question.taken is None:
            return
        taken, question.taken = question.taken, None
        portion = taken.portion
        if external_tokens != portion.blocks * self._block_size:
            if external_tokens:
                raise RuntimeError(f"{external_tokens} tokens are to be read, {portion.blocks} blocks were offered")
            self._release(taken.owner, taken.grant)
            self._end(question, Outcome.LOCAL)
            return
        # From here on the request waits for its read: it must be queued whatever has become of the owner. One that fails is a miss.
        first = taken.first_block + portion.skip
        now = self._clock()
        proven_until = question.asked_at + taken.grant.hold_seconds
        question.read = Read(
            request_id=request_id,
            claim_id=taken.grant.claim_id,
            registration=taken.grant.registration,
            owner=taken.owner,
            welcome=taken.welcome,
            remote_blocks=tuple(taken.grant.blocks[portion.skip : portion.skip + portion.blocks]),
            local_blocks=tuple(block_ids[first : first + portion.blocks]),
            give_up_at=min(now + self._limits.read_seconds, proven_until),
            proven_until=proven_until,
        )
        question.read_at = now
        self._reads.append(question.read)
        self._in_transit[request_id] = question.read

    def take_reads(self) -> list[Read]:
        """Reads that the workers have not been told of yet."""
        reads, self._reads = self._reads, []
        return reads

    def reading(self, request_id: str) -> Read | None:
        """The read under way for a request."""
        return self._in_transit.get(request_id)

    def read_ended(self, request_id: str, failure: str | None) -> None:
        """The workers are done with a read; `failure` says why it is not used."""
        read = self._in_transit.pop(request_id, None)
        if read is not None and failure is not None:  # no completion notice will tell the owner
            self._channel.send(read.owner, Release(reader=self._identity.engine_id, claim_id=read.claim_id))
        question = self._questions.get(request_id)
        if question is None or question.read is None or question.receipt is not None:
            return
        if failure is not None:
            self._end(question, Outcome.FAILED, failure)
        else:
            self._end(question, Outcome.READ)

    def request_ended(self, request_id: str) -> Receipt | None:
        """Forget a request; its receipt, where it asked to claim. A grant that was not read is let go."""
        question = self._questions.pop(request_id, None)
        if question is None:
            return None
        self._by_ask.pop(question.ask_id, None)
        if question.receipt is None:  # aborted before its question had ended
            if question.inquiry is not None and question.read is None:
                for owner, grant in question.inquiry.losers(None):
                    self._release(owner, grant)
            self._end(question, Outcome.FAILED, "Aborted")
        return question.receipt

    # ---- peers ---------------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Take in what has arrived on the channel."""
        while True:
            try:
                arrival = self._channel.arrivals.get_nowait()
            except queue.Empty:
                break
            if arrival.ask_id in self._greeted:
                self._greeting_answered(arrival)
            else:
                self._ask_answered(arrival)
        overdue = self._peers.expire(self._clock())
        if overdue:
            self._greeted = {hello: address for hello, address in self._greeted.items() if address not in overdue}

    @property
    def busy(self) -> bool:
        """Whether the engine must step although it has no request: something arrived, or the workers are connecting."""
        return self._peers.connecting or bool(self._in_transit) or not self._channel.arrivals.empty()

    # ---- inside --------------------------------------------------------------------------------------------------------------

    def _open(
        self,
        request_id: str,
        raw: Mapping[str, Any] | None,
        prompt_tokens: int,
        hashes: Sequence[bytes],
        local_tokens: int,
    ) -> Question | None:
        params = parse_claim_params(raw)
        if params is None:
            return None
        now = self._clock()
        if isinstance(params, Refusal):
            question = Question(request_id, ClaimParams(version=0), prompt_tokens, now, local_tokens)
            self._questions[request_id] = question
            self._end(question, Outcome.REFUSED, params.reason.value)
            return question
        question = Question(request_id, params, prompt_tokens, now, local_tokens)
        self._questions[request_id] = question
        owners = tuple(dict.fromkeys(params.owners))
        for owner in owners:
            self._greet(owner)
        if params.introduce:
            question.introducing = owners
            if not owners:
                self._end(question, Outcome.INTRODUCED)
            return question
        self._ask(question, owners, hashes, local_tokens // self._block_size)
        return question

    def _ask(self, question: Question, owners: Sequence[Address], hashes: Sequence[bytes], local_blocks: int) -> None:
        askable = min(askable_blocks(question.prompt_tokens, len(hashes), self._block_size), local_blocks + MAX_HASHES)
        if not worth_asking(askable - local_blocks, self._block_size, self._limits.threshold_tokens) or not owners:
            self._end(question, Outcome.LOCAL if owners else Outcome.EMPTY)
            return
        asked = tuple(owner for owner in owners if self._peers.connected(owner) is not None)[
            : self._limits.max_owners_asked
        ]
        if not asked:
            refusals = [refusal.value for owner in owners if (refusal := self._peers.refusal(owner)) is not None]
            self._end(question, Outcome.REFUSED if refusals else Outcome.UNCONNECTED, next(iter(refusals), None))
            return
        question.ask_id = secrets.token_bytes(16)
        question.asked_at = self._clock()
        question.inquiry = Inquiry(
            asked,
            local_blocks,
            askable - local_blocks,
            question.asked_at,
            question.asked_at + self._limits.answer_seconds,
        )
        self._by_ask[question.ask_id] = question.request_id
        me = self._identity
        message = Ask(
            id=question.ask_id,
            reader=me.engine_id,
            host=me.host,
            port=me.port,
            group=me.whole_group,
            hashes=[bytes(block_hash) for block_hash in hashes[local_blocks:askable]],
        )
        for owner in asked:
            self._recorder.claim_asked()
            self._channel.send(owner, message)

    def _decide(self, question: Question, inquiry: Inquiry, local_blocks: int) -> int | None:
        now = self._clock()
        if question.taken is not None:
            owner, grant = question.taken.owner, question.taken.grant
        else:
            verdict = inquiry.verdict(now)
            if isinstance(verdict, Wait):
                return None
            self._by_ask.pop(question.ask_id, None)
            for loser, lost in inquiry.losers(verdict.owner if isinstance(verdict, Take) else None):
                self._release(loser, lost)
            if isinstance(verdict, GiveUp):
                self._end(question, verdict.outcome, verdict.reason)
                return 0
            owner, grant = verdict.owner, verdict.grant
        # The answer may be from a while ago (the request waited for room): local blocks may have changed, the hold may be nearly over, and
        # another engine may run at the owner's place, whose blocks of the same numbers are not these.
        portion = usable_portion(inquiry, grant, local_blocks, self._limits.threshold_tokens, self._block_size)
        in_time = now + self._limits.read_seconds <= question.asked_at + grant.hold_seconds
        welcome = self._peers.connected(owner)
        if portion is None or not in_time or welcome is None or welcome.engine_id != grant.engine_id:
            self._release(owner, grant)
            question.taken = None
            gone = welcome is None or welcome.engine_id != grant.engine_id
            self._end(question, Outcome.UNCONNECTED if gone else Outcome.EMPTY if in_time else Outcome.LATE)
            return 0
        question.taken = Taken(owner, welcome, grant, inquiry.first_block, portion)
        return portion.blocks * self._block_size

    def _introduced(self, question: Question) -> int | None:
        waited = self._clock() - question.asked_at
        if self._peers.undecided(question.introducing) and waited < self._limits.connect_seconds:
            return None
        self._end(question, Outcome.INTRODUCED)
        return 0

    def _end(self, question: Question, outcome: Outcome, reason: str | None = None) -> None:
        read = question.read if outcome is Outcome.READ else None
        tokens = len(read.local_blocks) * self._block_size if read else 0
        size = len(read.local_blocks) * self._bytes_per_block if read else 0
        now = self._clock()
        question.receipt = Receipt(
            outcome=outcome,
            reason=reason,
            owner=read.owner if read else None,
            prompt_tokens=question.prompt_tokens,
            local_tokens=question.local_tokens,
            read_tokens=tokens,
            read_bytes=size,
            answer_ms=None if question.answer_seconds is None else round(question.answer_seconds * 1e3, 3),
            read_ms=round((now - question.read_at) * 1e3, 3) if read else None,
            connected=tuple(owner for owner in question.introducing if self._peers.connected(owner) is not None),
        )
        self._recorder.claim_ended(outcome.value, reason)
        if read:
            self._recorder.read(f"{read.welcome.role}To{self._identity.role}", tokens, size)

    def _greet(self, owner: Address) -> None:
        if not self._peers.greet(owner, self._clock()):
            return
        me = self._identity
        hello = Hello(id=secrets.token_bytes(16), reader=me.engine_id, host=me.host, port=me.port, group=me.whole_group)
        self._greeted[hello.id] = owner
        self._channel.send(owner, hello)

    def _greeting_answered(self, arrival: Arrival) -> None:
        address = self._greeted.pop(arrival.ask_id)
        answer = arrival.answer
        if isinstance(answer, Welcome) and answer.engine_id != self._identity.engine_id:
            self._peers.welcomed(address, answer)
            return
        refusal = answer.reason if isinstance(answer, Refuse) else None
        if isinstance(answer, Refuse) and refusal != self._peers.refusal(address):
            log.warning("The engine at %s:%d refuses: %s (%s)", address.host, address.port, answer.message, refusal)
        self._peers.not_welcomed(address, self._clock(), refusal)

    def _ask_answered(self, arrival: Arrival) -> None:
        answer = arrival.answer
        request_id = self._by_ask.get(arrival.ask_id)
        question = self._questions.get(request_id) if request_id is not None else None
        inquiry = question.inquiry if question is not None else None
        if isinstance(answer, Grant) and not self._is_connected(arrival.address, answer):
            # Another process runs there now: nothing it grants can be read before it is connected.
            self._release(arrival.address, answer)
            self._peers.forget(arrival.address)
            self._greet(arrival.address)
            answer = None
        if inquiry is None or question is None or not inquiry.awaits(arrival.address, arrival.at):
            if isinstance(answer, Grant):
                self._release(arrival.address, answer)
            return
        if answer is None:
            self._peers.forget(arrival.address)
        if isinstance(answer, Grant | Refuse) or answer is None:
            inquiry.answers[arrival.address] = answer if answer is not None else Unreachable()
            question.answer_seconds = arrival.at - inquiry.asked_at
            self._recorder.claim_answered(question.answer_seconds)

    def _is_connected(self, address: Address, grant: Grant) -> bool:
        welcome = self._peers.connected(address)
        return welcome is not None and welcome.engine_id == grant.engine_id

    def _release(self, owner: Address, grant: Grant) -> None:
        if grant.claim_id:
            self._channel.send(owner, Release(reader=self._identity.engine_id, claim_id=grant.claim_id))
