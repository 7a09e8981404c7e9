"""The path of a request through the gateway: validated, queued, sent to an engine, its answer passed back."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
import types
from collections.abc import Callable, Generator
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Scope

from lengthwise.client.client import (
    EngineBrokenError,
    EngineError,
    EngineRefusedError,
    EngineResponse,
    EngineTimeoutError,
    EngineUnreachableError,
)
from lengthwise.client.request_classes import CLASS_FIELD, ClassConfig
from lengthwise.gateway.access_log import shortened
from lengthwise.gateway.bodies import CompletionBody, ResponsesBody, parse
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.endpoint import Endpoint, outcome_of, outcome_of_error
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError, from_engine
from lengthwise.gateway.json_fields import LARGE_BODY, edit_fields, edited
from lengthwise.gateway.metrics import Metrics
from lengthwise.gateway.model_names import MODEL_HEADER, ModelNames
from lengthwise.gateway.recent_requests import RecentRequests
from lengthwise.gateway.request_rows import request_row
from lengthwise.gateway.retries import FAILED_STATUSES, REFUSED_STATUSES, retry_after_s
from lengthwise.gateway.stored_responses import ResponseIds, ResponseOwners
from lengthwise.gateway.streaming import BodyBudget, Caller, relay
from lengthwise.gateway.tenants import Lease
from lengthwise.gateway.types import Call
from lengthwise.gateway.usage import ResponsesMeter
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Job
from lengthwise.predictors.contract import answer_cap
from lengthwise.predictors.service import PredictionService
from lengthwise.prefixes import BYTES_PER_TOKEN
from lengthwise.traffic.log import TrafficLog
from lengthwise.traffic.rows import RequestOutcome

if TYPE_CHECKING:
    from lengthwise.gateway.tracing import Tracing  # needs an extra


_CHARGED_BYTES: Final = 3
"""Bytes of a prompt that count as a token where the engine has not reported it: fewer per token are rare."""
_ASK_S: Final = 0.25  # between two questions for an answer in the background, twice as long after each
_MAX_ASK_S: Final = 2.0
_MAX_FAILURES: Final = 5  # questions in a row without an answer: the engine does not know it any more
_FOREVER: Final = (math.inf, 503, "queue_timeout")
_job_numbers: Final = itertools.count()  # a client's request id need not be unique, a job's must be


@types.coroutine
def next_stage() -> Generator[None, None, None]:
    """Let the other requests of this turn of the event loop come as far as this one.

    Each stage of the path then runs for all of them in a row, while its code and data are in the CPU's caches: where
    requests go the whole path one by one, most of their CPU time is spent on cache misses.
    """
    yield


class _RefusedError(EngineRefusedError):
    """An engine refused a request, which is to be sent again after `wait_s`."""

    def __init__(self, engine: GatewayEngine, status: int, wait_s: float) -> None:
        super().__init__(f"{engine.name} answers {status}", status)
        self.wait_s = wait_s


class _FailedError(_RefusedError):
    """An engine failed with a request, which is to be sent to another one after `wait_s`."""

    kind = "failed"


class _OverdueError(EngineTimeoutError):
    """A request was taken from an engine that hangs, and is to be sent to another one."""

    kind = "overdue"


class Completions(Endpoint):
    """The ASGI application of one completion endpoint."""

    def __init__(
        self,
        path: str,
        model: type[CompletionBody],
        config: GatewayConfig,
        dispatcher: Dispatcher,
        metrics: Metrics,
        budget: BodyBudget,
        *,
        predictions: PredictionService,
        names: ModelNames,
        ids: ResponseIds,
        owners: ResponseOwners,
        calls: dict[str, Call],
        recent: RecentRequests,
        traffic: TrafficLog | None,
        tracing: Tracing | None,
    ) -> None:
        """`calls` has the open requests by the id of their job; those that end go to `recent`, `traffic`, `tracing`."""
        super().__init__(path, config, dispatcher, metrics, budget)
        self._path = path
        self._model = model
        self._predictions = predictions
        self._names = names
        self._ids = ids
        self._owners = owners
        self._calls = calls
        self._recent = recent
        self._traffic = traffic
        self._tracing = tracing
        self._following: set[asyncio.Task[None]] = set()
        self._first_byte = metrics.first_byte_seconds.labels(path)

    async def _serve(
        self, scope: Scope, raw: bytes, caller: Caller, lease: Lease, request_id: bytes, began: float
    ) -> RequestOutcome:
        await next_stage()
        if len(raw) < LARGE_BODY:
            body, job, raw, claimed = self._read(raw, began, caller, lease)
        else:
            read = partial(self._read, raw, began, caller, lease)
            body, job, raw, claimed = await self._budget.read(lease.tenant.name, read)
            del read
        caller.hold(body.kept_bytes, self._budget)
        await next_stage()
        if (model := self._names.resolve(body.model)) != body.model and model is not None:
            renamed = model
            raw = await edited(raw, lambda raw: body.rename(raw, renamed))
            job.llm = model
            caller.extra_headers.append((MODEL_HEADER, model.encode()))
        job.use_limits(**self._names.limits(body.model))
        self._dispatcher.refuse(body.model)  # before a prediction is made for it
        pinned = None
        if isinstance(body, ResponsesBody):
            continued, raw = await self._own(body, raw, lease.tenant.name)
            if continued is not None:
                job.session = job.session or self._owners.session(continued)
                pinned = await self._owner(continued, body.model, caller)
        hide_usage = self._config.stream_usage and body.lacks_usage
        if hide_usage:
            raw = await edited(raw, body.with_usage)
        meter = self._model.meter(hide_usage=hide_usage)
        if isinstance(meter, ResponsesMeter) and self._config.keys is not None:
            meter.seen_id = partial(self._ids.tagged, tenant=lease.tenant.name)
        history = self._admit(job, body, caller, lease.tenant.name)
        call = Call(job, body, raw, caller, request_id, meter, history, tenant=lease.tenant.name, pinned=pinned)
        call.claimed = claimed
        call.once = not (self._config.resend and body.repeatable)
        self._predict(call)
        self._calls[job.id] = call
        if self._tracing is not None:
            call.span = self._tracing.start(self._path, call)
        try:
            if lease.limits_tokens:
                lease.charge(_expected_tokens(lease, call))
            outcome = await self._hold_and_run(call, lease)
            if caller.connection is not None and caller.connection.behind:
                await caller.connection.all_read()  # its slot is free by now
            call.outcome = outcome
        except ApiError as error:
            call.failed = True
            call.outcome = outcome_of_error(error)
            raise
        finally:
            if call.follows is None:
                self._end(call, lease)
            else:
                self._hold_on(call.follows, call, lease)
        return call.outcome

    def _hold_on(self, engine: GatewayEngine, call: Call, lease: Lease) -> None:
        """Let a request keep its slot and its place in the tenant's limits while its engine generates on."""
        lease.keep()
        call.raw = b""
        task = asyncio.create_task(self._follow(engine, call, lease))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _follow(self, engine: GatewayEngine, call: Call, lease: Lease) -> None:
        """Ask the engine for an answer in the background until it has ended, and then end its request."""
        meter = call.meter
        assert isinstance(meter, ResponsesMeter)  # noqa: S101  (`_goes_on`)
        longest_s = engine.longest_generation_s(call.job, declared=True)
        until = self._dispatcher.clock() + self._config.silence_timeout_s + (longest_s if longest_s < math.inf else 0.0)
        path, headers, failures, wait_s = (
            f"{self._path}/{meter.response_id}",
            call.caller.forwarded_headers(),
            0,
            _ASK_S,
        )
        try:
            while meter.pending and failures < _MAX_FAILURES and self._dispatcher.clock() < until:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _MAX_ASK_S)
                try:
                    answer = await engine.client.forward("GET", path, b"", headers)
                    try:
                        known = answer.status == HTTPStatus.OK
                        if known:
                            meter.whole(await answer.read())
                    finally:
                        answer.close()
                except EngineError:
                    known = False
                failures = 0 if known else failures + 1
        finally:
            self._dispatcher.release(engine, call.job, meter.tokens or 0, call.ttft_s)
            self._end(call, lease)
            lease.release()

    def _end(self, call: Call, lease: Lease) -> None:
        """Settle the tenant's account, log the request, and learn from it."""
        job, body = call.job, call.body
        del self._calls[job.id]
        self._recent.add(call)
        if self._tracing is not None and call.span is not None:
            self._tracing.end(call.span, call)
        used = self._used_tokens(call)
        lease.settle(used)
        if call.caller.logged:
            _log_call(call, self._dispatcher.clock())
        if job.started is not None:
            self._metrics.predicted(call.source)
        if self._traffic is not None and (trace := self._predictions.trace(job.id)) is not None:
            now, policy, kept = self._dispatcher.clock(), self._dispatcher.policy.name, self._config.keep_prompts
            scopes = None if trace.scopes is None else self._traffic.keyed(trace.scopes)
            self._traffic.add(request_row(call, trace, scopes, now, policy=policy, keep_prompt=kept))
        tokens, cut = (call.meter.length if body.one_answer else None) or (None, False)
        self._predictions.ended(job.id, tokens, censored=cut)
        job.used_tokens = None if tokens is not None else used or None
        if tokens is not None or job.started is None or job.used_tokens is not None:
            self._dispatcher.finished(job, tokens or 0)
        if tokens is not None:
            lease.observe_answer(body.llm, tokens, censored=cut)
            if not cut and call.source == "predictor":
                self._metrics.answered(job, body.llm, tokens)
            if call.claimed is not None and self._config.keys is not None:
                self._compare(call.claimed, tokens, lease, cut=cut and call.meter.finish_reason is None)

    def _compare(self, claimed: float, tokens: int, lease: Lease, *, cut: bool) -> None:
        """Compare a declared length with the true one; where claims cease to count, those that wait count no more."""
        counted = lease.claims.count
        lease.claims.observe(claimed, tokens, censored=cut)
        if not counted or lease.claims.count:
            return
        tenant = lease.tenant.name
        for call in [each for each in self._calls.values() if each.tenant == tenant and each.hinted]:
            if call.job.started is None:
                call.history = self._predictions.from_history(call.body.llm, call.job.max_tokens, tenant)
                call.raw = call.body.restrict(call.raw, priority=True, lengths=False, limits=True)
                call.hinted = False
                self._dispatcher.rejoin(call.job, call.history)
                self._seek(call)
                self._ask(call)

    def _read(
        self, raw: bytes, began: float, caller: Caller, lease: Lease
    ) -> tuple[CompletionBody, Job, bytes, float | None]:
        """Return the body as fields, as a job and as it is sent on, and the tokens that it declares."""
        body, tenant = parse(self._model, raw), lease.tenant
        claimed = body.hint if tenant.may_declare_length else None
        may = {
            "priority": tenant.may_set_priority,
            "lengths": tenant.may_declare_length and (self._config.keys is None or lease.claims.count),
            "limits": tenant.may_set_limits,
        }
        if not all(may.values()):
            raw = body.restrict(raw, **may)
        job = body.job(str(next(_job_numbers)), began, caller.headers, limits=tenant.may_set_limits)
        job.use_limits(**tenant.limits)
        named = body.class_name(caller.headers) if tenant.may_set_priority else None
        known = self._config.class_of(tenant) if named is None else self._class_named(named)
        job.use_limits(**known.limits)
        job.request_class = named or tenant.request_class
        if self._config.keys is not None:
            job.tenant = tenant.name
        if body.priority is None:
            own = named is None and "priority" in tenant.model_fields_set
            job.priority = tenant.priority if own else known.priority
        body.condense()
        return body, job, raw, claimed

    def _class_named(self, name: str) -> ClassConfig:
        """Return the class that a client names; ApiError 400 if there is none of that name."""
        known = self._config.classes.get(name)
        if known is None:
            names = ", ".join(self._config.classes) or "none"
            raise ApiError(400, f"there is no class {name[:40]!r}; known are {names}", param=CLASS_FIELD)
        return known

    async def _own(self, body: ResponsesBody, raw: bytes, tenant: str) -> tuple[str | None, bytes]:
        """Return the engine's id of the answer that is continued, if any, and the body with it.

        ApiError 404 if it is another tenant's. Where tenants have keys, a client may not choose the id of its answer.
        """
        changes: dict[str, bytes | None] = {}
        continued = body.previous_response_id
        if self._config.keys is None:
            return continued, raw
        if continued is not None:
            continued = self._ids.engine_id(continued, tenant)
            changes["previous_response_id"] = json.dumps(continued).encode()
        if "request_id" in body.model_fields_set:
            changes["request_id"] = None
        return continued, await edited(raw, lambda raw: edit_fields(raw, changes)) if changes else raw

    async def _owner(self, response_id: str, model: str | None, caller: Caller) -> GatewayEngine | None:
        """Return the engine that stores an answer, if there is a choice and it serves the model."""
        engines = [e for e in self._dispatcher.engines if e.up and not e.leaving and e.serves(model)]
        if len(engines) < 2:
            return None
        owner = await self._owners.locate(response_id, engines, caller.forwarded_headers())
        return owner if owner is not None and owner.serves(model) else None

    def _admit(self, job: Job, body: CompletionBody, caller: Caller, tenant: str) -> LengthDistribution | None:
        """Return the prediction from the LLM's history."""
        scopes = None
        if self._predictions.remembers or self._traffic is not None:
            scopes = body.scopes(job, caller.headers)
        return self._predictions.admit(job.id, body.llm, job.max_tokens, scopes, tenant)

    def _predict(self, call: Call) -> None:
        """Use the client's hint, else the predictor if it can be asked, else the LLM's history."""
        call.hinted = call.job.prediction is not None
        if not call.hinted:
            self._seek(call)

    def _seek(self, call: Call) -> None:
        """Use the predictor if it can be asked, else the LLM's history."""
        body, job = call.body, call.job
        used = self._dispatcher.uses_predictions or self._config.observe
        if used and body.readable and self._predictions.predicts:
            call.question = partial(body.prediction_input, job, call.caller.headers)
            # The traffic log records the prediction of every request.
            if self._traffic is not None or not self._predictions.works:
                self._ask(call)
        else:
            job.update_prediction(call.history)

    def _ask(self, call: Call) -> None:
        """Ask for the prediction of a request that waits: of one that need not wait, it would come too late."""
        if call.question is not None:
            if not self._predictions.ask(call.job.id, call.question):
                call.job.update_prediction(call.history)
            call.question = None

    def _used_tokens(self, call: Call) -> int | None:
        """Return the tokens of prompt and answer; None if it has run and nothing is known of them.

        Of an answer in one piece that its client did not wait for: what the engine generates in that time.
        """
        job, tokens, prompt = call.job, call.meter.tokens, call.meter.prompt_tokens
        if tokens is None:
            if call.failed or job.started is None:
                return 0
            engine = next((each for each in self._dispatcher.engines if each.name == call.engine), None)
            if engine is None or not engine.speed.tokens_per_s:
                return None
            generated = (self._dispatcher.clock() - job.started) * engine.speed.tokens_per_s
            tokens = round(min(generated, answer_cap(job.max_tokens))) * call.body.answers
        return tokens + (_prompt_tokens(call) if prompt is None else prompt)

    async def _hold_and_run(self, call: Call, lease: Lease) -> RequestOutcome:
        await next_stage()
        while True:
            engine = self._place_now(call) or await self._place(call)
            if lease.limits_tokens and call.source == "predictor":
                lease.correct(_expected_tokens(lease, call))
            try:
                return await self._run(engine, call)
            except EngineError as error:
                if call.caller.answered:
                    await call.caller.end_with(from_engine(error))
                    return "broken_stream"
                wait_s = self._retry_in_s(engine, call, error)
                if wait_s is None:
                    raise from_engine(error) from error
                self._metrics.retries.labels(error.kind).inc()
            except ApiError as error:
                if not call.caller.answered:
                    raise
                await call.caller.end_with(error)
                return "broken_stream"
            finally:
                if _goes_on(call):
                    call.follows = engine
                else:
                    tokens, _ = call.meter.length or (0, True)
                    self._dispatcher.release(engine, call.job, tokens, call.ttft_s)
            await asyncio.sleep(wait_s)

    def _place_now(self, call: Call) -> GatewayEngine | None:
        """Take a slot for a request that need not wait; None if it must."""
        if call.refused_by or self._dispatcher.clock() >= self._waits_until(call.job)[0]:
            return None
        engine = self._dispatcher.place_now(call.job, call.pinned)
        return None if engine is None else self._placed(call, engine)

    async def _place(self, call: Call) -> GatewayEngine:
        """Wait for a slot, at most as long as the request may wait."""
        job = call.job
        until, status, code = self._waits_until(job)
        on_wait = None if call.question is None else partial(self._ask, call)
        try:
            if self._dispatcher.clock() >= until:
                raise TimeoutError
            engine = await self._dispatcher.place(
                job, avoid=call.refused_by, until=until, only=call.pinned, on_wait=on_wait
            )
        except TimeoutError:
            late = status == HTTPStatus.SERVICE_UNAVAILABLE
            headers = {"retry-after": str(self._dispatcher.retry_after_s(job.llm))} if late else None
            raise ApiError(status, "no engine was free in time", code=code, headers=headers) from None
        return self._placed(call, engine)

    def _waits_until(self, job: Job) -> tuple[float, int, str]:
        """Return the time at which a request has waited too long, and the status and code of that error."""
        config = self._config
        if config.queue_timeout_s is None and config.request_timeout_s is None and not config.enforce_deadlines:
            return _FOREVER
        return min(
            (job.arrival + (config.queue_timeout_s or math.inf), 503, "queue_timeout"),
            (job.arrival + (config.request_timeout_s or math.inf), 504, "timeout"),
            (job.deadline if config.enforce_deadlines else math.inf, 504, "deadline_exceeded"),
        )

    def _placed(self, call: Call, engine: GatewayEngine) -> GatewayEngine:
        """Note the engine of a request that has a slot now."""
        self._metrics.queue_seconds.observe(self._dispatcher.clock() - call.job.arrival)
        call.engine = engine.name
        self._predictions.started(call.job.id)
        engine.retries.on_request()
        if call.question is not None:
            self._predictions.ask_to_learn(call.job.id, call.question)
            call.question = None
        return engine

    def _retry_in_s(self, engine: GatewayEngine, call: Call, error: EngineError) -> float | None:
        """Return the seconds to wait before the request is sent again; None if it is not."""
        call.once |= error.resent
        call.answer = None
        if isinstance(error, EngineUnreachableError):
            # The engine has not received the request and is down: back to the queue, until one is up.
            held_s = self._dispatcher.clock() - call.job.arrival
            return 0.0 if held_s < self._config.hold_timeout_s else None
        call.refused_by.append(engine)
        if isinstance(error, _RefusedError):
            return error.wait_s
        if isinstance(error, _OverdueError):
            return 0.0
        wait_s = None
        if isinstance(error, EngineBrokenError) and not call.once:  # it may be what breaks the engine
            call.once = True
            wait_s = engine.retries.wait_s(0)
        return wait_s

    async def _run(self, engine: GatewayEngine, call: Call) -> RequestOutcome:
        """Send the request to an engine and pass its answer on; mark the engine as down if it cannot be reached."""
        try:
            edit = self._edit_for(engine, call)
            raw = call.raw if edit is None else await edited(call.raw, edit)
            if self._config.request_timeout_s is None:  # a timeout takes more time than sending the request
                answer = await self._exchange(engine, call, raw)
            else:
                async with asyncio.timeout(self._left_s(call.job)):
                    answer = await self._exchange(engine, call, raw)
        except TimeoutError as error:
            raise ApiError(504, "the answer was not complete in time", code="timeout") from error
        except EngineError as error:
            self._failed(engine, error)
            raise
        except asyncio.CancelledError as error:
            if not call.moves or _task_of(call).uncancel():  # its client has left, at the same time perhaps
                raise
            call.moves = False
            self._metrics.failed(engine, _OverdueError.kind)
            raise _OverdueError(f"{engine.name} hangs") from error
        if answer.is_stream and answer.status < 400 and not call.meter.done:
            self._metrics.failed(engine, "unfinished")
            return "broken_stream"
        call.failed = answer.status >= 400
        if not call.failed:
            engine.heard_at = self._dispatcher.clock()
        return outcome_of(answer.status)

    def _retry_status(self, engine: GatewayEngine, call: Call, answer: EngineResponse) -> None:
        """Raise if a request is to be sent again after the status of an answer."""
        avoid, status, llm = [*call.refused_by, engine], answer.status, call.job.llm
        if status in REFUSED_STATUSES:
            another = call.pinned is None and self._dispatcher.another_up(llm, avoid)
            asked_s = None if another else retry_after_s(answer.header("retry-after"))
            wait_s = engine.retries.wait_s(len(call.refused_by), asked_s)
            if wait_s is not None:
                raise _RefusedError(engine, status, wait_s)
        elif not call.once and call.pinned is None and self._dispatcher.another_up(llm, avoid, well=True):
            wait_s = engine.retries.wait_s(0)
            if wait_s is not None:
                call.once = True
                raise _FailedError(engine, status, wait_s)

    def _edit_for(self, engine: GatewayEngine, call: Call) -> Callable[[bytes], bytes] | None:
        """Return the edit that adds what the engine's scheduler can use to the body, if any."""
        body, job = call.body, call.job
        if self._config.observe:
            return None
        if engine.identity.kind == "lengthwise":
            # A prediction that has not arrived is not waited for: the engine then predicts.
            forward, now = call.source == "predictor", self._dispatcher.clock()
            tenant = call.tenant if self._config.tenants_apart else None
            return lambda raw: body.for_engine(raw, job, now, prediction=forward, tenant=tenant)
        if engine.identity.kind == "openai" or not body.takes_priority:
            return None
        priority = self._dispatcher.engine_priority(job)
        return lambda raw: body.with_priority(raw, priority if engine.identity.kind == "vllm" else -priority)

    def _left_s(self, job: Job) -> float:
        """Return the seconds that a request may still take."""
        if self._config.request_timeout_s is None:
            return math.inf
        return job.arrival + self._config.request_timeout_s - self._dispatcher.clock()

    def _first_byte_s(self, engine: GatewayEngine, call: Call) -> float:
        """Return the seconds until the first byte must have arrived.

        An answer in one piece arrives with its last token: the time to generate it, as predicted, is added.
        """
        limit_s = self._config.first_byte_timeout_s
        if not call.body.stream:
            limit_s += engine.longest_generation_s(call.job, declared=call.hinted)
        return limit_s

    def _failed(self, engine: GatewayEngine, error: EngineError) -> None:
        self._metrics.failed(engine, error.kind)
        # Whether an engine that was reached is up, its health checks decide: one request must not take it from others.
        if isinstance(error, EngineUnreachableError):
            self._dispatcher.on_unreachable(engine, error)
        elif not isinstance(error, EngineRefusedError) or error.status >= 500:
            self._dispatcher.on_answer(engine, failed=True)

    async def _exchange(self, engine: GatewayEngine, call: Call, raw: bytes) -> EngineResponse:
        await next_stage()
        path, headers = self._path + call.caller.query, call.caller.forwarded_headers(call.request_id)
        if self._tracing is not None and call.span is not None:
            headers = self._tracing.propagated(headers, call.span)
        limit_s = self._first_byte_s(engine, call)
        answer = call.answer = await engine.client.forward("POST", path, raw, headers, limit_s, resend=not call.once)
        if answer.resent:
            call.once = True

        def began() -> None:
            answer.lift_limit()
            if answer.status < 500 or not call.refused_by:  # a request that fails twice may be the reason itself
                self._dispatcher.on_answer(engine, failed=answer.status >= 500)
            now, started = self._dispatcher.clock(), call.job.started
            if answer.status < 400:  # an engine that hangs may still refuse
                engine.heard_at = now
            call.first_byte_s = now - call.job.arrival
            self._first_byte.observe(call.first_byte_s)
            if answer.is_stream and started is not None:  # an answer in one piece arrives with its last token
                self._dispatcher.on_first_byte(engine, call.job)
                call.ttft_s = now - started

        try:
            if answer.status == 429:
                self._dispatcher.pause(engine, retry_after_s(answer.header("retry-after")))
            if answer.status in REFUSED_STATUSES or answer.status in FAILED_STATUSES:
                self._retry_status(engine, call, answer)
            await relay(answer, call.caller, call.request_id, call.meter, began)
        finally:
            answer.close()
            if isinstance(call.meter, ResponsesMeter) and call.meter.response_id is not None:
                self._owners.add(call.meter.response_id, engine, call.job.session)
        return answer


