"""One OpenAI-compatible engine over HTTP: send a request, read its answer as it arrives, check its health."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from lengthwise.errors import InputError

_IDLE_S: Final = 3.0
"""How long an idle connection is kept. vLLM's server drops its own after 5 s; a request sent into a
connection that is just being dropped would be lost."""

_LARGE_BODY: Final = 1 << 20  # aiohttp writes bytes in one piece, and warns above this

# What aiohttp would add by itself; the caller's headers are all there is.
_AUTO_HEADERS: Final = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class EngineError(Exception):
    """A call that did not end in an answer. `kind` is a bounded label for metrics."""

    kind: ClassVar[str] = "error"


class EngineUnreachableError(EngineError):
    """No connection came about: the engine has seen nothing of the request, so it may go elsewhere."""

    kind = "unreachable"


class EngineBrokenError(EngineError):
    """The connection was lost after the request was sent."""

    kind = "broken"


class EngineRefusedError(EngineError):
    """The engine answered, and said no."""

    kind = "refused"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class EngineTimeoutError(EngineError):
    """The engine was silent for too long."""

    kind = "timeout"


def engine_url(text: str) -> str:
    """The base URL of an engine, without the /v1 that clients are usually given."""
    url = text.strip().rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise InputError(f"'{text}' is not the URL of an engine", hint="give one like http://127.0.0.1:8000")
    return url


class EngineAnswer:
    """What an engine answers: the head is here, the rest is read as it comes. Close it, whatever happens."""

    def __init__(self, url: str, response: aiohttp.ClientResponse) -> None:
        self._url = url
        self._response = response

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._response.status

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """The engine's own headers."""
        return self._response.headers

    @property
    def is_stream(self) -> bool:
        """Whether server-sent events follow."""
        return self._response.headers.get("content-type", "").startswith("text/event-stream")

    async def chunk(self) -> bytes:
        """The next bytes, as soon as there are any; nothing at the end."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _told(error, self._url) from error

    async def read(self) -> bytes:
        """All of it."""
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _told(error, self._url) from error

    def close(self) -> None:
        """Give the connection back if the answer was read to its end, else cut it: that aborts the request."""
        self._response.release()


class EngineClient:
    """Talks to the engine at `url`; open while it is used as an async context manager."""

    def __init__(
        self, url: str, *, connect_timeout_s: float = 5.0, silence_timeout_s: float = 600.0, keep: bool = True
    ) -> None:
        """With `keep` connections are used again; without, each request has its own."""
        self.url = engine_url(url)
        self._keep = keep
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=silence_timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=(
                aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
                if self._keep
                else aiohttp.TCPConnector(limit=0, force_close=True)
            ),
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_AUTO_HEADERS,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> EngineAnswer:
        """Send a body as it is, and return once the head of the answer is there."""
        data = body if len(body) < _LARGE_BODY else io.BytesIO(body)
        return await self._call("POST", path, data=data, headers=headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> EngineAnswer:
        """Ask for a path."""
        return await self._call("GET", path, headers=headers)

    async def forward(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> EngineAnswer:
        """Send somebody else's request as it came; `path` is written as in a request line, its query included."""
        data = None if not body else body if len(body) < _LARGE_BODY else io.BytesIO(body)
        return await self._call(method, path, encoded=True, data=data, headers=headers)

    async def check(self, timeout_s: float = 5.0) -> None:
        """Return if the engine says it can serve, else raise why not."""
        answer = await self._call("GET", "/health", timeout=aiohttp.ClientTimeout(total=timeout_s))
        answer.close()
        # Not every OpenAI-compatible server has /health: one that says 404 or 401 is there.
        if answer.status >= 500:
            raise EngineBrokenError(f"engine {self.url} says {answer.status} to /health")

    async def models(self, headers: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """What the engine serves, as it tells it."""
        answer = await self.get("/v1/models", headers)
        try:
            if 400 <= answer.status < 500:
                raise EngineRefusedError(f"engine {self.url} says {answer.status} to /v1/models", answer.status)
            told = json.loads(await answer.read())
            return [model for model in told["data"] if "id" in model]
        except (ValueError, KeyError, TypeError) as error:
            raise EngineBrokenError(
                f"engine {self.url} says {answer.status} to /v1/models, and no list of models"
            ) from error
        finally:
            answer.close()

    async def _call(self, method: str, path: str, *, encoded: bool = False, **options: Any) -> EngineAnswer:  # noqa: ANN401
        if self._session is None:
            raise RuntimeError("an EngineClient is used inside `async with`")
        try:
            response = await self._session.request(
                method, URL(self.url + path, encoded=encoded), allow_redirects=False, **options
            )
        except (aiohttp.ClientError, OSError) as error:
            raise _told(error, self.url) from error
        return EngineAnswer(self.url, response)


def _told(error: Exception, url: str) -> EngineError:
    """The same fault in our words. A TimeoutError is an OSError, so the order matters."""
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return EngineUnreachableError(f"engine {url} cannot be reached")
    if isinstance(error, TimeoutError):
        return EngineTimeoutError(f"engine {url} was silent for too long")
    return EngineBrokenError(f"engine {url} broke off")


async def served_model(client: EngineClient, wanted: str | None) -> str:
    """Return `wanted`, or the first model that the endpoint serves; an InputError where nobody answers."""
    try:
        served = [str(model["id"]) for model in await client.models()]
    except EngineError as error:
        raise InputError(
            str(error),
            source="--url",
            hint="start one with `lengthwise engine` or `lengthwise serve`, or mend the URL",
        ) from error
    if wanted is None and not served:
        raise InputError(f"{client.url} serves no model", source="--url", hint="name one with --model")
    return served[0] if wanted is None else wanted
