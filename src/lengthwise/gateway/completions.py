"""The path of a request through the gateway: validated, queued, sent to an engine, its answer passed back."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from lengthwise.engines.client import (
    EngineAnswer,
    EngineBrokenError,
    EngineError,
    EngineTimeoutError,
    EngineUnreachableError,
)
from lengthwise.gateway.bodies import CompletionBody, parse
from lengthwise.gateway.config import GatewayConfig, TenantConfig
from lengthwise.gateway.dispatch import Dispatcher, GatewayEngine
from lengthwise.gateway.errors import ApiError, error_format, from_engine
from lengthwise.gateway.forwarding import ResponseOwners
from lengthwise.gateway.model_names import MODEL_HEADER, ModelNames
from lengthwise.gateway.streaming import BodyBudget, Caller, ClientGoneError, Measure, relay
from lengthwise.gateway.tenants import Lease, lease_of
from lengthwise.gateway.usage import ResponsesMeasure
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Job
from lengthwise.predictors.service import PredictionService

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from lengthwise.gateway.metrics import Metrics, Outcome, Source

_LARGE_BODY: Final = 1 << 20  # a larger one is read in a thread
_job_numbers: Final = itertools.count()  # a client's request id need not be unique, a job's must be


@dataclass(slots=True)
class _Call:
    """One request and its answer."""

    job: Job
    body: CompletionBody
    raw: bytes
    caller: Caller
    request_id: bytes
    measure: Measure
    history: LengthDistribution | None
    """The prediction from the LLM's history at its arrival."""
    ttft_s: float | None = None
    """Seconds from its slot on an engine to the first token; None if unknown."""
    failed: bool = False
    """Whether it ended in an error that is not its client's disconnect."""

    @property
    def source(self) -> Source:
        """The source of its prediction."""
        if self.body.hint is not None:
            return "hint"
        if self.job.prediction is None:
            return "prior"
        return "history" if self.job.prediction is self.history else "predictor"