def _task_of(call: Call) -> asyncio.Task[Any]:
    task = call.caller.task
    assert task is not None  # noqa: S101  (its client is present)
    return task


def _expected_tokens(lease: Lease, call: Call) -> int:
    """Return the tokens that a tenant is charged before they are known.

    Those of the prompts, and of each answer those of the request's own prediction; before there is one, of the tenant's
    own answers.
    """
    job, body = call.job, call.body
    own = call.hinted or call.source == "predictor"
    expected = job.expected if own else lease.expected_answer(body.llm, job.max_tokens)
    return _prompt_tokens(call) + round(expected * body.answers)


def _prompt_tokens(call: Call) -> int:
    """Return the tokens of the prompts by their bytes, until an engine reports them; of several, by the whole body."""
    known = call.body.readable or call.job.prompt_tokens
    return math.ceil((call.job.prompt_tokens * BYTES_PER_TOKEN if known else len(call.raw)) / _CHARGED_BYTES)


def _goes_on(call: Call) -> bool:
    """Whether the engine generates on after the answer to this request: a response in the background."""
    in_background = isinstance(call.body, ResponsesBody) and call.body.background is True
    return in_background and isinstance(call.meter, ResponsesMeter) and call.meter.pending and not call.failed


def _log_call(call: Call, now: float) -> None:
    """Add to the access log what is known of a request that ends now."""
    job, meter = call.job, call.meter
    since_1970 = time.time() - now
    first_token = None if job.started is None or call.ttft_s is None else job.started + call.ttft_s
    call.caller.log(
        started_s=None if job.started is None else round(job.started + since_1970, 4),
        first_token_s=None if first_token is None else round(first_token + since_1970, 4),
        llm=shortened(call.body.model),
        engine=call.engine,
        input_tokens=meter.prompt_tokens,
        output_tokens=meter.tokens,
        resubmissions=len(call.refused_by),
        source=call.source,
        mu=round(job.mu, 4),
        sigma=round(job.sigma, 4),
    )
