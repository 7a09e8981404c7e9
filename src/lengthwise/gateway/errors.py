"""Errors in the format of OpenAI's API: {"error": {message, type, param, code}}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import Response

from lengthwise.engines.client import EngineError, EngineRefusedError, EngineTimeoutError

if TYPE_CHECKING:
    from starlette.exceptions import HTTPException
    from starlette.requests import Request


class ApiError(Exception):
    """An error that the gateway answers a request with."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers

    @property
    def type(self) -> str:
        """OpenAI's error type for the status."""
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": fields}, separators=(",", ":")).encode()

    @property
    def event(self) -> bytes:
        """The error as a server-sent event, for a stream that has started."""
        return b"data: " + self.body + b"\n\n"

    def response(self) -> Response:
        """The error as a whole response."""
        return Response(self.body, self.status, self.headers, "application/json")


def from_engine(error: EngineError) -> ApiError:
    """Return the error that a client receives for an engine's failure."""
    if isinstance(error, EngineRefusedError):
        return ApiError(error.status, str(error), code="engine_refused")
    if isinstance(error, EngineTimeoutError):
        return ApiError(504, str(error), code="engine_timeout")
    return ApiError(502, str(error), code=f"engine_{error.kind}")


async def api_error_response(_: Request, error: Exception) -> Response:
    """Return the response of an ApiError."""
    assert isinstance(error, ApiError)  # noqa: S101  (registered for this class alone)
    return error.response()


async def http_exception_response(request: Request, error: Exception) -> Response:
    """Return Starlette's errors (unknown path or method) in the same format."""
    exception: HTTPException = error  # type: ignore[assignment]  # registered for this class alone
    what = f"{request.method} {request.url.path}"
    if exception.status_code == HTTPStatus.NOT_FOUND:
        message, code = f"{what}: there is no such path here", "not_found"
    elif exception.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message, code = f"{what}: this path does not take that method", "method_not_allowed"
    else:
        message, code = f"{what}: {exception.detail}", None
    return ApiError(exception.status_code, message, code=code, headers=exception.headers).response()


async def internal_error_response(request: Request, _: Exception) -> Response:
    """Return 500 for an unexpected exception; Starlette logs its traceback."""
    return ApiError(500, f"{request.method} {request.url.path}: the gateway failed", code="bug").response()