class Completions:
    """The ASGI application of one completion endpoint."""

    def __init__(
        self,
        path: str,
        model: type[CompletionBody],
        config: GatewayConfig,
        dispatcher: Dispatcher,
        predictions: PredictionService,
        metrics: Metrics,
        budget: BodyBudget,
        names: ModelNames,
        owners: ResponseOwners,
    ) -> None:
        self._path = path
        self._error_format = error_format(path)
        self._model = model
        self._budget = budget
        self._names = names
        self._owners = owners
        self._config = config
        self._dispatcher = dispatcher
        self._predictions = predictions
        self._metrics = metrics
        self._first_byte = metrics.first_byte_seconds.labels(path)
        self._whole = metrics.request_seconds.labels(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count its outcome."""
        began = self._dispatcher.clock()
        lease = lease_of(scope)
        caller = Caller(scope, receive, send, lease)
        caller.error_format = self._error_format
        request_id = caller.headers.get(b"x-request-id") or uuid.uuid4().hex.encode()
        outcome: Outcome = "bug"
        try:
            raw = await caller.body(min(self._config.max_body_bytes, self._config.max_held_bytes), self._budget)
            async with caller.present():
                outcome = await self._serve(raw, caller, lease, request_id, began)
        except ApiError as error:
            outcome = error.outcome
            await caller.fail(error, request_id)
        except ClientGoneError:
            outcome = "cancelled"
        except asyncio.CancelledError:  # the gateway stops, and the time to finish is over
            outcome = "cancelled"
            await caller.end_with(ApiError(503, "the gateway is shutting down", code="shutting_down"), request_id)
        finally:
            self._budget.free += caller.held_bytes
            self._metrics.requests.labels(self._path, outcome).inc()
            self._whole.observe(self._dispatcher.clock() - began)

    async def _serve(self, raw: bytes, caller: Caller, lease: Lease, request_id: bytes, began: float) -> Outcome:
        read = partial(self._read, raw, began, caller, lease.tenant)
        body, job = read() if len(raw) < _LARGE_BODY else await asyncio.to_thread(read)
        if (model := self._names.resolve(body.model)) != body.model and model is not None:
            raw = body.rename(raw, model)
            job.llm = model
            caller.extra_headers.append((MODEL_HEADER, model.encode()))
        self._dispatcher.refuse(body.model)  # before a prediction is made for it
        counts = self._predictions.predicts or lease.tenant.tokens_per_minute is not None
        hide_usage = self._config.stream_usage and counts and body.lacks_usage
        if hide_usage:
            raw = body.with_usage(raw)
        measure = self._model.measure(hide_usage=hide_usage)
        call = _Call(job, body, raw, caller, request_id, measure, self._predict(job, body))
        try:
            lease.charge(job.prompt_tokens + round(job.expected))
            return await self._hold_and_run(call)
        except ApiError:
            call.failed = True
            raise
        finally:
            lease.settle(_used_tokens(call))
            if job.started is not None:
                self._metrics.predictions.labels(call.source).inc()
            tokens, cut = (measure.length if body.one_answer else None) or (None, False)
            self._predictions.ended(job.id, tokens, censored=cut)
            if tokens is not None or job.started is None:
                self._dispatcher.finished(job, tokens or 0)

    def _read(self, raw: bytes, began: float, caller: Caller, tenant: TenantConfig) -> tuple[CompletionBody, Job]:
        body = parse(self._model, raw)
        job = body.job(str(next(_job_numbers)), began, caller.headers)
        if self._config.keys is not None:
            job.tenant = tenant.name
        if body.priority is None or not tenant.may_set_priority:
            job.priority = tenant.priority
        return body, job

    def _predict(self, job: Job, body: CompletionBody) -> LengthDistribution | None:
        """Use the client's hint, else ask for a prediction, else use the LLM's history, which is returned."""
        history = self._predictions.admit(job.id, body.llm, body.limit)
        asks = job.prediction is None and body.readable and self._dispatcher.uses_predictions
        if not (asks and self._predictions.ask(job.id, body.prediction_input)) and job.prediction is None:
            job.update_prediction(history)
        return history

    async def _hold_and_run(self, call: _Call) -> Outcome:
        job = call.job
        while True:
            engine = await self._dispatcher.place(job)
            self._metrics.queue_seconds.observe(self._dispatcher.clock() - job.arrival)
            try:
                return await self._run(engine, call)
            except EngineUnreachableError as error:
                # The engine has not received the request: back to the queue, for another engine or until this one
                # returns.
                if self._dispatcher.clock() - job.arrival >= self._config.hold_timeout_s:
                    raise from_engine(error) from error
            except EngineError as error:
                if not call.caller.answered:
                    raise from_engine(error) from error
                return "broken_stream"
            finally:
                tokens, _ = call.measure.length or (0, True)
                self._dispatcher.release(engine, job, tokens, call.ttft_s)

    async def _run(self, engine: GatewayEngine, call: _Call) -> Outcome:
        """Send the request to an engine and pass its answer on; mark the engine as down if the connection fails."""
        try:
            # A prediction that has not arrived is not waited for: the engine then predicts.
            forward = self._config.forward_predictions and call.source == "predictor"
            now, hint = self._dispatcher.clock(), self._config.forward_hints
            raw = call.body.for_engine(call.raw, call.job, now, hint=hint, prediction=forward)
            limit_s = self._config.first_byte_timeout_s if call.body.stream else None
            async with asyncio.timeout(limit_s) as first_byte:
                answer = await self._exchange(engine, call, raw, first_byte)
        except TimeoutError as error:
            self._failed(engine, late := EngineTimeoutError(f"{engine.name} sent nothing for too long"))
            raise late from error
        except EngineError as error:
            self._failed(engine, error)
            raise
        if answer.is_stream and answer.status < 400 and not call.measure.done:
            self._metrics.failed(engine, "unfinished")
            return "broken_stream"
        call.failed = answer.status >= 400
        return _answered(answer)

    def _failed(self, engine: GatewayEngine, error: EngineError) -> None:
        self._metrics.failed(engine, error.kind)
        # A silent engine may be busy: the health check decides. A lost connection marks it as down until the next
        # health check.
        if isinstance(error, (EngineUnreachableError, EngineBrokenError)):
            self._dispatcher.set_down(engine, error)
        if not isinstance(error, EngineUnreachableError):
            self._dispatcher.on_answer(engine, failed=True)

    async def _exchange(
        self, engine: GatewayEngine, call: _Call, raw: bytes, first_byte: asyncio.Timeout
    ) -> EngineAnswer:
        path, headers = self._path + call.caller.query, call.caller.forwarded_headers(call.request_id)
        answer = await engine.client.forward("POST", path, raw, headers)

        def began() -> None:
            first_byte.reschedule(None)
            self._dispatcher.on_answer(engine, failed=answer.status >= 500)
            now, started = self._dispatcher.clock(), call.job.started
            self._first_byte.observe(now - call.job.arrival)
            self._dispatcher.on_first_byte(engine, call.job)
            if answer.is_stream and started is not None:  # an answer in one piece arrives with its last token
                call.ttft_s = now - started

        try:
            await relay(answer, call.caller, call.request_id, call.measure, began)
        finally:
            answer.close()
        if isinstance(call.measure, ResponsesMeasure) and call.measure.response_id is not None:
            self._owners.add(call.measure.response_id, engine)
        return answer


def _used_tokens(call: _Call) -> int | None:
    """Return the tokens of prompt and answer; None if it has run and the engine did not report them."""
    tokens, prompt = call.measure.tokens, call.measure.prompt_tokens
    if tokens is not None:
        return tokens + (call.job.prompt_tokens if prompt is None else prompt)
    return 0 if call.failed or call.job.started is None else None


def _answered(answer: EngineAnswer) -> Outcome:
    if answer.status < 400:
        return "ok"
    return "client_error" if answer.status < 500 else "engine_error"
