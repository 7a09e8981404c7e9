"""Limits of a client's connection that uvicorn does not have: size of headers, times to read and write, and counts."""

# ruff: noqa: D102  (overrides of uvicorn's protocol)

from __future__ import annotations

import asyncio
import logging
import math
import resource
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.streaming import CONNECTION

_log = logging.getLogger(__name__)
_TIMER_S: Final = 0.01  # event loops round the times of their timers
_LOG_EVERY_S: Final = 10.0
_BODY_STEP: Final = 1 << 16  # bytes that renew the time for a body: a steady client is never too slow
_LINGER_S: Final = 5.0  # in which a body may still arrive after its answer, as in nginx: closing at once may lose it
_MAX_FILES: Final = 1 << 16
_OTHER_FILES: Final = 64  # the listening socket, logs, the predictor's pipes
_SMALL_ANSWER: Final = 1 << 16  # bytes that are sent together with the head
_MAX_BEHIND: Final = 1 << 14  # unread bytes of an answer beyond those that the system buffers, before its client lags
_LOOK_S: Final = 0.1  # between two looks at a client that lags while an engine waits for it
_STALL_S: Final = 5.0  # in which such a client has to read something
_LOOKS: Final = 4  # at any other client that lags, within its timeout
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)  # of Linux; its counter of acknowledged bytes has this place:
_ACKNOWLEDGED: Final = slice(120, 128)
_AT_ONCE: Final = 64  # TLS connections that are accepted in one turn of the event loop
_FULL_S: Final = 1.0  # until connections are accepted again where the system has no files left
_SUBNET: Final = 64  # bits of an IPv6 address that one client has to itself


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one connection, and of their number. Times in seconds."""

    max_header_bytes: int = 64 << 10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    max_connections: int | None = None
    max_connections_per_address: int | None = None


class OpenConnections:
    """Counts connections from their accept on: all of them, and those of each address; of IPv6, of each /64."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._most = limits.max_connections or math.inf
        self._most_each = limits.max_connections_per_address
        self._all = 0
        self._by_address: Counter[str] = Counter()
        self._next_log = 0.0

    def add(self, host: str | None, now: float) -> ApiError | None:
        """Count a connection; an error, and it is not counted, if there are too many."""
        if self._all >= self._most:
            self._log(now, "%d connections are open, the most allowed; more are refused", self._most)
            return ApiError(503, f"{self._most} connections are open; try again later", code="too_many_connections")
        if self._most_each is not None and host is not None:
            address = _address_of(host)
            if self._by_address[address] >= self._most_each:
                self._log(
                    now, "%s has %d connections, the most of one address; more are refused", address, self._most_each
                )
                message = f"{self._most_each} connections of your address are open; close some"
                return ApiError(429, message, code="too_many_connections")
            self._by_address[address] += 1
        self._all += 1
        return None

    def remove(self, host: str | None) -> None:
        """Count a connection no longer."""
        self._all -= 1
        if self._most_each is not None and host is not None:
            address = _address_of(host)
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def _log(self, now: float, text: str, *values: object) -> None:
        if now >= self._next_log:
            self._next_log = now + _LOG_EVERY_S
            _log.warning(text, *values)


