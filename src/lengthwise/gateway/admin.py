"""The gateway's own paths, under /lengthwise/v1: predictions, policy, queue and engines, and why a request waits."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lengthwise.client.client import without_credentials
from lengthwise.errors import InputError
from lengthwise.gateway.audit_log import note
from lengthwise.gateway.bodies import (
    ChatBody,
    CompletionBody,
    MessagesBody,
    ResponsesBody,
    parse,
    read_body,
    read_model,
)
from lengthwise.gateway.config import EngineConfig, GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.fleet import EngineFleet
from lengthwise.gateway.json_fields import LARGE_BODY
from lengthwise.gateway.metrics import Metrics
from lengthwise.gateway.streaming import BodyBudget
from lengthwise.gateway.tenants import lease_of
from lengthwise.gateway.types import PREFIX, Call
from lengthwise.lengths import LengthDistribution, wide_prior
from lengthwise.policies import Job, make_policy
from lengthwise.predictors.service import PredictionService
from lengthwise.traffic.rows import PredictionSource

_MAX_SPEC: Final = 1000  # characters of a policy: wrappers around wrappers would exceed the stack
_MAX_PREDICTED_BYTES: Final = 1 << 20
_MAX_LISTED: Final = 10_000
_PREDICT_S: Final = 10.0
_QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)

_log = logging.getLogger(__name__)


class _Fields(CompletionBody):
    messages: Any = None
    system: Any = None
    input: Any = None


_NUMBER: Final = "number:"
"""Begins the path of a request by its number in the dashboard's events, in place of its id."""


class Admin:
    """The handlers of these paths; the gate decides which requests reach them. No answer holds a prompt's text."""

    def __init__(
        self,
        config: GatewayConfig,
        dispatcher: Dispatcher,
        predictions: PredictionService,
        metrics: Metrics,
        fleet: EngineFleet,
        calls: Mapping[str, Call],
        budget: BodyBudget,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._predictions = predictions
        self._metrics = metrics
        self._fleet = fleet
        self._calls = calls
        self._budget = budget

    def use(self, config: GatewayConfig) -> None:
        """Use these settings from now on."""
        self._config = config

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(f"{PREFIX}/policy", self.policy, methods=["GET", "POST", "PUT"]),
            Route(f"{PREFIX}/engines", self.engines, methods=["GET", "POST"]),
            Route(f"{PREFIX}/engines/{{name}}", self.remove_engine, methods=["DELETE"]),
            Route(f"{PREFIX}/queue", self.queue),
            Route(f"{PREFIX}/explain/{{request_id:path}}", self.explain),
            Route(f"{PREFIX}/predict", self.predict, methods=["POST"]),
        ]

    async def engines(self, request: Request) -> Response:
        """List the engines; POST adds one."""
        if request.method != "POST":
            return JSONResponse({"engines": [_described(engine) for engine in self._dispatcher.engines]})
        wanted = await read_model(request, EngineConfig, code="invalid_engine")
        note(request.scope, engine=wanted.name, url=without_credentials(wanted.url))
        if not self._config.may_join(wanted):
            raise ApiError(
                403,
                "engines may not join from that host; `engine_hosts` allows it",
                param="url",
                code="host_not_allowed",
            )
        try:
            engine = await self._fleet.add(wanted)
        except InputError as error:
            raise ApiError(400, str(error), code="invalid_engine") from error
        return JSONResponse(_described(engine), 201)

    async def remove_engine(self, request: Request) -> Response:
        """Let an engine leave; its running requests finish."""
        name = request.path_params["name"]
        note(request.scope, engine=name)
        try:
            self._fleet.remove(name)
        except KeyError as error:
            raise ApiError(404, f"no engine has the name '{name[:100]}'", param="name", code="not_found") from error
        return JSONResponse({"name": name, "leaving": True}, 202)

    async def queue(self, request: Request) -> Response:
        """List the waiting requests of each queue, the next to run first; at most `limit` (100) of each."""
        try:
            limit = min(max(0, int(request.query_params.get("limit", "100"))), _MAX_LISTED)
        except ValueError as error:
            raise ApiError(400, "limit: give a number of requests", param="limit", code="invalid_value") from error
        queues = [
            {
                "engines": [engine.name for engine in engines],
                "waiting": len(queue),
                "running": queue.running,
                "slots": queue.slots,
                "requests": [self._waiting(job) for job in queue.first(limit)],
            }
            for engines, queue in self._dispatcher.queues
        ]
        return JSONResponse({"waiting": self._dispatcher.waiting, "queues": queues})

    async def explain(self, request: Request) -> Response:
        """Return why an open request is where it is: the numbers behind its place and its engine."""
        wanted = request.path_params["request_id"]
        number = wanted.removeprefix(_NUMBER) if wanted.startswith(_NUMBER) else None
        calls = [
            call
            for call in self._calls.values()
            if call.request_id.decode("latin-1") == wanted or (number is not None and call.job.id == number)
        ]
        if not calls:
            message = f"no request '{wanted[:100]}' is waiting or running"
            raise ApiError(404, message, param="request_id", code="not_found")
        return JSONResponse({"requests": [self._explained(call) for call in calls]})  # clients may repeat an id

    async def predict(self, request: Request) -> Response:
        """Return the predicted length of the answer to a body of any of the queued APIs, without running it."""
        tenant, headers = lease_of(request.scope).tenant.name, dict(request.scope["headers"])
        raw = await read_body(request, min(self._config.max_body_bytes, _MAX_PREDICTED_BYTES))
        read = partial(_read_request, raw, headers)
        body, job = read() if len(raw) < LARGE_BODY else await self._budget.read(tenant, read)
        del read, raw
        if self._config.keys is not None:
            job.tenant = tenant
        source, prediction = await self._predicted(body, job, headers, tenant)
        return JSONResponse({"model": body.model, "source": source, **_numbers(prediction.censored_at(body.limit))})

    async def _predicted(
        self, body: CompletionBody, job: Job, headers: Mapping[bytes, bytes], tenant: str
    ) -> tuple[PredictionSource, LengthDistribution]:
        if (hint := body.prediction()) is not None:
            return "hint", hint
        try:
            future = self._predictions.predict(body.prediction_input(job, headers)) if body.readable else None
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ApiError(400, "messages, input or tools are not in the API's format", code="invalid_value") from error
        if future is not None:
            try:
                return "predictor", await asyncio.wait_for(asyncio.wrap_future(future), _PREDICT_S)
            except Exception as error:  # the predictor may come from another package: history is used in its place
                _log.warning("a prediction failed: %.300r", error)
        history = self._predictions.from_history(body.llm, body.limit, tenant)
        return ("prior", wide_prior()) if history is None else ("history", history)

    def _waiting(self, job: Job) -> dict[str, Any]:
        call = self._calls.get(job.id)
        return {
            "request_id": None if call is None else call.request_id.decode("latin-1"),
            "model": job.llm,
            "tenant": job.tenant,
            "priority": job.priority,
            "waited_s": round(self._dispatcher.clock() - job.arrival, 3),
            "prompt_tokens": job.prompt_tokens,
            "max_tokens": job.max_tokens,
            "prediction": {"source": None if call is None else call.source, **_numbers(_prediction(job))},
        }

    def _explained(self, call: Call) -> dict[str, Any]:
        job, now, policy = call.job, self._dispatcher.clock(), self._dispatcher.policy
        found: dict[str, Any] = {"state": "arriving", **self._waiting(job)}
        found["policy"] = {"name": policy.name, "formula": inspect.getdoc(type(policy))}
        for engines, queue in self._dispatcher.queues:
            if job.id in queue:
                found["state"] = "waiting"
                found["position"] = next(place for place, other in enumerate(queue, start=1) if other is job)
                found["policy"] |= {"key": queue.key_of(job.id), "round": job.round_number, "terms": _terms(job, now)}
                found["queue"] = {**asdict(queue.view), "tokens_per_s": round(queue.tokens_per_s, 3)}
                found["engines"] = [_described(engine) for engine in engines]
        for engine in self._dispatcher.engines:
            if job.id in engine.jobs:
                routes = self._dispatcher.routes
                found |= {"state": "running", "engine": engine.name}
                found["router"] = {"name": routes.name, "terms": dict(routes.terms.get(job.id, {}))}
        return found

    async def policy(self, request: Request) -> Response:
        """Return the policy; POST or PUT changes it, for waiting requests too."""
        if request.method in ("POST", "PUT"):
            await self._change_policy(request)
        return JSONResponse({"policy": self._dispatcher.policy.name})

    async def _change_policy(self, request: Request) -> None:
        try:
            name = json.loads(await read_body(request))["policy"]
            note(request.scope, policy=str(name), before=self._dispatcher.policy.name)
            policy = make_policy(str(name)[:_MAX_SPEC], imports=False)
        except InputError as error:
            raise ApiError(400, str(error), param="policy", code="unknown_policy") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(400, 'send {"policy": NAME}', param="policy", code="invalid_value") from error
        self._dispatcher.use(policy)
        self._metrics.policy_changes.inc()


