"""HTTP/1.1 connections to one server, as bytes: a request in, the head of its answer and its body as they arrive.

It does what a gateway needs of a client and no more (no redirects, cookies, proxies or decompression), at about a third
of the CPU time of a general client library. Parsing is llhttp's (httptools).
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

Headers = Iterable[tuple[bytes, bytes]]

_MAX_BUFFERED: Final = 1 << 18  # bytes of an answer that is not read; then the connection is not read either
_MAX_HEAD: Final = 1 << 18  # bytes of the head of an answer
_MAX_WHOLE: Final = 1 << 28  # bytes of an answer that is read in one piece: it is held in memory
_SMALL_BODY: Final = 1 << 16  # sent together with the head
_TIMER_S: Final = 0.01  # event loops round the times of their timers
_UNSAFE: Final = re.compile(rb"[\x00-\x20\x7f]")


class NotConnectedError(ConnectionError):
    """There is no connection: the server has not received the request."""


class ConnectionLostError(ConnectionError):
    """The connection ended before the answer was complete, or the answer is not HTTP."""


class Response:
    """The answer to one request. `release` is called at the end in any case."""

    __slots__ = (
        "_connection",
        "_ended",
        "_error",
        "_size",
        "_waiter",
        "deadline",
        "headers",
        "parts",
        "reused",
        "seen",
        "status",
    )

    def __init__(self, connection: HttpConnection, *, reused: bool) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self.deadline = math.inf
        """When it fails with TimeoutError, unless this is set to infinity before; on the loop's clock."""
        self.reused = reused
        """Whether the connection had been used before."""
        self.seen = False
        """Whether a byte of it has arrived."""
        self.parts: list[bytes] = []
        self._connection = connection
        self._size = 0
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Wait for status and headers."""
        while not self.status:
            await self._more()

    async def chunk(self) -> bytes:
        """Return the next bytes of the body as soon as they arrive; empty at the end."""
        while not self.parts:
            if self._ended:
                return b""
            await self._more()
        return self._take()

    async def read(self) -> bytes:
        """Return the rest of the body; ConnectionLostError if it is larger than 256 MiB."""
        kept = [self._take()]  # before waiting: reading may be paused
        size = len(kept[0])
        while not self._ended:
            await self._more()
            kept.append(self._take())
            size += len(kept[-1])
            if size > _MAX_WHOLE:
                raise ConnectionLostError("the answer is too large")
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def release(self) -> None:
        """Reuse the connection if the answer is complete, else close it, which aborts the request."""
        self._connection.release(self, complete=self._ended)

    def add(self, data: bytes) -> bool:
        """Append to the body; return whether too much of it is unread."""
        self.parts.append(data)
        self._size += len(data)
        return self._size > _MAX_BUFFERED

    def wake(self, *, ended: bool = False, error: Exception | None = None) -> None:
        """Wake the reader: more bytes, or the end, have arrived."""
        self._ended = self._ended or ended
        self._error = self._error or error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def heard_at(self) -> float:
        """When its last byte arrived, or now while it is not read; on the loop's clock."""
        return self._connection.heard_at

    @property
    def ended(self) -> bool:
        """Whether all of it has arrived."""
        return self._ended

    def _more(self) -> asyncio.Future[None]:
        """Return a future that is done when more bytes, or the end, have arrived."""
        if self._error is not None:
            raise self._error
        self._waiter = self._connection.loop.create_future()
        return self._waiter

    def _take(self) -> bytes:
        parts, self.parts, self._size = self.parts, [], 0
        self._connection.resume()
        return parts[0] if len(parts) == 1 else b"".join(parts)


