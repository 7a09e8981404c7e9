"""Limits of a client's connection that uvicorn does not have: size of headers, times to read and write, and a count."""

# ruff: noqa: D102  (overrides of uvicorn's protocol)

from __future__ import annotations

import asyncio
import logging
import math
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.streaming import ON_DISCONNECT, SEND_WHOLE

_log = logging.getLogger(__name__)
_TIMER_S: Final = 0.01  # event loops round the times of their timers
_LOG_EVERY_S: Final = 10.0
_BODY_STEP: Final = 1 << 16  # bytes that renew the time for a body: a steady client is never too slow
_MAX_FILES: Final = 1 << 16
_OTHER_FILES: Final = 64  # the listening socket, logs, the predictor's pipes
_SMALL_ANSWER: Final = 1 << 16  # bytes that are sent together with the head


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one connection, and of their number. Times in seconds."""

    max_header_bytes: int = 64 << 10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    max_connections: int | None = None


def file_limit() -> int:
    """Raise the process's limit of open files as far as it may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _MAX_FILES if soft == resource.RLIM_INFINITY else soft


def most_connections(files: int) -> int:
    """Return the connections that fit into the open files, each with one to an engine."""
    return max(1, (files - _OTHER_FILES) // 2)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits: a connection that exceeds one is answered, if possible, and closed."""

    _next_log = 0.0

    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self.on_disconnect: set[Callable[[], None]] = set()
        self._extensions: dict[str, Any] = {ON_DISCONNECT: self.on_disconnect, SEND_WHOLE: self.send_whole}
        self._active: RequestResponseCycle | None = None
        self._in_head = True
        self._idle = False  # between two requests
        self._head_bytes = 0  # of complete headers
        self._head_pieces = 0  # received since the last complete head or byte of a body
        self._saw_body = False
        self._received = self._unread = b""
        self._body_bytes = 0
        self._read_deadline = math.inf
        self._read_timer: asyncio.TimerHandle | None = None
        self._read_timer_at = math.inf
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self._limits.max_connections
        if most is not None and len(self.connections) > most:
            self._log_full(most)
            self._refuse(ApiError(503, f"{most} connections are open; try again later", code="too_many_connections"))
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        self.resume_writing()
        if self._active is not None and not self._active.response_complete:
            self._active.disconnected = True  # uvicorn marks the last request, which may only be the next one
        super().connection_lost(exc)
        for call in list(self.on_disconnect):
            call()
        self._active = None
        self._extensions = {}

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._head_pieces = 0
        self._wait_for_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers, which uvicorn would add to the headers, are not passed on
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        if self._head_bytes > self._limits.max_header_bytes:
            raise ValueError("the headers are too large")  # the parser stops, and send_400_response answers
        self._body_bytes = self._head_pieces = 0
        self._read_until(self._limits.body_timeout_s, in_head=False)
        super().on_headers_complete()
        self.scope["extensions"] = self._extensions

    def on_body(self, body: bytes) -> None:
        self._saw_body = True
        self._head_pieces = 0
        self._body_bytes += len(body)
        if self._body_bytes >= _BODY_STEP:
            self._body_bytes = 0
            self._read_until(self._limits.body_timeout_s, in_head=False)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._read_deadline = math.inf
        super().on_message_complete()
        if self.cycle is self._active:  # reading stops at a large body, and at a pipelined request until it begins
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Start the next request, or wait for it: as uvicorn does, without a timer for each request."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._read_deadline == math.inf:  # else the rest of the body has to arrive
            self._read_until(self.timeout_keep_alive, in_head=False, idle=True)

    def send_whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send an answer, with its content-length, in one write: half the time of two messages.

        False, and nothing is sent, if it has to be sent by messages.
        """
        cycle = self._active
        if cycle is None or cycle.disconnected or cycle.response_started or self.flow.write_paused:
            return False
        sent = [*self.server_state.default_headers, *headers]
        if not cycle.keep_alive:
            sent.append((b"connection", b"close"))
        head = STATUS_LINE[status] + b"".join([b"%b: %b\r\n" % pair for pair in sent])
        if not head.count(b"\n") == head.count(b"\r") == len(sent) + 1:
            return False  # a header with a line break, which uvicorn refuses
        cycle.response_started = cycle.response_complete = True
        if len(body) < _SMALL_ANSWER:
            self.transport.write(head + b"\r\n" + body)
        else:
            self.transport.write(head + b"\r\n")
            self.transport.write(body)
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def data_received(self, data: bytes) -> None:
        self._saw_body, in_body = False, self._in_body
        self._unread = data
        while self._unread:
            self._received, self._unread = self._unread, b""
            super().data_received(self._received)
        self._received = b""
        # A header or trailer that is not complete reaches no callback: its pieces are counted here.
        if (self._in_head or (in_body and self._in_body)) and not self._saw_body:
            self._head_pieces += len(data)
            if self._head_pieces > self._limits.max_header_bytes:
                self._refuse(self._head_error)

    @property
    def _in_body(self) -> bool:
        return not self._in_head and not self._idle and self._read_deadline < math.inf

    def _should_upgrade(self) -> bool:
        """Return True: uvicorn then leaves the request to `handle_websocket_upgrade`, in place of losing its body."""
        return True

    def handle_websocket_upgrade(self) -> None:
        """Serve a request that asks for another protocol as if it did not: some clients send `Upgrade: h2c` always.

        The parser reads nothing after the head of such a request: another one reads it again, without that header, and
        what follows it.
        """
        upgrade = sys.exception()
        if not isinstance(upgrade, httptools.HttpParserUpgrade) or self.parser.get_method() == b"CONNECT":
            self.send_400_response("Invalid HTTP request received.")
            return
        kept = [name + b": " + value + b"\r\n" for name, value in self.headers if name != b"upgrade"]
        line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        self.parser = httptools.HttpRequestParser(self)
        self._unread = line + b"".join(kept) + b"\r\n" + self._received[upgrade.args[0] :]

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, or whose head is too large, in OpenAI's format."""
        large = self._head_bytes > self._limits.max_header_bytes
        self._refuse(self._head_error if large else ApiError(400, msg, code="invalid_http"))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    @property
    def _head_error(self) -> ApiError:
        most = self._limits.max_header_bytes
        return ApiError(431, f"the headers are larger than {most} bytes", code="headers_too_large")

    def _wait_for_head(self) -> None:
        self._read_until(self._limits.header_timeout_s, in_head=True)

    def _read_until(self, seconds: float, *, in_head: bool, idle: bool = False) -> None:
        """Expect the head, more of the body, or (`idle`) another request within `seconds`.

        A timer that ends earlier stays and is started anew when it ends: most requests then need none of their own.
        For the same reason none ends later than a head that begins now would have to arrive.
        """
        self._in_head, self._idle = in_head, idle
        now = self.loop.time()
        self._read_deadline = now + seconds
        if self._read_timer is not None and self._read_timer_at > self._read_deadline:
            self._read_timer.cancel()
            self._read_timer = None
        if self._read_timer is None:
            self._start_timer(now)

    def _start_timer(self, now: float) -> None:
        self._read_timer_at = min(self._read_deadline, now + self._limits.header_timeout_s)
        self._read_timer = self.loop.call_at(self._read_timer_at, self._check_reading)

    def _check_reading(self) -> None:
        self._read_timer = None
        if self._read_deadline == math.inf:
            return
        if (now := self.loop.time()) < self._read_deadline - _TIMER_S:
            self._start_timer(now)
        elif self._idle:
            self.transport.close()
        elif self._in_head:
            self._on_late_head()
        else:
            self._on_late_body()

    def _on_late_head(self) -> None:
        # `cycle` is None before the first request. An answer that is being sent is not cut.
        if self.cycle is not None and not self.cycle.response_complete:  # type: ignore[redundant-expr]
            self._wait_for_head()
        else:
            self._refuse(ApiError(408, "the headers did not arrive in time", code="request_timeout"))

    def _on_late_body(self) -> None:
        if self.flow.read_paused:  # the gateway has not read what arrived
            self._read_until(self._limits.body_timeout_s, in_head=False)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(ApiError(408, "the body did not arrive in time", code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error in OpenAI's format, unless another answer is being sent, and close the connection."""
        if self.transport.is_closing():
            return
        if self._active is not None and self._active.response_started and not self._active.response_complete:
            self.transport.close()
            return
        headers = {**error.headers, "content-type": "application/json", "content-length": str(len(error.body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "connection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head.encode("latin-1") + error.body)
        self.transport.close()

    def _log_full(self, most: int) -> None:
        if (now := self.loop.time()) >= LimitedProtocol._next_log:
            LimitedProtocol._next_log = now + _LOG_EVERY_S
            _log.warning("%d connections are open, the most allowed; more are refused with 503", most)
