"""One OpenAI-compatible engine over HTTP: send a request, read its answer as it arrives, check its health."""

from __future__ import annotations

import asyncio
import json
import math
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, Self
from urllib.parse import unquote, urlsplit

from lengthwise.client.http1 import HttpPool, NotConnectedError, Response
from lengthwise.errors import InputError

_IDLE_S: Final = 3.0
"""How long an idle connection is reused. vLLM's server closes idle connections after 5 s; a request sent on one that is
being closed would be lost."""
ASK_S: Final = 5.0
"""Timeout of requests for an engine's health, models, metrics and version."""
_MAX_SHOWN: Final = 200  # characters of a URL in an error
_JSON: Final = {"content-type": "application/json"}


class EngineError(Exception):
    """A call without an answer. `kind` is a bounded label for metrics."""

    kind: ClassVar[str] = "error"
    resent: bool = False
    """Whether the request was sent twice: first on a reused connection that the engine closed without an answer."""


class EngineUnreachableError(EngineError):
    """No connection: the engine has not received the request, which may be sent to another."""

    kind = "unreachable"


class EngineBrokenError(EngineError):
    """The connection was lost after the request was sent."""

    kind = "broken"


class EngineRefusedError(EngineError):
    """The engine refused the request."""

    kind = "refused"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class EngineTimeoutError(EngineError):
    """The engine sent nothing for too long."""

    kind = "timeout"


def engine_url(text: str) -> str:
    """Return the base URL of an engine, without a trailing /v1; credentials stay in it."""
    url = text.strip().rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # as a connection does: no empty or long label
    except ValueError:  # a UnicodeError is one
        usable = False
    if not usable or parts.query or parts.fragment:
        shown = re.sub(r"(//)?.*@", r"\1***@", text)[:_MAX_SHOWN]
        raise InputError(f"'{shown}' is not the URL of an engine", hint="give one like http://127.0.0.1:8000")
    return url


def without_credentials(url: str) -> str:
    """Return a valid URL without `user:password@`, for texts."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


class AnswerTransport(Protocol):
    """How an answer arrives. A failure is an OSError."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """Names in lower case."""
    deadline: float
    """When it fails with TimeoutError, unless this is set to infinity before; on the loop's clock."""

    @property
    def heard_at(self) -> float:
        """When its last byte arrived, or now while it is not read; on the loop's clock."""

    async def chunk(self) -> bytes:
        """Return the next bytes of the body as soon as they arrive; empty at the end."""

    async def read(self) -> bytes:
        """Return the rest of the body."""

    def release(self) -> None:
        """Abort the request unless all of its answer has arrived."""


