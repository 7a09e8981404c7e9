"""The gateway as an ASGI application: its routes, its lifespan, and the health checks of its engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lengthwise.engines.client import EngineClient, EngineError
from lengthwise.engines.engine_metrics import fetch_metrics, read_gauges, read_memory
from lengthwise.errors import InputError
from lengthwise.gateway.bodies import BODIES
from lengthwise.gateway.completions import Completions
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher, GatewayEngine
from lengthwise.gateway.errors import (
    ApiError,
    api_error_response,
    from_engine,
    http_exception_response,
    internal_error_response,
)
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
        clients = [
            EngineClient(
                engine.url,
                name=engine.name or f"engine-{number}",
                api_key=None if engine.api_key is None else engine.api_key.get_secret_value(),
                connect_timeout_s=config.connect_timeout_s,
                silence_timeout_s=config.silence_timeout_s,
            )
            for number, engine in enumerate(config.engines)
        ]
        slots = [engine.in_flight or config.in_flight for engine in config.engines]
        self._engines = [GatewayEngine(clients[number], number, slots[number]) for number in range(len(clients))]
        self._predictions = prediction_service(config.predictor)
        routes = RouterAdapter(None if config.chosen_router is None else warm_router(config.chosen_router))
        self._dispatcher = Dispatcher(
            self._engines,
            make_policy(config.policy),
            self._predictions,
            routes,
            max_waiting=config.max_waiting,
            admission_quantile=config.admission_quantile,
            breaker_failures=config.breaker_failures,
            breaker_s=config.breaker_s,
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
        ]

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for engine in self._engines:
                await stack.enter_async_context(engine.client)
            # Before the first request, so that none goes to an engine that is down or serves another model.
            await asyncio.gather(*(_check_engine(e, self._dispatcher, self._metrics) for e in self._engines))
            watch = asyncio.create_task(
                _watch_engines(
                    self._dispatcher,
                    self._metrics,
                    interval_s=self._config.health_interval_s,
                    hold_timeout_s=self._config.hold_timeout_s,
                )
            )
            if self._dispatcher.uses_predictions:
                self._predictions.warm()
            try:
                yield
            finally:
                watch.cancel()
                await asyncio.wait([watch])
                self._predictions.close()

    async def models(self, request: Request) -> Response:
        """List the models of all engines, each name once."""
        up = [engine for engine in self._engines if engine.up]
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
        up = any(engine.up for engine in self._engines)
        body = {
            "status": "ok" if up else "no engine is up",
            "engines": [{"name": e.name, "up": e.up, "running": e.in_flight} for e in self._engines],
            "waiting": self._dispatcher.waiting,
            "policy": self._dispatcher.policy.name,
            "router": self._dispatcher.routes.name,
            "predictor": self._config.predictor,
            "predictions_from": "predictor" if self._predictions.works else "history",
        }
        return JSONResponse(body, 200 if up else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.exposition(), media_type=_METRICS_TYPE)

    async def policy(self, request: Request) -> Response:
        """Return the policy; POST changes it, for waiting requests too."""
        if request.method == "POST":
            await self._change_policy(request)
        return JSONResponse({"policy": self._dispatcher.policy.name})

    async def _change_policy(self, request: Request) -> None:
        if not (self._config.remote_control or _is_local(request)):
            raise ApiError(403, "the policy can be changed from this machine only", code="not_local")
        try:
            name = json.loads(await _small_body(request))["policy"]
            policy = make_policy(str(name), imports=False)
        except InputError as error:
            raise ApiError(400, str(error), param="policy", code="unknown_policy") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(400, 'send {"policy": NAME}', param="policy", code="invalid_value") from error
        self._dispatcher.use(policy)
        self._metrics.policy_changes.inc()


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


async def _watch_engines(dispatcher: Dispatcher, metrics: Metrics, *, interval_s: float, hold_timeout_s: float) -> None:
    """Check every engine every `interval_s`, each in its own task, so that a slow one delays no other."""
    async with asyncio.TaskGroup() as tasks:
        for engine in dispatcher.engines:
            tasks.create_task(_watch_engine(engine, dispatcher, metrics, interval_s))
        tasks.create_task(_expire(dispatcher, interval_s, hold_timeout_s))


async def _watch_engine(engine: GatewayEngine, dispatcher: Dispatcher, metrics: Metrics, interval_s: float) -> None:
    scrapes = wanted = dispatcher.routes.router is not None or dispatcher.admission_quantile is not None
    while True:
        scrapes = scrapes or (wanted and not engine.up)  # an engine without metrics is asked again once it was down
        if await _check_engine(engine, dispatcher, metrics):
            scrapes = scrapes and await _scrape(engine, dispatcher)
        await asyncio.sleep(interval_s)


async def _check_engine(engine: GatewayEngine, dispatcher: Dispatcher, metrics: Metrics) -> bool:
    """Find out whether an engine is up, and its models."""
    try:
        await engine.client.check()
    except EngineError as error:
        if engine.up:
            metrics.failed(engine, error.kind)
        dispatcher.set_down(engine, error)
        return False
    dispatcher.set_models(engine, await _models(engine))
    dispatcher.set_up(engine)
    dispatcher.on_healthy(engine)
    return True


async def _models(engine: GatewayEngine) -> frozenset[str] | None:
    """Return the models that an engine lists; None if it lists none, as one that asks for a client's key."""
    try:
        return frozenset(str(model["id"]) for model in await engine.client.models()) or None
    except EngineError:
        return engine.models


async def _scrape(engine: GatewayEngine, dispatcher: Dispatcher) -> bool:
    """Pass the engine's load and KV memory on; False if it reports neither."""
    asked_at = dispatcher.clock()  # a request sent while the answer arrives may be missing in it
    metrics = await fetch_metrics(engine.client)
    if not metrics:
        return metrics is not None
    if (memory := read_memory(metrics)) is not None:
        dispatcher.set_memory(engine, memory)
    gauges = read_gauges(metrics)
    if gauges is not None and engine.up:
        dispatcher.routes.on_metrics(engine, gauges, asked_at)
    return gauges is not None


async def _expire(dispatcher: Dispatcher, interval_s: float, hold_timeout_s: float) -> None:
    while True:
        dispatcher.expire(hold_timeout_s)
        await asyncio.sleep(min(interval_s, hold_timeout_s / 4) if hold_timeout_s else interval_s)
