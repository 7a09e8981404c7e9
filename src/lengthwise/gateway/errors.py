"""Errors in the format of the API that the client uses.

OpenAI's: {"error": {message, type, param, code}}. In a stream of /v1/responses: an event `error` with these fields.
Anthropic's: {"type": "error", "error": {type, message}}, in a stream as an event `error`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, Literal

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lengthwise.client.client import EngineError, EngineRefusedError, EngineTimeoutError

ErrorFormat = Literal["openai", "responses", "anthropic"]

TRY_LATER: Final = (429, 503)
"""Statuses of a request that is refused now and may succeed later."""
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_format(path: str) -> ErrorFormat:
    """Return the format of errors at a path."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "responses" if path.startswith("/v1/responses") else "openai"


class ApiError(Exception):
    """An error that the gateway answers a request with. One of 429 or 503 always has a Retry-After, by default 1 s."""

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
        self.headers = dict(headers or {})
        if status in TRY_LATER:
            self.headers.setdefault("retry-after", "1")

    @property
    def type(self) -> str:
        """OpenAI's error type for the status."""
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    @property
    def body(self) -> bytes:
        """The error as JSON in OpenAI's format."""
        return self.body_in("openai")

    def body_in(self, form: ErrorFormat) -> bytes:
        """Return the error as JSON."""
        if form == "anthropic":
            return _json({"type": "error", "error": {"type": self._anthropic_type, "message": self.message}})
        return _json({"error": self._fields})

    def event_in(self, form: ErrorFormat, sequence_number: int = 0) -> bytes:
        """Return the error as a server-sent event, for a stream that has started."""
        if form == "openai":
            return b"data: " + self.body + b"\n\n"
        if form == "anthropic":
            return b"event: error\ndata: " + self.body_in(form) + b"\n\n"
        fields = {**self._fields, "type": "error", "sequence_number": sequence_number}
        return b"event: error\ndata: " + _json(fields) + b"\n\n"

    def response(self, form: ErrorFormat = "openai") -> Response:
        """The error as a whole response."""
        return Response(self.body_in(form), self.status, self.headers, "application/json")

    @property
    def _fields(self) -> dict[str, str | None]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    @property
    def _anthropic_type(self) -> str:
        otherwise = "invalid_request_error" if self.status < 500 else "api_error"
        return _ANTHROPIC_TYPES.get(self.status, otherwise)


def _json(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def from_engine(error: EngineError) -> ApiError:
    """Return the error that a client receives for an engine's failure."""
    if isinstance(error, EngineRefusedError):
        return ApiError(error.status, str(error), code="engine_refused")
    if isinstance(error, EngineTimeoutError):
        return ApiError(504, str(error), code="engine_timeout")
    return ApiError(502, str(error), code=f"engine_{error.kind}")


def invalid_field(error: ValidationError, code: str = "invalid_value") -> ApiError:
    """Return the error that names the first invalid field of a body."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    return ApiError(400, f"{field}: {first['msg']}", param=field, code=code)


async def api_error_response(request: Request, error: Exception) -> Response:
    """Return the response of an ApiError."""
    assert isinstance(error, ApiError)  # noqa: S101  (registered for this class alone)
    return error.response(error_format(request.url.path))


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
    answer = ApiError(exception.status_code, message, code=code, headers=exception.headers)
    return answer.response(error_format(request.url.path))


async def internal_error_response(request: Request, _: Exception) -> Response:
    """Return 500 for an unexpected exception; Starlette logs its traceback."""
    error = ApiError(500, f"{request.method} {request.url.path}: the gateway failed", code="bug")
    return error.response(error_format(request.url.path))
