"""A request's way through the gateway: checked, held, handed to an engine, its answer passed back."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import TYPE_CHECKING, Final

from lengthwise.engines.client import EngineBrokenError, EngineError, EngineUnreachableError
from lengthwise.gateway.admission import CompletionBody, parse
from lengthwise.gateway.errors import ApiError, from_engine
from lengthwise.gateway.streaming import Caller, ClientGoneError, relay

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from lengthwise.engines.client import EngineAnswer
    from lengthwise.gateway.config import GatewayConfig
    from lengthwise.gateway.dispatch import Dispatcher, Engine
    from lengthwise.gateway.metrics import Metrics, Outcome

_job_numbers: Final = itertools.count()  # a client's request id may come twice, a job's may not


class Completions:
    """The ASGI application of one completion endpoint."""

    def __init__(
        self,
        path: str,
        model: type[CompletionBody],
        config: GatewayConfig,
        dispatcher: Dispatcher,
        metrics: Metrics,
    ) -> None:
        self._path = path
        self._model = model
        self._config = config
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._first_byte = metrics.first_byte_seconds.labels(path)
        self._whole = metrics.request_seconds.labels(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and count how it ended."""
        began = self._dispatcher.clock()
        caller = Caller(scope, receive, send)
        request_id = caller.headers.get(b"x-request-id") or uuid.uuid4().hex.encode()
        outcome: Outcome = "bug"
        try:
            raw = await caller.body(self._config.max_body_bytes)
            async with caller.present():
                outcome = await self._serve(raw, caller, request_id, began)
        except ApiError as error:
            outcome = _outcome(error)
            await caller.fail(error, request_id)
        except ClientGoneError:
            outcome = "cancelled"
        except asyncio.CancelledError:  # the gateway stops, and will wait no longer
            outcome = "cancelled"
            raise
        finally:
            self._metrics.requests.labels(self._path, outcome).inc()
            self._whole.observe(self._dispatcher.clock() - began)

    async def _serve(self, raw: bytes, caller: Caller, request_id: bytes, began: float) -> Outcome:
        body = parse(self._model, raw)
        job = body.job(str(next(_job_numbers)), began, caller.headers)
        self._metrics.beliefs.labels("none" if job.belief is None else "hint").inc()
        if self._config.forward_hints:
            raw = body.forwarded(raw, job)
        while True:
            engine = await self._dispatcher.place(job)
            self._metrics.queue_seconds.observe(self._dispatcher.clock() - began)
            try:
                return await self._run(engine, raw, caller, request_id, began)
            except EngineUnreachableError as error:
                # It has seen nothing of the request: back to the queue, for another engine or its return.
                if self._dispatcher.clock() - began >= self._config.hold_timeout_s:
                    raise from_engine(error) from error
            except EngineError as error:
                if not caller.answered:
                    raise from_engine(error) from error
                return "broken_stream"
            finally:
                self._dispatcher.release(engine)

    async def _run(self, engine: Engine, raw: bytes, caller: Caller, request_id: bytes, began: float) -> Outcome:
        """Have the request answered by this engine, and note what that says about the engine."""
        headers = caller.forwarded_headers(request_id.decode("latin-1"))
        try:
            answer = await engine.client.post(self._path, raw, headers)
            try:
                await relay(
                    answer,
                    caller,
                    request_id,
                    lambda: self._first_byte.observe(self._dispatcher.clock() - began),
                )
            finally:
                answer.close()
        except EngineError as error:
            self._metrics.failed(engine, error.kind)
            # A silent engine may only be busy; the health check tells. A lost connection leaves no doubt
            # for now, and the health check will take it back if it is wrong.
            if isinstance(error, (EngineUnreachableError, EngineBrokenError)):
                self._dispatcher.set_down(engine, error)
            raise
        return _answered(answer)


def _answered(answer: EngineAnswer) -> Outcome:
    if answer.status < 400:
        return "ok"
    return "client_error" if answer.status < 500 else "engine_error"


def _outcome(error: ApiError) -> Outcome:
    if error.status in (429, 503):
        return "refused"
    return "client_error" if error.status < 500 else "engine_error"