def _address_of(host: str) -> str:
    if ":" not in host:
        return host
    address = ip_address(host.partition("%")[0])
    if not isinstance(address, IPv6Address) or address.ipv4_mapped is not None:
        return str(address)
    return str(IPv6Address(int(address) >> (128 - _SUBNET) << (128 - _SUBNET)))


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

    def __init__(
        self,
        *args: Any,
        limits: ConnectionLimits,
        connections: OpenConnections | None = None,
        counted: bool = False,
        **options: Any,
    ) -> None:
        """`counted`: whether the connection is counted in `connections` since its accept."""
        super().__init__(*args, **options)
        self._limits = limits
        self._open = connections
        self._counted = counted
        self.on_disconnect: set[Callable[[], None]] = set()
        self.behind = False
        """Whether the client has not read what was sent: nor did the system take it."""
        self._extensions: dict[str, Any] = {CONNECTION: self}
        self._active: RequestResponseCycle | None = None
        self._in_head = True
        self._idle = False  # between two requests
        self._lingers = False  # the rest of a body whose request is answered
        self._head_bytes = 0  # of complete headers
        self._head_pieces = 0  # received since the last complete head or byte of a body
        self._saw_body = False
        self._received = self._unread = b""
        self._body_bytes = 0
        self._read_deadline = math.inf
        self._read_timer: asyncio.TimerHandle | None = None
        self._read_timer_at = math.inf
        self._write_timer: asyncio.TimerHandle | None = None
        self._taken = 0  # a number that rises as the client reads
        self._taken_at = 0.0

    @property
    def connected(self) -> bool:
        """Whether the connection has been made: of TLS, its handshake is complete."""
        return self.transport is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_MAX_BEHIND)
        refused = None
        if self._open is not None and not self._counted:
            refused = self._open.add(self._host, self.loop.time())
            self._counted = refused is None
        if refused is not None:
            self._refuse(refused)
        else:
            self._wait_for_head()

    @property
    def _host(self) -> str | None:
        return None if self.client is None else self.client[0]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._open is not None and self._counted:
            self._open.remove(self._host)
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        self._stop_watching()
        if self._active is not None and not self._active.response_complete:
            self._active.disconnected = True  # uvicorn marks the last request, which may only be the next one
        super().connection_lost(exc)
        for call in list(self.on_disconnect):
            call()
        self.behind = False
        self._active = None
        self._extensions = {}

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._lingers = False
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
        if self._body_bytes >= _BODY_STEP and not self._lingers:
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
            self._check_later()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._read_deadline == math.inf:
            self._read_until(self.timeout_keep_alive, in_head=False, idle=True)
        elif not self._in_head:  # the rest of a body that nobody reads, as that of a request without a valid key
            self._lingers = True
            self._read_until(min(_LINGER_S, self._limits.body_timeout_s), in_head=False)

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
        self._complete(cycle)
        return True

    def send_part(self, data: bytes, *, last: bool) -> bool:
        """Send a part of an answer that has begun, also to a client that lags (`catch_up`): no message for each part.

        False, and nothing is sent, if it has to be sent by messages.
        """
        cycle = self._active
        if cycle is None or cycle.response_complete or not cycle.chunked_encoding:
            return False
        if cycle.disconnected:
            return True
        sent = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        if last:
            sent += b"0\r\n\r\n"
        if sent:
            self.transport.write(sent)
        if last:
            cycle.response_complete = True
            self._complete(cycle)
        return True

    def _complete(self, cycle: RequestResponseCycle) -> None:
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    @property
    def unread(self) -> int:
        """Bytes that were sent and that the client has not read, nor the system taken."""
        return self.transport.get_write_buffer_size()

    async def catch_up(self, unread: int) -> None:
        """Wait until at most `unread` bytes are unread. A client that reads nothing for 5 s loses its connection."""
        taken, since = self._count_taken(), self.loop.time()
        while self.behind and self.unread > unread:
            await asyncio.sleep(_LOOK_S)
            now = self.loop.time()
            if (count := self._count_taken()) > taken:
                taken, since = count, now
            elif now - since >= min(_STALL_S, self._limits.write_timeout_s):
                self.transport.abort()

    async def all_read(self) -> None:
        """Wait until the client has read what was sent, but for little; one that stops loses its connection."""
        while self.behind:
            await self.flow.drain()
            await asyncio.sleep(0)  # a connection that ends wakes all that wait, and then cancels them

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
        self.behind = True
        self._watch_writing()

    def resume_writing(self) -> None:
        self.behind = False
        self._stop_watching()
        super().resume_writing()

    def eof_received(self) -> None:
        self._check_later()  # the connection closes once what was sent is read

    def _watch_writing(self) -> None:
        """Close the connection unless the client goes on reading."""
        if self._write_timer is None:
            self._taken, self._taken_at = self._count_taken(), self.loop.time()
            self._look_again()

    def _look_again(self) -> None:
        self._write_timer = self.loop.call_at(
            self.loop.time() + self._limits.write_timeout_s / _LOOKS, self._check_writing
        )

    def _check_writing(self) -> None:
        taken, now = self._count_taken(), self.loop.time()
        if taken > self._taken:
            self._taken, self._taken_at = taken, now
        elif now >= self._taken_at + self._limits.write_timeout_s - _TIMER_S:
            self._write_timer = None
            self.transport.abort()
            return
        self._look_again()

    def _stop_watching(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _count_taken(self) -> int:
        """Return a number that rises as the client reads: what it acknowledges, else less what is unread.

        What is unread falls in steps of up to megabytes, since the system takes more only once it has sent much.
        """
        sock = self.transport.get_extra_info("socket")
        if _TCP_INFO is None or sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return -self.unread
        try:
            info: bytes = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _ACKNOWLEDGED.stop)
        except OSError:  # closed
            return self._taken
        return int.from_bytes(info[_ACKNOWLEDGED], sys.byteorder)

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

    def _check_later(self) -> None:
        """Look after the connection, which closes, once more: its client may read nothing, and then it stays open."""
        if self._read_timer is None:
            self._read_deadline = self.loop.time() + self._limits.header_timeout_s
            self._start_timer(self.loop.time())

    def _start_timer(self, now: float) -> None:
        self._read_timer_at = min(self._read_deadline, now + self._limits.header_timeout_s)
        self._read_timer = self.loop.call_at(self._read_timer_at, self._check_reading)

    def _check_reading(self) -> None:
        self._read_timer = None
        if self.transport.is_closing():
            self._watch_writing()
            return
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


class TlsListener:
    """Accepts TLS connections, and counts them before their handshake: event loops show a connection after it."""

    def __init__(
        self,
        sock: socket.socket,
        tls: ssl.SSLContext,
        make: Callable[[], LimitedProtocol],
        limits: ConnectionLimits,
        connections: OpenConnections,
    ) -> None:
        """`make` returns a protocol that is counted."""
        self._sock = sock
        self._tls = tls
        self._make = make
        self._limits = limits
        self._open = connections
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more, and end the handshakes."""
        self._loop.remove_reader(self._sock)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is left."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no files or memory are left
                _log.warning("no connection is accepted for %g s: %s", _FULL_S, error)
                self._loop.remove_reader(self._sock)
                self._retry = self._loop.call_later(_FULL_S, self._listen)
                return
            host = peer[0] if isinstance(peer, tuple) else None
            if self._open.add(host, self._loop.time()) is not None:
                accepted.close()  # an answer would need the handshake
                continue
            task = self._loop.create_task(self._shake_hands(accepted, host))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, host: str | None) -> None:
        accepted.setblocking(False)
        protocol = self._make()
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.header_timeout_s,
                ssl_shutdown_timeout=_LINGER_S,
            )
        except OSError:  # of TLS, of the connection, or a TimeoutError
            pass
        finally:
            if not protocol.connected:
                self._open.remove(host)