class HttpConnection(asyncio.Protocol):
    """One connection, for one request at a time."""

    def __init__(self, pool: HttpPool) -> None:
        self.idle_since = 0.0
        self._lost = False
        self._aborted = False
        self._pool = pool
        self.loop = pool.loop
        self._transport: Any = None
        self._parser = HttpResponseParser(self)
        self._answer: Response | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._used = False
        self._bodyless = False
        self._keep = True
        self._paused = False
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, head: bytes, body: bytes, *, bodyless: bool, limit_s: float = math.inf) -> Response:
        """Send a request; `bodyless` if its answer has no body, whatever its headers say (HEAD)."""
        self._answer = answer = Response(self, reused=self._used)
        self._used = True
        self._bodyless = bodyless
        self._headers = []
        self._head_bytes = 0
        self._last = self.loop.time()
        answer.deadline = self._last + limit_s
        self._check_at(min(self._last + self._pool.silence_timeout_s, answer.deadline))
        if len(body) < _SMALL_BODY:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        return answer

    def release(self, answer: Response, *, complete: bool) -> None:
        """End an exchange."""
        if answer is not self._answer:
            return
        self._answer = None
        self.resume()
        if complete and self._keep and self.usable:
            self._pool.put(self)
        else:
            self.abort()

    @property
    def heard_at(self) -> float:
        """When the last byte arrived, or a request was sent; now while reading is paused."""
        return self.loop.time() if self._paused else self._last

    @property
    def usable(self) -> bool:
        """Whether a request can be sent on it."""
        return not (self._lost or self._transport.is_closing())

    def abort(self) -> None:
        """Close the connection at once."""
        self._aborted = True
        self._pool.forget(self)
        self._transport.abort()

    def resume(self) -> None:
        """Read on after a pause."""
        if self._paused:
            self._paused = False
            self._last = self.loop.time()
            self._transport.resume_reading()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the answer."""
        answer = self._answer
        if answer is None:  # a server that sends without a request
            self.abort()
            return
        answer.seen = True
        self._last = self.loop.time()
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._keep = False
            if not answer.ended:
                answer.wake(error=ConnectionLostError("the answer is not HTTP"))
            return
        if answer.status:
            answer.wake()
            return
        self._head_bytes += len(data)
        if self._head_bytes > _MAX_HEAD:
            answer.wake(error=ConnectionLostError("the head of the answer is too large"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: well if its body ends with the connection."""
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._pool.forget(self)
        answer = self._answer
        if answer is not None and not answer.ended:
            if exc is None and not self._aborted and answer.status and not _is_delimited(answer.headers):
                answer.wake(ended=True)
            else:
                answer.wake(error=ConnectionLostError("the connection ended"))

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """Start an answer; one that was not asked for ends the reuse of the connection."""
        if self._answer is None or self._answer.ended:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; trailers are not used."""
        if self._answer is not None and not self._answer.status:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the head; one of 1xx only announces another."""
        answer, status = self._answer, self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if status < 200 or answer is None or answer.status:
            return
        if status >= 600:  # no status that may be sent on
            answer.wake(error=ConnectionLostError(f"status {status}"))
            return
        answer.headers, answer.status = headers, status
        if self._bodyless:  # the parser would wait for a body
            self._keep = False
            answer.wake(ended=True)

    def on_body(self, body: bytes) -> None:
        """Take bytes of the body; stop reading if too many are waiting."""
        answer = self._answer
        if answer is not None and not answer.ended and answer.add(body) and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """End the answer."""
        if self._answer is not None and self._answer.status and not self._answer.ended:
            self._keep = self._keep and self._parser.should_keep_alive()
            self._answer.wake(ended=True)

    def _check_at(self, when: float) -> None:
        """Check the limits of time then. A timer that ends earlier stays: most requests need none of their own."""
        if self._timer is not None and self._timer.when() > when:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(when, self._check_limits)

    def _check_limits(self) -> None:
        self._timer = None
        answer = self._answer
        if answer is None or answer.ended:
            return
        now = self.loop.time()
        if self._paused:
            self._last = now
        until = min(self._last + self._pool.silence_timeout_s, answer.deadline)
        if now >= until - _TIMER_S:
            answer.wake(error=TimeoutError())
        else:
            self._check_at(until)


def _is_delimited(headers: Headers) -> bool:
    """Whether the head says where the body ends."""
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)


class HttpPool:
    """Connections to the server of a URL (http or https). Made and used in one event loop."""

    def __init__(self, url: str, *, connect_timeout_s: float, silence_timeout_s: float, idle_s: float) -> None:
        """`idle_s`: how long an idle connection is kept."""
        parts = urlsplit(url)
        self.loop = asyncio.get_running_loop()
        self.silence_timeout_s = silence_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.encode()
        server = parts.netloc.rpartition("@")[2]
        self._line = b" HTTP/1.1\r\nHost: " + server.encode("ascii" if server.isascii() else "idna")
        self._idle: list[HttpConnection] = []
        self._connections: set[HttpConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> int:
        """Connections with a request."""
        return len(self._connections) - len(self._idle)

    async def request(
        self,
        method: str,
        path: bytes,
        headers: Headers,
        body: bytes | None,
        *,
        fresh: bool = False,
        limit_s: float = math.inf,
    ) -> Response:
        """Send a request and return its answer, whose head has not arrived; `fresh` on a new connection.

        The answer has a deadline `limit_s` after it is sent, which the caller may lift.
        Raises NotConnectedError. The caller awaits `head` and calls `release`.
        """
        head = self._head(method, path, headers, body)
        connection = None if fresh else self._take()
        if connection is None:
            connection = await self._connect()
            if not connection.usable:  # the server has closed it already
                connection.abort()
                raise ConnectionLostError("the connection ended")
        return connection.send(head, body or b"", bodyless=method == "HEAD", limit_s=limit_s)

    def close(self) -> None:
        """Close all connections; answers that are being read fail with ConnectionLostError."""
        for connection in list(self._connections):
            connection.abort()
        if self._sweep is not None:
            self._sweep.cancel()

    def put(self, connection: HttpConnection) -> None:
        """Take a connection back."""
        if self._idle_s <= 0:
            connection.abort()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self.loop.call_later(self._idle_s, self._close_idle)

    def forget(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _head(self, method: str, path: bytes, headers: Headers, body: bytes | None) -> bytes:
        target = self._prefix + path
        if _UNSAFE.search(target):
            target = _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], target)
        lines = [method.encode() + b" " + target + self._line, *[b"%b: %b" % header for header in headers]]
        if body is not None or method in ("POST", "PUT", "PATCH"):
            lines.append(b"Content-Length: %d" % len(body or b""))
        head = b"\r\n".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):  # the first has two lines
            raise ValueError("a header contains a line break")
        return head + b"\r\n\r\n"

    def _take(self) -> HttpConnection | None:
        """Return the connection used last, if any is fresh enough."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and self.loop.time() - connection.idle_since < self._idle_s:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> HttpConnection:
        make: Callable[[], HttpConnection] = lambda: HttpConnection(self)  # noqa: E731
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self.loop.create_connection(make, self._host, self._port, ssl=self._tls)
        except OSError as error:  # TimeoutError and ssl.SSLError are OSErrors
            raise NotConnectedError(str(error)) from error
        self._connections.add(connection)
        return connection

    def _close_idle(self) -> None:
        now, self._sweep = self.loop.time(), None
        for connection in list(self._idle):
            if now - connection.idle_since >= self._idle_s:
                connection.abort()
        if self._idle:
            self._sweep = self.loop.call_later(self._idle[0].idle_since + self._idle_s - now, self._close_idle)