def _described(engine: GatewayEngine) -> dict[str, Any]:
    return {
        "name": engine.name,
        "kind": engine.identity.kind,
        "description": engine.identity.description,
        "up": engine.up,
        "leaving": engine.leaving,
        "breaker": engine.breaker.state,
        "running": engine.in_flight,
        "in_flight": engine.slots,
        "models": None if engine.models is None else sorted(engine.models),
    }


def _read_request(raw: bytes, headers: Mapping[bytes, bytes]) -> tuple[CompletionBody, Job]:
    """Return a body of any of the queued APIs, and its job."""
    body = parse(_api_of(raw), raw)
    try:
        job = body.job("", 0.0, headers, limits=False)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ApiError(400, "messages, input or tools are not in the API's format", code="invalid_value") from error
    return body, job


def _api_of(raw: bytes) -> type[CompletionBody]:
    """Return the kind of a body by its fields; `input` is that of /v1/responses, `system` that of /v1/messages."""
    fields = parse(_Fields, raw).model_fields_set
    if "messages" in fields:
        return MessagesBody if "system" in fields else ChatBody
    return ResponsesBody if "input" in fields else CompletionBody


def _prediction(job: Job) -> LengthDistribution:
    return (job.prediction or wide_prior()).censored_at(job.max_tokens)


def _numbers(prediction: LengthDistribution) -> dict[str, Any]:
    """Return a prediction as numbers, in tokens."""
    return {  # an answer has a token at least
        "median": round(max(1.0, prediction.quantile(0.5)), 1),
        "mean": round(max(1.0, prediction.mean()), 1),
        "quantiles": {str(q): round(max(1.0, prediction.quantile(q)), 1) for q in _QUANTILES},
        "cap": prediction.cap,
    }


def _terms(job: Job, now: float) -> dict[str, float]:
    """Return the numbers of a job that policies' formulas use; lengths in tokens, times in seconds."""
    terms = {
        "median": job.median,
        "expected": job.expected,
        "tail": job.tail,
        "mu": job.mu,
        "sigma": job.sigma,
        "waited_s": now - job.arrival,
        "prompt_tokens": job.prompt_tokens,
        "cached_tokens": job.cached_tokens,
    }
    terms |= {f"{name.removesuffix('_s')}_left_s": left for name, left in job.limits_left(now).items()}
    return {name: round(float(value), 4) for name, value in terms.items()}
