"""The gateway as an ASGI application: its routes and its lifespan."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lengthwise.engines.client import EngineError
from lengthwise.errors import InputError
from lengthwise.gateway.bodies import BODIES
from lengthwise.gateway.completions import Completions
from lengthwise.gateway.config import EngineConfig, GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher, GatewayEngine
from lengthwise.gateway.errors import (
    ApiError,
    api_error_response,
    from_engine,
    http_exception_response,
    internal_error_response,
)
from lengthwise.gateway.fleet import Fleet
from lengthwise.gateway.metrics import Metrics
from lengthwise.gateway.routing import RouterAdapter, warm_router
from lengthwise.gateway.streaming import BodyBudget
from lengthwise.policies import make_policy
from lengthwise.predictors.service import prediction_service

if TYPE_CHECKING:
    from starlette.requests import Request

_PROXIED: Final = frozenset({"forwarded", "via", "x-real-ip", "origin"})
"""Headers of requests that came through a proxy or from a web page."""

_MOST_ADMIN_BYTES: Final = 64 << 10
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def create_app(config: GatewayConfig) -> Starlette:
    """Return the gateway as an ASGI application; it connects to its engines when its lifespan starts."""
    gateway = _Gateway(config)
    return Starlette(
        routes=gateway.routes(),
        lifespan=gateway.lifespan,
        exception_handlers={
            ApiError: api_error_response,
            HTTPException: http_exception_response,
            Exception: internal_error_response,
        },
    )


class _Gateway:
    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._predictions = prediction_service(config.predictor)
        routes = RouterAdapter(None if config.chosen_router is None else warm_router(config.chosen_router))
        self._dispatcher = Dispatcher(
            make_policy(config.policy),
            self._predictions,
            routes,
            max_waiting=config.max_waiting,
            admission_quantile=config.admission_quantile,
            breaker_failures=config.breaker_failures,
            breaker_s=config.breaker_s,
            health_failures=config.health_failures,
            health_successes=config.health_successes,
        )
        self._metrics = Metrics(self._dispatcher, config.predictor, self._predictions)

    def routes(self) -> list[Route]:
        budget = BodyBudget(self._config.max_held_bytes)
        shared = (self._config, self._dispatcher, self._predictions, self._metrics, budget)
        return [
            *(Route(path, Completions(path, model, *shared), methods=["POST"]) for path, model in BODIES.items()),
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/lengthwise/policy", self.policy, methods=["GET", "POST"]),
            Route("/lengthwise/v1/engines", self.engines, methods=["GET", "POST"]),
            Route("/lengthwise/v1/engines/{name}", self.remove_engine, methods=["DELETE"]),
        ]

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with Fleet(self._config, self._dispatcher, self._metrics) as self._fleet:
            if self._dispatcher.uses_predictions:
                self._predictions.warm()
            try:
                yield
            finally:
                self._predictions.close()

    async def models(self, request: Request) -> Response:
        """List the models of all engines, each name once."""
        up = [engine for engine in self._dispatcher.engines if engine.up]
        if not up:
            raise ApiError(503, "no engine is up", code="no_engine")
        passed = {k: v for k, v in request.headers.items() if k in ("authorization", "x-request-id")}
        answers = await asyncio.gather(*(engine.client.models(passed) for engine in up), return_exceptions=True)
        merged: dict[str, dict[str, Any]] = {}
        failure: BaseException | None = None
        for answer in answers:
            if isinstance(answer, BaseException):
                failure = answer
            else:
                merged |= {str(model["id"]): model for model in answer if model["id"] not in merged}
        if failure is not None and not merged:
            raise from_engine(failure) if isinstance(failure, EngineError) else failure
        return JSONResponse({"object": "list", "data": list(merged.values())})

    async def health(self, _: Request) -> Response:
        """Return 200 while at least one engine is up."""
        up = any(engine.up for engine in self._dispatcher.engines)
        body = {
            "status": "ok" if up else "no engine is up",
            "engines": [{"name": e.name, "up": e.up, "running": e.in_flight} for e in self._dispatcher.engines],
            "waiting": self._dispatcher.waiting,
            "policy": self._dispatcher.policy.name,
            "router": self._dispatcher.routes.name,
            "predictor": self._config.predictor,
            "predictions_from": "predictor" if self._predictions.works else "history",
        }
        return JSONResponse(body, 200 if up else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.exposition(), media_type=_METRICS_TYPE)

    async def engines(self, request: Request) -> Response:
        """List the engines; POST adds one."""
        if request.method == "GET":
            return JSONResponse({"engines": [_described(engine) for engine in self._dispatcher.engines]})
        self._only_admin(request)
        try:
            wanted = EngineConfig.model_validate_json(await _small_body(request))
            engine = await self._fleet.add(wanted)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))
            raise ApiError(400, f"{field}: {first['msg']}", param=field, code="invalid_engine") from error
        except InputError as error:
            raise ApiError(400, str(error), code="invalid_engine") from error
        return JSONResponse(_described(engine), 201)

    async def remove_engine(self, request: Request) -> Response:
        """Let an engine leave; its running requests finish."""
        self._only_admin(request)
        name = request.path_params["name"]
        try:
            self._fleet.remove(name)
        except KeyError as error:
            raise ApiError(404, f"no engine has the name '{name[:100]}'", param="name", code="not_found") from error
        return JSONResponse({"name": name, "leaving": True}, 202)

    def _only_admin(self, request: Request) -> None:
        if not (self._config.remote_control or _is_local(request)):
            raise ApiError(403, "this path is for this machine only", code="not_local")

    async def policy(self, request: Request) -> Response:
        """Return the policy; POST changes it, for waiting requests too."""
        if request.method == "POST":
            await self._change_policy(request)
        return JSONResponse({"policy": self._dispatcher.policy.name})

    async def _change_policy(self, request: Request) -> None:
        self._only_admin(request)
        try:
            name = json.loads(await _small_body(request))["policy"]
            policy = make_policy(str(name), imports=False)
        except InputError as error:
            raise ApiError(400, str(error), param="policy", code="unknown_policy") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(400, 'send {"policy": NAME}', param="policy", code="invalid_value") from error
        self._dispatcher.use(policy)
        self._metrics.policy_changes.inc()


def _described(engine: GatewayEngine) -> dict[str, Any]:
    return {
        "name": engine.name,
        "up": engine.up,
        "leaving": engine.leaving,
        "breaker": engine.breaker,
        "running": engine.in_flight,
        "in_flight": engine.slots,
        "models": None if engine.models is None else sorted(engine.models),
    }


async def _small_body(request: Request) -> bytes:
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > _MOST_ADMIN_BYTES:
            raise ApiError(413, f"the body is larger than {_MOST_ADMIN_BYTES} bytes", code="body_too_large")
    return raw


def _is_local(request: Request) -> bool:
    """Whether the peer is this machine, and not a proxy or a web page on it.

    The host asked for must be this machine too: a foreign name may point here (DNS rebinding).
    """
    if any(name in _PROXIED or name.startswith("x-forwarded") for name in request.headers):
        return False
    return request.client is not None and _is_loopback(request.client.host) and _is_loopback(_host_of(request))


def _host_of(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
