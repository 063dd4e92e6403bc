"""One turn, driven: decide, prefill, open decode; on failure decide again until decode's first event is there.

All decisions are ``policy.decide`` and ``flow.attempts``; here is only the order of I/O. After ``opened`` has yielded,
nothing is ever tried again. Leaving it, by any way, ends the legs and gives back every count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from pdd_router.config import Direction, Keep, Mechanism, OnPrefillFailure
from pdd_router.endpoints.engine import EngineView, Role
from pdd_router.endpoints.registry import NotAdmittedError, Use
from pdd_router.errors import AnswerTooLargeError, EngineFailedError, EngineRejectedError, LegError
from pdd_router.flow import attempts, kv_params
from pdd_router.flow.attempts import Progress
from pdd_router.flow.legs import decode_body, prefill_body
from pdd_router.flow.report import PrefillReport, note_receipt
from pdd_router.flow.services import Services
from pdd_router.openai.request import ClientRequest
from pdd_router.policy.chain import Chain
from pdd_router.policy.conversations import Match, Served
from pdd_router.policy.decide import Arm, Plan, Refusal, RefusalReason, TurnFacts, decide
from pdd_router.upstream import EventStream

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class TurnInput:
    request: ClientRequest
    request_id: str
    tenant: str
    salt: str
    chain: Chain


@dataclass(slots=True)
class Opened:
    """Decode answers: ``stream`` or ``answer``, as the client asked. ``served`` is what the index remembers of it."""

    plan: Plan
    prefill: PrefillReport | None
    served: Served
    use: Use
    stream: EventStream | None = None
    answer: JsonObject | None = None


class Turn:
    """``deadline``: on the loop's clock, for the whole request; who calls sees to it."""

    def __init__(self, services: Services, given: TurnInput, deadline: float) -> None:
        self._services = services
        self._given = given
        self._deadline = deadline
        self._match: Match = services.conversations.find(given.tenant, given.request.conversation_id, given.chain)
        self._progress = Progress()
        self._report: PrefillReport | None = None
        self._prefill_params: JsonObject | None = None
        self._handle_offered = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Opened]:
        """Raises RouterError where the turn cannot be served; then nothing has been answered."""
        self._services.budget.deposit()
        while True:
            plan = await self._plan_and_prefill()
            committed = False
            try:
                async with self._decode(plan) as opened:
                    committed = True
                    yield opened
                    return
            except NotAdmittedError:
                self._progress = attempts.without(self._progress, plan.decode.id)
            except LegError as error:
                if committed:
                    raise
                self._decode_failed(plan, error)

    # ---- prefill ----

    async def _plan_and_prefill(self) -> Plan:
        while True:
            plan = await self._decided()
            prefill = plan.prefill
            if prefill is None or prefill.living == self._progress.attempt.prefilled:
                if prefill is None:
                    self._report = self._prefill_params = None
                return plan
            try:
                await self._prefill(plan, prefill)
            except NotAdmittedError:
                self._progress = attempts.without(self._progress, prefill.id)
            except EngineRejectedError:
                self._count_leg(prefill, "Rejected")
                raise
            except LegError as error:
                self._prefill_failed(prefill, error)
            else:
                if self._is_decode_there(plan):
                    return plan

    async def _decided(self) -> Plan:
        """A request that comes while one decode engine takes over from another waits for that moment; while all are full, for a place."""
        registry = self._services.registry
        while isinstance(plan := await self._decided_when_not_full(), Refusal):
            if plan.reason is not RefusalReason.NO_DECODE or not registry.is_coming(Role.DECODE):
                raise attempts.refused(plan, self._progress)
            await registry.news()
        return plan

    async def _decided_when_not_full(self) -> Plan | Refusal:
        services = self._services
        if not _is_full(plan := self._decide()):
            return plan
        with suppress(TimeoutError), services.registry.waiting.ticket() as ticket:
            async with asyncio.timeout(services.config.limits.queue_timeout_seconds):
                while _is_full(plan):
                    await ticket.call()
                    plan = self._decide()
        return plan

    def _decide(self) -> Plan | Refusal:
        snapshot = self._services.registry.snapshot(self._given.request.model)
        return decide(snapshot, self._facts(), self._services.policy, self._progress.attempt)

    def _facts(self) -> TurnFacts:
        given, match = self._given, self._match
        estimator, model = self._services.estimator, given.request.model
        request = given.request
        single_use = self._services.policy.mechanism is Mechanism.RETAIN
        several = request.choices * request.prompts > 1
        return TurnFacts(
            total_tokens=estimator.tokens(model, given.chain.chars),
            held_tokens=estimator.tokens(model, match.held_chars),
            is_conversation=match.is_conversation,
            holder=match.holder,
            known=match.known,
            # Several sequences would each read by the same handle, which is good for one.
            splittable=not request.one_engine_only and not (single_use and several),
        )

    async def _prefill(self, plan: Plan, prefill: EngineView) -> None:
        services, given = self._services, self._given
        body = prefill_body(given.request, salt=given.salt, params=self._params_for_prefill(plan))
        facts = self._facts()
        tokens = facts.new_tokens if plan.prefill_owners else facts.total_tokens
        began = services.clock()
        with services.registry.expecting(plan.decode.id, facts.total_tokens), self._using(prefill, tokens) as use:
            answer = await services.upstream.post_json(
                prefill.engine,
                given.request.endpoint,
                body,
                request_id=given.request_id,
                timeout_seconds=services.config.timeouts.prefill_seconds,
            )
            use.answers()
            use.success = True
        seconds = services.clock() - began
        services.metrics.prefill_seconds.observe(seconds)
        self._count_leg(prefill, "Success")
        self._note_prefill(plan, prefill, answer, seconds)

    def _note_prefill(self, plan: Plan, prefill: EngineView, answer: JsonObject, seconds: float) -> None:
        services = self._services
        params = answer.get(kv_params.KEY)
        receipt = kv_params.parse_receipt(params)
        owner = None
        if receipt is not None:
            owner = note_receipt(receipt, prefill, plan.prefill_owners, services.registry, services.metrics)
        tokens = receipt.prompt_tokens if receipt and receipt.prompt_tokens is not None else prompt_tokens_of(answer)
        if tokens is not None and self._given.chain.is_one_text:
            services.estimator.learn(self._given.request.model, self._given.chain.chars, tokens)
        self._report = PrefillReport(prefill.id.name, receipt, owner, tokens, seconds)
        if services.policy.mechanism is Mechanism.RETAIN:
            self._prefill_params = kv_params.parse_prefill_handle(params)
            if self._prefill_params is None:
                services.metrics.handles.labels("PrefillGaveNone").inc()
        else:
            self._progress = attempts.prefilled(self._progress, prefill.living)

    def _params_for_prefill(self, plan: Plan) -> JsonObject:
        if self._services.policy.mechanism is Mechanism.CLAIM:
            return kv_params.claim_params(plan.prefill_owners)
        return self._take_handle(plan) or kv_params.retain_request()

    def _take_handle(self, plan: Plan) -> JsonObject | None:
        """The handle of the turn before, on the first attempt only: what a failed leg did with it is not known."""
        services = self._services
        if self._handle_offered or services.policy.direction is Direction.PREFILL_TO_DECODE:
            return None
        self._handle_offered = True
        group = plan.decode.engine.group
        engines = services.registry.snapshot().engines
        living = frozenset(view.living for view in engines if view.engine.group == group)
        handle = services.conversations.take_handle(self._match, living)
        if handle is not None:
            services.metrics.handles.labels("Taken").inc()
        return handle

    def _is_decode_there(self, plan: Plan) -> bool:
        """Prefill may have taken seconds; where decode went meanwhile, decide again (in Claim, prefill's work stands)."""
        now = self._services.registry.snapshot().find(plan.decode.living)
        return now is not None and now.available

    # ---- decode ----

    @asynccontextmanager
    async def _decode(self, plan: Plan) -> AsyncIterator[Opened]:
        services, given = self._services, self._given
        body = decode_body(given.request, salt=given.salt, params=self._params_for_decode(plan))
        path, engine = given.request.endpoint, plan.decode.engine
        with self._using(plan.decode, self._facts().total_tokens) as use:
            if plan.prefill is not None:
                services.metrics.pairs.labels(plan.prefill.engine.group, engine.group).inc()
            if given.request.stream:
                async with services.upstream.open_stream(engine, path, body, request_id=given.request_id) as stream:
                    use.answers()
                    yield Opened(plan, self._report, self._remember(plan), use, stream=stream)
            else:
                answer = await services.upstream.post_json(
                    engine,
                    path,
                    body,
                    request_id=given.request_id,
                    timeout_seconds=services.config.limits.request_timeout_seconds,
                )
                use.answers()
                yield Opened(plan, self._report, self._remember(plan), use, answer=answer)

    def _params_for_decode(self, plan: Plan) -> JsonObject | None:
        if self._services.policy.mechanism is Mechanism.CLAIM:
            return kv_params.claim_params(plan.decode_owners) if plan.decode_owners else None
        handle, self._prefill_params = self._prefill_params, None
        if handle is None or plan.arm is Arm.DECODE_ONLY:
            return None
        return kv_params.with_keep(handle) if self._wants_keep() else handle

    def _wants_keep(self) -> bool:
        if self._services.policy.direction is Direction.PREFILL_TO_DECODE:
            return False
        known = self._match.is_conversation or self._given.request.conversation_id is not None
        return known or self._services.config.retain.keep is Keep.ALWAYS

    def _remember(self, plan: Plan) -> Served:
        given, services = self._given, self._services
        latest = (plan.prefill.living,) if plan.prefill is not None else ()
        served = Served(
            decode=plan.decode.living,
            prefills=tuple(dict.fromkeys([*latest, *self._match.prefills])),
            at=services.clock(),
            chars=given.chain.chars,
            # Of a turn that had no use for it (decode alone): still good, until this turn's own replaces it.
            handle=self._match.handle,
        )
        services.metrics.turns.labels(plan.arm, plan.why).inc()
        services.conversations.remember(given.tenant, given.request.conversation_id, given.chain, served)
        return served

    # ---- failure ----

    def _prefill_failed(self, prefill: EngineView, error: LegError) -> None:
        self._count_leg(prefill, result_of(error))
        policy = self._services.policy.on_prefill_failure
        before = self._progress.retries
        may_retry = policy is OnPrefillFailure.RETRY and self._may_retry()
        self._progress = attempts.after_prefill_failure(self._progress, prefill.id, error, policy, may_retry=may_retry)
        if self._progress.retries > before:
            self._services.metrics.retries.labels(prefill.engine.role).inc()

    def _decode_failed(self, plan: Plan, error: LegError) -> None:
        self._count_leg(plan.decode, result_of(error))
        if isinstance(error, EngineRejectedError | AnswerTooLargeError):  # another would say the same
            raise error
        self._progress = attempts.after_decode_failure(
            self._progress, plan.decode.id, error, may_retry=self._may_retry()
        )
        self._services.metrics.retries.labels(plan.decode.engine.role).inc()

    def _may_retry(self) -> bool:
        allowed = self._progress.retries < self._services.config.retries.max_per_request
        if allowed and self._services.budget.withdraw():
            return True
        self._services.metrics.retries_refused.inc()
        return False

    @contextmanager
    def _using(self, view: EngineView, tokens: int) -> Iterator[Use]:
        with self._services.registry.use(view.id, tokens) as use:
            try:
                yield use
            except EngineFailedError:
                use.success = False
                raise
            except asyncio.CancelledError:
                if self._hangs(use):
                    use.success = False
                raise

    def _hangs(self, use: Use) -> bool:
        """The request's time is over, and in a good part of it the engine has answered nobody: it is stuck, not slow."""
        config = self._services.config
        patience = min(config.timeouts.first_event_seconds, config.limits.request_timeout_seconds / 2)
        return asyncio.get_running_loop().time() >= self._deadline and use.silent_seconds >= patience

    def _count_leg(self, view: EngineView, result: str) -> None:
        self._services.metrics.legs.labels(view.engine.role, view.id.name, result).inc()


def _is_full(plan: Plan | Refusal) -> bool:
    return isinstance(plan, Refusal) and plan.reason is RefusalReason.DECODE_FULL


def result_of(error: LegError) -> str:
    if isinstance(error, EngineFailedError):
        return error.reason.value
    if isinstance(error, AnswerTooLargeError):
        return "TooLarge"
    return "Rejected" if isinstance(error, EngineRejectedError) else "Busy"


def prompt_tokens_of(answer: JsonObject) -> int | None:
    usage = answer.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None
