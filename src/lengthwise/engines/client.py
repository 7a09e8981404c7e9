"""One OpenAI-compatible engine over HTTP: send a request, read its answer as it arrives, check its health."""

from __future__ import annotations

import io
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Self
from urllib.parse import unquote, urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from lengthwise.errors import InputError

_IDLE_S: Final = 3.0
"""How long an idle connection is reused. vLLM's server closes idle connections after 5 s; a request sent on one that is
being closed would be lost."""

_LARGE_BODY: Final = 1 << 20  # aiohttp writes bytes in one piece, and warns above this

# Headers that aiohttp would add; only the caller's are sent.
_AUTO_HEADERS: Final = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class EngineError(Exception):
    """A call without an answer. `kind` is a bounded label for metrics."""

    kind: ClassVar[str] = "error"


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
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        shown = re.sub(r"(//)?.*@", r"\1***@", text)
        raise InputError(f"'{shown}' is not the URL of an engine", hint="give one like http://127.0.0.1:8000")
    return url


def without_credentials(url: str) -> str:
    """Return a valid URL without `user:password@`, for texts."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


class EngineAnswer:
    """An engine's answer: its head has arrived, the body is read as it arrives. The caller closes it."""

    def __init__(self, engine: EngineClient, response: aiohttp.ClientResponse) -> None:
        self._engine = engine
        self._response = response

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._response.status

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The engine's headers as it sent them; a redirect to itself without its address."""
        base = self._engine.url.encode()
        return [(k, v.removeprefix(base) if k.lower() == b"location" else v) for k, v in self._response.raw_headers]

    def header(self, name: str) -> str | None:
        """Return one header of the engine's."""
        return self._response.headers.get(name)

    @property
    def is_stream(self) -> bool:
        """Whether server-sent events follow."""
        return self._response.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON."""
        return self._response.headers.get("content-type", "").startswith("application/json")

    async def chunk(self) -> bytes:
        """Return the next bytes as soon as they arrive; empty at the end."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _engine_error(error, self._engine.name) from error

    async def read(self) -> bytes:
        """Return the whole body."""
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _engine_error(error, self._engine.name) from error

    def close(self) -> None:
        """Reuse the connection if the answer was read to its end, else close it, which aborts the request."""
        self._engine.answers.discard(self)
        self._response.release()

    def cut(self) -> None:
        """Fail the caller that reads it: closing a session does not wake it."""
        self._response.content.set_exception(aiohttp.ServerDisconnectedError())


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
        self._authorization = _basic(url) if api_key is None else f"Bearer {api_key}"
        self._keep = keep
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=silence_timeout_s)
        self._sessions: tuple[aiohttp.ClientSession, ...] = ()
        self.answers: set[EngineAnswer] = set()
        """Answers that are being read."""

    async def open(self) -> None:
        """Make the client ready for requests."""
        fresh = self._new_session(aiohttp.TCPConnector(limit=0, force_close=True))
        pooled = self._new_session(aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)) if self._keep else fresh
        self._sessions = pooled, fresh

    async def close(self) -> None:
        """Close all connections; running requests fail with EngineBrokenError."""
        for answer in list(self.answers):
            answer.cut()
        for session in self._sessions:
            await session.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _new_session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_AUTO_HEADERS,
            trace_configs=[trace],
        )

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> EngineAnswer:
        """Send a body and return once the head of the answer arrives."""
        return await self._call("POST", path, body=body, headers=headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> EngineAnswer:
        """Get a path."""
        return await self._call("GET", path, headers=headers)

    async def forward(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> EngineAnswer:
        """Forward a client's request unchanged; `path` is encoded and includes the query."""
        return await self._call(method, path, encoded=True, body=body or None, headers=headers)

    async def check(self, timeout_s: float = 5.0) -> None:
        """Return if the engine is healthy, else raise an EngineError."""
        answer = await self._call("GET", "/health", timeout=aiohttp.ClientTimeout(total=timeout_s))
        answer.close()
        # Not every OpenAI-compatible server has /health: one that answers 404 or 401 is up.
        if answer.status >= 500:
            raise EngineBrokenError(f"{self.name} answers {answer.status} to /health")

    async def models(self, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0) -> list[dict[str, Any]]:
        """Return the engine's list of models."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        answer = await self._call("GET", "/v1/models", headers=headers, timeout=timeout)
        try:
            if 400 <= answer.status < 500:
                raise EngineRefusedError(f"{self.name} answers {answer.status} to /v1/models", answer.status)
            listed = json.loads(await answer.read())
            return [model for model in listed["data"] if "id" in model]
        except (ValueError, KeyError, TypeError) as error:
            raise EngineBrokenError(
                f"{self.name} answers {answer.status} to /v1/models, without a list of models"
            ) from error
        finally:
            answer.close()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        encoded: bool = False,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        **options: Any,  # noqa: ANN401
    ) -> EngineAnswer:
        if not self._sessions:
            raise RuntimeError("an EngineClient is used inside `async with`")
        if self._authorization is not None:
            headers = CIMultiDict(headers or {})
            headers["Authorization"] = self._authorization
        for session in self._sessions:
            reuse: dict[str, bool] = {}
            try:
                response = await session.request(
                    method,
                    URL(self.url + path, encoded=encoded),
                    data=body if body is None or len(body) < _LARGE_BODY else io.BytesIO(body),
                    allow_redirects=False,
                    headers=headers,
                    trace_request_ctx=reuse,
                    **options,
                )
            except (aiohttp.ClientError, OSError) as error:
                # Engines close idle connections at any time: a request that one of them swallows is sent once more,
                # on a new connection.
                if reuse and isinstance(_engine_error(error, self.name), EngineBrokenError):
                    continue
                raise _engine_error(error, self.name) from error
            if not 200 <= response.status < 600:  # no status that a server may send on
                response.close()
                raise EngineBrokenError(f"{self.name} answers with status {response.status}")
            answer = EngineAnswer(self, response)
            self.answers.add(answer)
            return answer
        raise AssertionError  # the last session reuses no connection


async def _note_reuse(_: aiohttp.ClientSession, context: Any, __: aiohttp.TraceConnectionReuseconnParams) -> None:  # noqa: ANN401
    context.trace_request_ctx["reused"] = True


def _basic(url: str) -> str | None:
    """Return the header for the credentials in a URL."""
    parts = urlsplit(url.strip())
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + b64encode(pair.encode()).decode()


def _engine_error(error: Exception, engine: str) -> EngineError:
    """Return the EngineError for an error of aiohttp. A TimeoutError is an OSError, so the order matters."""
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return EngineUnreachableError(f"{engine} cannot be reached")
    if isinstance(error, TimeoutError):
        return EngineTimeoutError(f"{engine} sent nothing for too long")
    return EngineBrokenError(f"{engine} broke off")


async def served_model(client: EngineClient, wanted: str | None) -> str:
    """Return `wanted`, or the first model that the endpoint serves; InputError if it does not answer."""
    try:
        served = [str(model["id"]) for model in await client.models()]
    except EngineError as error:
        raise InputError(
            str(error),
            source="--url",
            hint="start one with `lengthwise engine` or `lengthwise serve`, or correct the URL",
        ) from error
    if wanted is None and not served:
        raise InputError(f"{client.url} serves no model", source="--url", hint="name one with --model")
    return served[0] if wanted is None else wanted
