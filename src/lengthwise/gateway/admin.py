"""The gateway's own paths, under /lengthwise/v1: its policy, queue and engines, and why a request is where it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lengthwise.errors import InputError
from lengthwise.gateway.config import EngineConfig
from lengthwise.gateway.dispatch import Dispatcher, GatewayEngine
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.fleet import Fleet
from lengthwise.gateway.metrics import Metrics
from lengthwise.policies import make_policy

if TYPE_CHECKING:
    from starlette.requests import Request

PREFIX: Final = "/lengthwise/v1"

_MOST_BYTES: Final = 64 << 10


class Admin:
    """The handlers of these paths; the gate decides which requests reach them."""

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet, metrics: Metrics) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._metrics = metrics

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(f"{PREFIX}/policy", self.policy, methods=["GET", "POST", "PUT"]),
            Route(f"{PREFIX}/engines", self.engines, methods=["GET", "POST"]),
            Route(f"{PREFIX}/engines/{{name}}", self.remove_engine, methods=["DELETE"]),
        ]

    async def engines(self, request: Request) -> Response:
        """List the engines; POST adds one."""
        if request.method == "GET":
            return JSONResponse({"engines": [_described(engine) for engine in self._dispatcher.engines]})
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
        name = request.path_params["name"]
        try:
            self._fleet.remove(name)
        except KeyError as error:
            raise ApiError(404, f"no engine has the name '{name[:100]}'", param="name", code="not_found") from error
        return JSONResponse({"name": name, "leaving": True}, 202)

    async def policy(self, request: Request) -> Response:
        """Return the policy; POST or PUT changes it, for waiting requests too."""
        if request.method in ("POST", "PUT"):
            await self._change_policy(request)
        return JSONResponse({"policy": self._dispatcher.policy.name})

    async def _change_policy(self, request: Request) -> None:
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
        if len(raw) > _MOST_BYTES:
            raise ApiError(413, f"the body is larger than {_MOST_BYTES} bytes", code="body_too_large")
    return raw
