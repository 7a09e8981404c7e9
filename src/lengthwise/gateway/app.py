"""The gateway as an ASGI application: its routes and its lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lengthwise.client.client import EngineClient, EngineError
from lengthwise.gateway.access_log import AccessLog
from lengthwise.gateway.admin import Admin
from lengthwise.gateway.audit_log import AuditLog
from lengthwise.gateway.bodies import BODIES
from lengthwise.gateway.completions import Completions
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.dashboard import Dashboard
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.errors import (
    ApiError,
    api_error_response,
    from_engine,
    http_exception_response,
    internal_error_response,
)
from lengthwise.gateway.fleet import EngineFleet
from lengthwise.gateway.forwarding import BARE_PATHS, Forwarding
from lengthwise.gateway.hangs import HangWatch
from lengthwise.gateway.metrics import Metrics
from lengthwise.gateway.model_names import ModelNames
from lengthwise.gateway.recent_requests import RecentRequests
from lengthwise.gateway.reload import PredictorWatch, Reloader, UsesConfig
from lengthwise.gateway.request_rows import TrafficLogMetrics, predictor_counts
from lengthwise.gateway.routing import RouterAdapter, warm_router
from lengthwise.gateway.stored_responses import ResponseIds, ResponseOwners
from lengthwise.gateway.streaming import BodyBudget
from lengthwise.gateway.tenants import TenantGate, Tenants
from lengthwise.gateway.types import Call
from lengthwise.predictors.service import PredictionService, prediction_service
from lengthwise.predictors.state_file import state_file
from lengthwise.traffic.log import TrafficLog

if TYPE_CHECKING:
    from lengthwise.gateway.tracing import Tracing


_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def create_app(
    config: GatewayConfig,
    load: Callable[[], GatewayConfig] | None = None,
    on_engines: Callable[[str], None] | None = None,
    make_client: Callable[..., EngineClient] = EngineClient,
) -> Starlette:
    """Return the gateway as an ASGI application; it connects to its engines when its lifespan starts.

    `on_engines` is then called with what the engines are, in words.
    Once `app.state.draining` is set to True, /ready answers 503, so that no new requests are sent to a gateway that is
    about to stop. With `load`, SIGHUP changes the configuration of the running gateway to what it returns.
    `make_client` makes the connection to an engine, from the arguments of `EngineClient`.
    """
    gateway = _Gateway(config, load, on_engines, make_client)
    app = _App(
        routes=gateway.routes(),
        middleware=[Middleware(TenantGate, tenants=gateway.tenants, log=gateway.access_log, audit=gateway.audit_log)],
        lifespan=gateway.lifespan,
        exception_handlers={
            ApiError: api_error_response,
            HTTPException: http_exception_response,
            Exception: internal_error_response,
        },
    )
    app.completions = {
        path: TenantGate(endpoint, gateway.tenants, gateway.access_log)
        for path, endpoint in gateway.completions.items()
    }
    app.router.redirect_slashes = False  # a redirect would name the host that the client claims to have asked
    app.state.draining = False
    app.state.metrics = gateway.exported
    app.state.reloader = gateway.reloader
    return app


def _tracing(endpoint: str, dispatcher: Dispatcher) -> Tracing:
    from lengthwise.gateway.tracing import Tracing  # needs an extra

    return Tracing(endpoint, dispatcher)


class _App(Starlette):
    """Serves completions past Starlette's routing and middleware: about 5 % of a small request's CPU time."""

    completions: Mapping[str, TenantGate]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self.completions:
            await self.completions[scope["path"]](scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class _TenantLearning:
    """Keeps what is learned of tenants apart as the settings say."""

    def __init__(self, predictions: PredictionService) -> None:
        self._predictions = predictions

    def use(self, config: GatewayConfig) -> None:
        """Use these settings from now on."""
        if self._predictions.tenants_apart != config.tenants_apart:
            self._predictions.tenants_apart = config.tenants_apart


class _Gateway:
    def __init__(
        self,
        config: GatewayConfig,
        load: Callable[[], GatewayConfig] | None,
        on_engines: Callable[[str], None] | None,
        make_client: Callable[..., EngineClient],
    ) -> None:
        self._config = config
        self._load = load
        self._on_engines = on_engines
        self.tenants = Tenants(config)
        self.access_log = None if config.access_log is None else AccessLog(config.access_log)
        self.audit_log = None if config.audit_log is None else AuditLog(config.audit_log)
        state = state_file(config.state, "gateway")
        self._predictions = prediction_service(
            config.predictor, learning=config.learning, tenants_apart=config.tenants_apart, state=state
        )
        self._watch = None
        if config.watch and config.watched is not None:
            in_use = str(config.watched) == config.predictor
            self._watch = PredictorWatch(config.watched, self._predictions, in_use=in_use)
        self._dispatcher = Dispatcher(
            self.tenants.policy(config.policy),
            self._predictions,
            RouterAdapter(None if config.chosen_router is None else warm_router(config.chosen_router)),
            max_waiting=config.max_waiting,
            admission_quantile=config.admission_quantile,
        )
        budget = BodyBudget(config.max_held_bytes)
        self.exported = Metrics(self._dispatcher, config.predictor, self._predictions, budget)
        self._names = ModelNames(config, self._dispatcher)
        self._traffic = None if config.log is None else TrafficLog(config.log, max_bytes=config.log_bytes)
        self._fleet = EngineFleet(config, self._dispatcher, self.exported, make_client, self._traffic)
        self._tracing = None if config.otlp_endpoint is None else _tracing(config.otlp_endpoint, self._dispatcher)
        calls: dict[str, Call] = {}
        self._hangs = HangWatch(self._dispatcher, calls)
        recent, owners = RecentRequests(self._dispatcher), ResponseOwners()
        ids = ResponseIds(None if config.shared_secret is None else config.shared_secret.get_secret_value())
        served = (config, self._dispatcher, self.exported, budget)
        self.completions = {
            path: Completions(
                path,
                model,
                *served,
                predictions=self._predictions,
                names=self._names,
                ids=ids,
                owners=owners,
                calls=calls,
                recent=recent,
                traffic=self._traffic,
                tracing=self._tracing,
            )
            for path, model in BODIES.items()
        }
        self._forwarding = Forwarding(*served, names=self._names, ids=ids, owners=owners)
        self._admin = Admin(config, self._dispatcher, self._predictions, self.exported, self._fleet, calls, budget)
        self._dashboard = Dashboard(config, self._dispatcher, self._predictions, calls, recent)
        users: list[UsesConfig] = [
            self._names,
            *self.completions.values(),
            self._forwarding,
            self._admin,
            self._dashboard,
            _TenantLearning(self._predictions),
        ]
        users += [log for log in (self.access_log, self.audit_log) if log is not None]
        self.reloader = Reloader(config, self.tenants, self._dispatcher, self._fleet, users, self.audit_log)
        logged = None if self._traffic is None else TrafficLogMetrics(self._traffic)
        for part in (self.tenants, self.access_log, logged, self._dashboard):
            if part is not None:
                self.exported.register(part)

    def routes(self) -> list[Route]:
        return [
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in self.completions.items()),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            *(Route(path, self._forwarding) for path in ("/v1/{path:path}", *BARE_PATHS)),
            *(Route(path.replace("*", "{path:path}"), self._forwarding) for path in self._config.extra_paths),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.metrics),
            *self._admin.routes(),
            *self._dashboard.routes(),
        ]

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self._fleet, self.reloader.on_signal(self._load):
            if self._on_engines is not None:
                engines = self._dispatcher.engines
                self._on_engines(", ".join(f"{e.name} is {e.identity.description or 'not known yet'}" for e in engines))
            if self._dispatcher.uses_predictions or self._config.observe:
                self._predictions.warm()
            interval_s = self._config.health_interval_s
            watches = [asyncio.create_task(self.tenants.watch(interval_s)), asyncio.create_task(self._hangs.run())]
            if self._watch is not None:
                watches.append(asyncio.create_task(self._watch.run(interval_s)))
            try:
                with self.access_log or nullcontext(), self._traffic or nullcontext(), self._tracing or nullcontext():
                    yield
                    if self._traffic is not None:
                        self._traffic.add(predictor_counts(self._predictions.counts))
            finally:
                for task in watches:
                    task.cancel()
                self._predictions.close()

    async def models(self, request: Request) -> Response:
        """List the models of all engines and their aliases, each name once."""
        return JSONResponse({"object": "list", "data": list((await self._models(request)).values())})

    async def model(self, request: Request) -> Response:
        """Return one model or alias."""
        name = request.path_params["model"]
        models = await self._models(request)
        if name not in models:
            message = f"the model '{name[:100]}' is not served here"
            raise ApiError(404, message, param="model", code="model_not_found")
        return JSONResponse(models[name])

    async def _models(self, request: Request) -> dict[str, dict[str, Any]]:
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
        aliases = self._names.aliases.items()
        return merged | {a: {**merged[name], "id": a, "root": name} for a, name in aliases if name in merged}

    async def health(self, _: Request) -> Response:
        """Return 200: the process serves."""
        body = {
            "status": "ok",
            "engines": [{"name": e.name, "up": e.up, "running": e.in_flight} for e in self._dispatcher.engines],
            "waiting": self._dispatcher.waiting,
            "policy": self._dispatcher.policy.name,
            "router": self._dispatcher.routes.name,
            "predictor": (None if self._watch is None else self._watch.in_use) or self._config.predictor,
            "predictor_version": self._predictions.predictor,
            "watch": None if self._watch is None else self._watch.state,
            "learning": "on" if self._predictions.learning else "off",
            "predictions_from": "predictor" if self._predictions.works else "history",
        }
        return JSONResponse(body)

    async def ready(self, request: Request) -> Response:
        """Return 200 while an engine is up and the gateway does not drain, else 503."""
        if request.app.state.draining:
            return JSONResponse({"status": "draining"}, 503)
        up = any(engine.up for engine in self._dispatcher.engines)
        return JSONResponse({"status": "ready" if up else "no engine is up"}, 200 if up else 503)

    async def metrics(self, _: Request) -> Response:
        """Return the metrics in Prometheus's text format."""
        return Response(await self.exported.exposition(), media_type=_METRICS_TYPE)
