"""The path of a request through the gateway: validated, queued, sent to an engine, its answer passed back."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import types
from collections.abc import Callable, Generator
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from lengthwise.client.client import (
    EngineBrokenError,
    EngineError,
    EngineRefusedError,
    EngineResponse,
    EngineUnreachableError,
)
from lengthwise.gateway.access_log import shortened
from lengthwise.gateway.bodies import CompletionBody, ResponsesBody, parse
from lengthwise.gateway.config import GatewayConfig, TenantConfig
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.endpoint import Endpoint, outcome_of, outcome_of_error
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError, from_engine
from lengthwise.gateway.json_fields import LARGE_BODY, edited
from lengthwise.gateway.metrics import Metrics
from lengthwise.gateway.model_names import MODEL_HEADER, ModelNames
from lengthwise.gateway.recent_requests import RecentRequests
from lengthwise.gateway.request_rows import request_row
from lengthwise.gateway.retries import RETRIED_STATUSES, Retries, retry_after_s
from lengthwise.gateway.stored_responses import ResponseOwners
from lengthwise.gateway.streaming import BodyBudget, Caller, relay
from lengthwise.gateway.tenants import Lease
from lengthwise.gateway.types import Call
from lengthwise.gateway.usage import ResponsesMeter
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Job
from lengthwise.predictors.service import PredictionService
from lengthwise.traffic.log import TrafficLog
from lengthwise.traffic.rows import RequestOutcome

if TYPE_CHECKING:
    from lengthwise.gateway.tracing import Tracing  # needs an extra


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
        owners: ResponseOwners,
        retries: Retries,
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
        self._owners = owners
        self._retries = retries
        self._calls = calls
        self._recent = recent
        self._traffic = traffic
        self._tracing = tracing
        self._first_byte = metrics.first_byte_seconds.labels(path)

    async def _serve(
        self, scope: Scope, raw: bytes, caller: Caller, lease: Lease, request_id: bytes, began: float
    ) -> RequestOutcome:
        await next_stage()
        read = partial(self._read, raw, began, caller, lease.tenant)
        body, job, raw = read() if len(raw) < LARGE_BODY else await asyncio.to_thread(read)
        await next_stage()
        if (model := self._names.resolve(body.model)) != body.model and model is not None:
            renamed = model
            raw = await edited(raw, lambda raw: body.rename(raw, renamed))
            job.llm = model
            caller.extra_headers.append((MODEL_HEADER, model.encode()))
        if job.deadline == math.inf and (target_s := self._names.slo_s(body.model)) is not None:
            job.deadline = job.arrival + target_s
        self._dispatcher.refuse(body.model)  # before a prediction is made for it
        pinned = None
        if isinstance(body, ResponsesBody) and body.previous_response_id is not None:
            pinned = await self._owner(body.previous_response_id, body.model, caller, lease.tenant.name)
        learns = self._predictions.predicts or self._predictions.memory is not None or self._traffic is not None
        counts = learns or lease.tenant.tokens_per_minute is not None
        hide_usage = self._config.stream_usage and counts and body.lacks_usage
        if hide_usage:
            raw = body.with_usage(raw)
        meter = self._model.meter(hide_usage=hide_usage)
        history = self._admit(job, body, caller)
        call = Call(job, body, raw, caller, request_id, meter, history, tenant=lease.tenant.name, pinned=pinned)
        self._predict(call)
        self._calls[job.id] = call
        if self._tracing is not None:
            call.span = self._tracing.start(self._path, call)
        try:
            _charge(lease, call)
            call.outcome = await self._hold_and_run(call)
        except ApiError as error:
            call.failed = True
            call.outcome = outcome_of_error(error)
            raise
        finally:
            self._end(call, lease)
        return call.outcome

    def _end(self, call: Call, lease: Lease) -> None:
        """Settle the tenant's account, log the request, and learn from it."""
        job, body = call.job, call.body
        del self._calls[job.id]
        self._recent.add(call)
        if self._tracing is not None and call.span is not None:
            self._tracing.end(call.span, call)
        used = _used_tokens(call)
        lease.settle(used)
        if call.caller.logged:
            _log_call(call, self._dispatcher.clock())
        if job.started is not None:
            self._metrics.predicted(call.source)
        if self._traffic is not None and (trace := self._predictions.trace(job.id)) is not None:
            now, policy, kept = self._dispatcher.clock(), self._dispatcher.policy.name, self._config.keep_prompts
            self._traffic.add(request_row(call, trace, now, policy=policy, keep_prompt=kept))
        tokens, cut = (call.meter.length if body.one_answer else None) or (None, False)
        self._predictions.ended(job.id, tokens, censored=cut)
        job.used_tokens = None if body.one_answer else used or None
        if tokens is not None or job.started is None or job.used_tokens is not None:
            self._dispatcher.finished(job, tokens or 0)

    def _read(
        self, raw: bytes, began: float, caller: Caller, tenant: TenantConfig
    ) -> tuple[CompletionBody, Job, bytes]:
        body = parse(self._model, raw)
        if not (tenant.may_set_priority and tenant.may_declare_length):
            raw = body.restrict(raw, priority=tenant.may_set_priority, lengths=tenant.may_declare_length)
        job = body.job(str(next(_job_numbers)), began, caller.headers)
        if self._config.keys is not None:
            job.tenant = tenant.name
        if body.priority is None:
            job.priority = tenant.priority
        return body, job, raw

    async def _owner(self, response_id: str, model: str | None, caller: Caller, tenant: str) -> GatewayEngine | None:
        """Return the engine that stores an answer, if it serves the model; ApiError 404 if it is another tenant's."""
        engines = [e for e in self._dispatcher.engines if e.up and not e.leaving and e.serves(model)]
        if len(engines) < 2:  # no choice; only the tenant is checked
            self._owners.find(response_id, tenant)
            return None
        owner = await self._owners.locate(response_id, tenant, engines, caller.forwarded_headers())
        return owner if owner is not None and owner.serves(model) else None

    def _admit(self, job: Job, body: CompletionBody, caller: Caller) -> LengthDistribution | None:
        """Return the prediction from the LLM's history."""
        scopes = None
        if self._predictions.memory is not None or self._traffic is not None:
            scopes = body.scopes(job, caller.headers)
            if self._traffic is not None:
                scopes = self._traffic.keyed(scopes)
        return self._predictions.admit(job.id, body.llm, job.max_tokens, scopes)

    def _predict(self, call: Call) -> None:
        """Use the client's hint, else the predictor if it can be asked, else the LLM's history."""
        body, job = call.body, call.job
        call.hinted = job.prediction is not None
        if call.hinted:
            return
        used = self._dispatcher.uses_predictions or self._config.observe
        if used and body.readable and self._predictions.predicts:
            call.question = partial(body.prediction_input, call.tenant)
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

    async def _hold_and_run(self, call: Call) -> RequestOutcome:
        self._retries.on_request()
        await next_stage()
        while True:
            engine = self._place_now(call) or await self._place(call)
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
        if call.question is not None:
            self._predictions.ask_to_learn(call.job.id, call.question)
            call.question = None
        return engine

    def _retry_in_s(self, engine: GatewayEngine, call: Call, error: EngineError) -> float | None:
        """Return the seconds to wait before the request is sent again; None if it is not."""
        if isinstance(error, EngineUnreachableError):
            # The engine has not received the request and is down: back to the queue, until one is up.
            held_s = self._dispatcher.clock() - call.job.arrival
            return 0.0 if held_s < self._config.hold_timeout_s else None
        if isinstance(error, EngineBrokenError) and not call.refused_by:  # once: it may be what breaks the engine
            wait_s = self._retries.wait_s(0)
        else:
            wait_s = error.wait_s if isinstance(error, _RefusedError) else None
        call.refused_by.append(engine)
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
        if answer.is_stream and answer.status < 400 and not call.meter.done:
            self._metrics.failed(engine, "unfinished")
            return "broken_stream"
        call.failed = answer.status >= 400
        return outcome_of(answer.status)

    def _edit_for(self, engine: GatewayEngine, call: Call) -> Callable[[bytes], bytes] | None:
        """Return the edit that adds what the engine's scheduler can use to the body, if any."""
        body, job = call.body, call.job
        if self._config.observe:
            return None
        if engine.identity.kind == "lengthwise":
            # A prediction that has not arrived is not waited for: the engine then predicts.
            forward, now = call.source == "predictor", self._dispatcher.clock()
            return lambda raw: body.for_engine(raw, job, now, prediction=forward)
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
        answer = await engine.client.forward("POST", path, raw, headers, self._first_byte_s(engine, call))

        def began() -> None:
            answer.lift_limit()
            self._dispatcher.on_answer(engine, failed=answer.status >= 500)
            now, started = self._dispatcher.clock(), call.job.started
            call.first_byte_s = now - call.job.arrival
            self._first_byte.observe(call.first_byte_s)
            if answer.is_stream and started is not None:  # an answer in one piece arrives with its last token
                self._dispatcher.on_first_byte(engine, call.job)
                call.ttft_s = now - started

        try:
            if answer.status == 429:
                self._dispatcher.pause(engine, retry_after_s(answer.header("retry-after")))
            if answer.status in RETRIED_STATUSES:
                avoid = [*call.refused_by, engine]
                another = call.pinned is None and self._dispatcher.another_up(call.job.llm, avoid)
                asked_s = None if another else retry_after_s(answer.header("retry-after"))
                wait_s = self._retries.wait_s(len(call.refused_by), asked_s)
                if wait_s is not None:
                    raise _RefusedError(engine, answer.status, wait_s)
            await relay(answer, call.caller, call.request_id, call.meter, began)
        finally:
            answer.close()
            if isinstance(call.meter, ResponsesMeter) and call.meter.response_id is not None:
                self._owners.add(call.meter.response_id, engine, call.tenant)
        return answer


def _charge(lease: Lease, call: Call) -> None:
    """Charge the predicted tokens to a tenant whose tokens are limited."""
    if lease.tenant.tokens_per_minute is not None:
        job, history = call.job, call.history
        expected = job.expected if job.prediction or history is None else history.mean()
        lease.charge(job.prompt_tokens + round(expected))


def _used_tokens(call: Call) -> int | None:
    """Return the tokens of prompt and answer; None if it has run and the engine did not report them."""
    tokens, prompt = call.meter.tokens, call.meter.prompt_tokens
    if tokens is not None:
        return tokens + (call.job.prompt_tokens if prompt is None else prompt)
    return 0 if call.failed or call.job.started is None else None


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