class EngineResponse:
    """An engine's answer: its head has arrived, the body is read as it arrives. The caller closes it."""

    def __init__(self, engine: EngineClient, response: AnswerTransport, *, resent: bool = False) -> None:
        """`resent`: whether the request was sent twice."""
        self.resent = resent
        self._engine = engine
        self._response = response
        self._content_type = self.header("content-type") or ""
        self.status = response.status
        """The HTTP status."""
        self.is_stream = self._content_type.startswith("text/event-stream")
        """Whether server-sent events follow."""

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The engine's headers, names in lower case; a redirect to itself without its address."""
        base = self._engine.url.encode()
        return [(k, v.removeprefix(base) if k == b"location" else v) for k, v in self._response.headers]

    def header(self, name: str) -> str | None:
        """Return one header of the engine's, by its name in lower case."""
        wanted = name.encode()
        for known, value in self._response.headers:
            if known == wanted:
                return value.decode("latin-1")
        return None

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON."""
        return self._content_type.startswith("application/json")

    @property
    def heard_at(self) -> float:
        """When its last byte arrived, or now while it is not read; on the loop's clock."""
        return self._response.heard_at

    def lift_limit(self) -> None:
        """End the limit of time that the request was sent with."""
        self._response.deadline = math.inf

    async def chunk(self) -> bytes:
        """Return the next bytes as soon as they arrive; empty at the end."""
        try:
            return await self._response.chunk()
        except OSError as error:
            raise _engine_error(error, self._engine.name) from error

    async def read(self) -> bytes:
        """Return the whole body."""
        try:
            return await self._response.read()
        except OSError as error:
            raise _engine_error(error, self._engine.name) from error

    def close(self) -> None:
        """Reuse the connection if the answer was read to its end, else close it, which aborts the request."""
        self._response.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class EngineClient:
    """Talks to the engine at `url`; open while it is used as an async context manager.

    `api_key` is sent as a bearer token, credentials in the URL as basic authentication, each in place of a client's.
    Errors name the engine by `name`.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        api_key: str | None = None,
        connect_timeout_s: float = 5.0,
        silence_timeout_s: float = 600.0,
        keep: bool = True,
    ) -> None:
        """With `keep`, connections are reused; without, each request has its own."""
        self.url = without_credentials(engine_url(url))
        self.name = name or f"engine {self.url}"
        self._authorization = _basic(url) if api_key is None else f"Bearer {api_key}".encode()
        self._idle_s = _IDLE_S if keep else 0.0
        self._timeouts_s = connect_timeout_s, silence_timeout_s
        self._pool: HttpPool | None = None

    async def open(self) -> None:
        """Make the client ready for requests."""
        connect_s, silence_s = self._timeouts_s
        self._pool = HttpPool(self.url, connect_timeout_s=connect_s, silence_timeout_s=silence_s, idle_s=self._idle_s)

    async def close(self) -> None:
        """Close all connections; running requests fail with EngineBrokenError."""
        if self._pool is not None:
            self._pool.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def replicas(self) -> int:
        """Servers behind this client, each with the configured slots."""
        return 1

    @property
    def open_answers(self) -> int:
        """Requests that have been sent and whose answers are not closed."""
        return 0 if self._pool is None else self._pool.busy

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] = _JSON) -> EngineResponse:
        """Send a body, by default JSON, and return once the head of the answer arrives."""
        return await self._call("POST", path, _encoded(headers), body)

    async def fetch(
        self,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, bytes]:
        """Return status and body of an answer: to a GET, or to a POST of a JSON body. `timeout_s` is for all of it."""
        sent = {**(_JSON if body is not None else {}), **(headers or {})}
        try:
            async with asyncio.timeout(timeout_s):
                async with await self._call("GET" if body is None else "POST", path, _encoded(sent), body) as answer:
                    return answer.status, await answer.read()
        except TimeoutError as error:
            raise _engine_error(error, self.name) from error

    async def forward(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        limit_s: float = math.inf,
        *,
        resend: bool = True,
    ) -> EngineResponse:
        """Forward a client's request unchanged; `path` is encoded and includes the query.

        EngineTimeoutError if the answer is not complete after `limit_s`, unless the limit is lifted before. Without
        `resend`, its body is sent once, on a new connection.
        """
        return await self._call(method, path, headers, body or None, limit_s, resend=resend)

    async def check(self, timeout_s: float = ASK_S) -> None:
        """Return if the engine is healthy, else raise an EngineError."""
        status, _ = await self.fetch("/health", timeout_s=timeout_s)
        # Not every OpenAI-compatible server has /health: one that answers 404 or 401 is up.
        if status >= 500:
            raise EngineBrokenError(f"{self.name} answers {status} to /health")

    async def models(self, headers: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Return the engine's list of models."""
        status, body = await self.fetch("/v1/models", headers=headers, timeout_s=ASK_S)
        if 400 <= status < 500:
            raise EngineRefusedError(f"{self.name} answers {status} to /v1/models", status)
        try:
            listed = [model for model in json.loads(body)["data"] if isinstance(model, dict)]
            return [model for model in listed if isinstance(model.get("id"), str)]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EngineBrokenError(f"{self.name} answers {status} to /v1/models, without a list of models") from error

    async def _call(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | None = None,
        limit_s: float = math.inf,
        *,
        resend: bool = True,
    ) -> EngineResponse:
        if self._pool is None:
            raise RuntimeError("an EngineClient is used inside `async with`")
        if self._authorization is not None:
            own = (b"Authorization", self._authorization)
            headers = [own, *(header for header in headers if header[0].lower() != b"authorization")]
        encoded = path.encode()
        fresh, taken = not resend, False
        while True:
            answer: Response | None = None
            try:
                answer = await self._pool.request(method, encoded, headers, body, fresh=fresh, limit_s=limit_s)
                await answer.head()
            except OSError as error:
                # Engines close idle connections at any time: a request that one of them swallows is sent once more,
                # on a new connection.
                if answer is None or answer.seen or not answer.reused or isinstance(error, TimeoutError):
                    failure = _engine_error(error, self.name)
                    failure.resent = fresh and resend
                    raise failure from error
                fresh = True
            else:
                taken = True
                return EngineResponse(self, answer, resent=fresh and resend)
            finally:
                if answer is not None and not taken:  # a caller may be cancelled when the head has just arrived
                    answer.release()


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _basic(url: str) -> bytes | None:
    """Return the header for the credentials in a URL."""
    parts = urlsplit(url.strip())
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return b"Basic " + b64encode(pair.encode())


def _engine_error(error: Exception, engine: str) -> EngineError:
    """Return the EngineError for an error of a connection. A TimeoutError is an OSError too."""
    if isinstance(error, NotConnectedError):
        return EngineUnreachableError(f"{engine} cannot be reached")
    if isinstance(error, TimeoutError):
        return EngineTimeoutError(f"{engine} sent nothing for too long")
    return EngineBrokenError(f"{engine} broke off")


async def served_model(client: EngineClient, wanted: str | None, option: str = "--url") -> str:
    """Return `wanted`, or the first model that the endpoint serves; InputError if it does not answer.

    `option` is the one that names the endpoint.
    """
    try:
        served = [str(model["id"]) for model in await client.models()]
    except EngineError as error:
        raise InputError(
            str(error),
            source=option,
            hint="start one with `lengthwise engine` or `lengthwise serve`, or correct the URL",
        ) from error
    if wanted is None and not served:
        raise InputError(f"{client.url} serves no model", source=option, hint="name one with --model")
    return served[0] if wanted is None else wanted
