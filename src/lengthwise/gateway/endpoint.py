"""What the endpoints of a gateway share: how a request is received, fails and is counted."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod

from starlette.types import Receive, Scope, Send

from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.errors import TRY_LATER, ApiError, error_format
from lengthwise.gateway.metrics import Metrics
from lengthwise.gateway.streaming import BodyBudget, Caller, ClientGoneError
from lengthwise.gateway.tenants import Lease, lease_of
from lengthwise.traffic.rows import RequestOutcome


class Endpoint(ABC):
    """An ASGI application that serves requests of tenants; `label` names it in metrics."""

    def __init__(
        self, label: str, config: GatewayConfig, dispatcher: Dispatcher, metrics: Metrics, budget: BodyBudget
    ) -> None:
        self._label = label
        self._config = config
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._budget = budget
        self._whole = metrics.request_seconds.labels(label)

    def use(self, config: GatewayConfig) -> None:
        """Use these settings for requests from now on."""
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count its outcome."""
        self._metrics.receive()
        began = self._dispatcher.clock()
        lease = lease_of(scope)
        caller = Caller(scope, receive, send, lease)
        caller.error_format = error_format(scope["path"])
        request_id = caller.headers.get(b"x-request-id") or os.urandom(16).hex().encode()
        config, budget = self._config, self._budget
        outcome: RequestOutcome = "bug"
        try:
            self._check(scope)
            received = [await caller.body(min(config.max_body_bytes, config.max_held_bytes), budget)]
            with caller.present():  # the body is not held here: it may be replaced by an edited one
                ended = await self._serve(scope, received.pop(), caller, lease, request_id, began)
                if caller.connection is not None and caller.connection.behind:
                    await caller.connection.all_read()
                outcome = ended
        except ApiError as error:
            outcome = outcome_of_error(error)
            await caller.fail(error, request_id)
        except ClientGoneError:
            outcome = "cancelled"
        except asyncio.CancelledError:  # the gateway stops, and the time to finish is over
            outcome = "cancelled"
            await caller.end_with(ApiError(503, "the gateway is shutting down", code="shutting_down"), request_id)
        except Exception:  # the server logs it
            message = f"{scope['method']} {scope['path']}: the gateway failed"
            await caller.end_with(ApiError(500, message, code="bug"), request_id)
            raise
        finally:
            budget.free += caller.held_bytes
            caller.log(outcome=outcome)
            self._metrics.ended(self._label, outcome)
            self._whole.observe(self._dispatcher.clock() - began)

    def _check(self, scope: Scope) -> None:  # noqa: B027  (most endpoints serve one path, which the router checks)
        """Raise ApiError, before the body is read, if the path or the method is not served."""

    @abstractmethod
    async def _serve(
        self, scope: Scope, raw: bytes, caller: Caller, lease: Lease, request_id: bytes, began: float
    ) -> RequestOutcome:
        """Answer the request and return its outcome."""


def outcome_of(status: int) -> RequestOutcome:
    """Return the outcome of a request that an engine has answered with this status."""
    if status < 400:
        return "ok"
    return "client_error" if status < 500 else "engine_error"


def outcome_of_error(error: ApiError) -> RequestOutcome:
    """Return the outcome of a request that the gateway answers with an error."""
    return "refused" if error.status in TRY_LATER else outcome_of(error.status)
