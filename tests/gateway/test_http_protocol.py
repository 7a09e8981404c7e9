"""A client's connection with simulated time: its timeouts, and answers that are sent in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from lengthwise.gateway.http_protocol import ConnectionLimits, LimitedProtocol, OpenConnections
from lengthwise.gateway.streaming import CONNECTION

pytestmark = pytest.mark.anyio

REQUEST = b"POST /%d HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n{}"
KEEP_ALIVE_S = 75
LIMITS = ConnectionLimits(header_timeout_s=10.0, body_timeout_s=60.0)


class Timer:
    def __init__(self, when: float, act: Callable[[], None]) -> None:
        self.when, self.act = when, act
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop with simulated time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, act))
        return self.timers[-1]

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [t for t in self.timers if not t.cancelled and t.when <= end]:
            first = min(due, key=lambda timer: timer.when)
            self.timers.remove(first)
            self.now = max(self.now, first.when)
            first.act()
        self.now = end


class Transport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = self.aborted = False
        self.unread = 0

    def get_extra_info(self, _: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    """A connection to an application that answers with the path, in one write if possible."""

    def __init__(self, headers: list[tuple[bytes, bytes]] | None = None, limits: ConnectionLimits = LIMITS) -> None:
        self.loop, self.transport = Loop(), Transport()
        self.gate = asyncio.Event()
        self.gate.set()
        self.sent_whole: list[bool] = []
        self.leaves = False
        self.received: list[tuple[bytes, bytes]] = []
        self._headers = headers or []
        config = uvicorn.Config(
            self.app, ws="none", interface="asgi3", log_config=None, timeout_keep_alive=KEEP_ALIVE_S
        )
        config.load()
        loop: Any = self.loop
        self.protocol = LimitedProtocol(config, ServerState(), {}, loop, limits=limits)
        transport: Any = self.transport
        self.protocol.connection_made(transport)

    async def app(self, scope: Any, _receive: Any, _send: Any) -> None:
        await self.gate.wait()
        if self.leaves:
            return
        self.received = scope["headers"]
        body = scope["path"].encode()
        headers = [*self._headers, (b"content-length", b"%d" % len(body))]
        self.sent_whole.append(scope["extensions"][CONNECTION].send_whole(200, headers, body))

    async def receive(self, data: bytes, answers: int) -> None:
        self.protocol.data_received(data)
        await self.run()
        assert len(self.sent_whole) == answers

    async def run(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)


async def test_a_connection_is_closed_after_it_was_idle_for_the_keep_alive_time() -> None:
    connection = Connection()
    for number in range(3):
        await connection.receive(REQUEST % number, number + 1)
        connection.loop.advance(KEEP_ALIVE_S - 1)
        assert not connection.transport.is_closing()
    connection.loop.advance(2)
    assert connection.transport.is_closing()
    assert [write.partition(b"\r\n\r\n")[2] for write in connection.transport.writes] == [b"/0", b"/1", b"/2"]


async def test_many_requests_share_one_timer() -> None:
    connection = Connection()
    for number in range(100):
        await connection.receive(REQUEST % number, number + 1)
        connection.loop.advance(0.001)
    assert len(connection.loop.timers) == 1


async def test_after_a_pause_the_next_head_has_the_whole_header_timeout() -> None:
    connection = Connection()
    await connection.receive(REQUEST % 0, 1)
    connection.loop.advance(60)
    connection.protocol.data_received(b"POST /1 HTTP/1.1\r\n")
    connection.loop.advance(9)
    assert not connection.transport.is_closing()
    connection.loop.advance(2)
    assert connection.transport.is_closing()
    assert connection.transport.writes[-1].startswith(b"HTTP/1.1 408")


async def test_pipelined_requests_are_answered_in_order() -> None:
    connection = Connection()
    connection.gate.clear()
    connection.protocol.data_received(b"".join(REQUEST % number for number in range(3)))
    connection.gate.set()
    await connection.receive(b"", 3)
    assert [write[-2:] for write in connection.transport.writes] == [b"/0", b"/1", b"/2"]


async def test_a_connection_with_connection_close_is_closed_after_its_answer() -> None:
    connection = Connection()
    await connection.receive((REQUEST % 0).replace(b"host: g", b"connection: close"), 1)
    assert b"\r\nconnection: close\r\n" in connection.transport.writes[0]
    assert connection.transport.is_closing()


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\rb"])
async def test_a_header_with_a_line_break_is_not_sent(value: bytes) -> None:
    connection = Connection([(b"x-engine", value)])
    await connection.receive(REQUEST % 0, 1)
    assert connection.sent_whole == [False]
    assert not any(value in write for write in connection.transport.writes)


async def test_an_answer_is_not_sent_in_one_write_while_the_client_does_not_read() -> None:
    connection = Connection()
    connection.gate.clear()
    connection.protocol.data_received(REQUEST % 0)
    connection.protocol.pause_writing()
    connection.gate.set()
    await connection.receive(b"", 1)
    assert connection.sent_whole == [False]


UPGRADE = b"POST /%d HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"POST /0 HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_requests_that_ask_for_an_upgrade_may_be_pipelined() -> None:
    connection = Connection()
    await connection.receive(b"".join(UPGRADE % number for number in range(20)), 20)
    assert [write.partition(b"\r\n\r\n")[2] for write in connection.transport.writes] == [b"/%d" % n for n in range(20)]


async def test_many_pipelined_upgrades_do_not_exceed_the_stack() -> None:
    connection = Connection()
    connection.protocol.data_received(UPGRADE % 0 * 2000)
    assert not connection.transport.is_closing()


async def test_trailers_are_not_headers_of_the_request() -> None:
    connection = Connection()
    await connection.receive(CHUNKED + b"2\r\n{}\r\n0\r\nx-api-key: a\r\nhost: localhost\r\n\r\n", 1)
    assert connection.received == [(b"host", b"g"), (b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize("piece", [b"x: y\r\n", b"x"], ids=["many", "one"])
async def test_trailers_are_limited_like_headers(piece: bytes) -> None:
    connection = Connection()
    connection.gate.clear()
    connection.protocol.data_received(CHUNKED + b"2\r\n{}\r\n0\r\n")
    for _ in range(65):
        connection.protocol.data_received(piece * (1024 // len(piece)))
    assert connection.transport.writes[-1].startswith(b"HTTP/1.1 431")
    assert connection.transport.is_closing()


async def test_a_body_may_arrive_in_any_pieces() -> None:
    connection = Connection(limits=ConnectionLimits(max_header_bytes=64))
    connection.protocol.data_received(CHUNKED)
    for _ in range(100):
        connection.protocol.data_received(b"1\r\n")
        connection.protocol.data_received(b"{")
        connection.protocol.data_received(b"\r\n")
    await connection.receive(b"0\r\n\r\n", 1)
    assert connection.transport.writes[0].startswith(b"HTTP/1.1 200")


async def test_after_a_large_body_the_connection_is_read_on_so_that_its_end_is_noticed() -> None:
    connection = Connection()
    connection.gate.clear()
    head = b"POST /1 HTTP/1.1\r\nhost: g\r\ncontent-length: 200000\r\n\r\n"
    paused = []
    for data in (head + b"a" * 100_000, b"a" * 100_000, REQUEST % 2):
        connection.protocol.data_received(data)
        paused.append(connection.protocol.flow.read_paused)
    # Until the application has read the first half; not after the body; until the pipelined request begins.
    assert paused == [True, False, True]
    connection.gate.set()
    await connection.run()
    assert connection.sent_whole == [True, True]


UPLOAD = b"POST /0 HTTP/1.1\r\nhost: g\r\ncontent-length: 100000000\r\n\r\n"


async def test_an_upload_whose_request_is_answered_is_closed_however_fast_it_is() -> None:
    connection = Connection()
    await connection.receive(UPLOAD, 1)
    for _ in range(8):
        assert not connection.transport.is_closing()
        connection.protocol.data_received(b"a" * (1 << 17))
        connection.loop.advance(0.6)
    connection.loop.advance(0.6)
    assert connection.transport.is_closing()
    assert len(connection.transport.writes) == 1, "the answer, and no other"


async def test_after_the_rest_of_an_answered_upload_the_connection_is_used_on() -> None:
    connection = Connection()
    await connection.receive(UPLOAD.replace(b"100000000", b"200000") + b"a" * 100_000, 1)
    connection.loop.advance(4)
    await connection.receive(b"a" * 100_000, 1)
    connection.loop.advance(8)
    await connection.receive(REQUEST % 1, 2)
    connection.loop.advance(30)
    assert not connection.transport.is_closing()


async def test_no_error_is_sent_inside_an_answer() -> None:
    connection = Connection()
    connection.gate.clear()
    connection.protocol.data_received(REQUEST % 0)
    connection.protocol.cycle.response_started = True
    connection.protocol.data_received(b"not HTTP\r\n\r\n")
    assert connection.transport.is_closing()
    assert not connection.transport.writes


async def test_a_client_that_leaves_pipelined_requests_is_no_failure_of_the_application(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = Connection()
    connection.gate.clear()
    connection.protocol.data_received(REQUEST % 0 + REQUEST % 1)
    connection.transport.close()
    connection.protocol.connection_lost(None)
    connection.leaves = True
    connection.gate.set()
    await connection.run()
    assert not caplog.records


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 5)), max_size=60))
def test_no_address_and_no_network_of_ipv6_has_more_connections_than_it_may(
    steps: list[tuple[bool, int, int]],
) -> None:
    connections = OpenConnections(ConnectionLimits(max_connections=8, max_connections_per_address=3))
    opened: list[tuple[int, str]] = []
    for opens, network, host in steps:
        if not opens and opened:
            connections.remove(opened.pop()[1])
            continue
        address = f"10.0.0.{network}" if network < 2 else f"2001:db8:0:{network}::{host}"
        of_network = sum(number == network for number, _ in opened)
        refused = connections.add(address, 0.0)
        assert (refused is None) == (len(opened) < 8 and of_network < 3)
        if refused is None:
            opened.append((network, address))


def test_an_ipv4_client_of_an_ipv6_socket_counts_by_its_own_address() -> None:
    connections = OpenConnections(ConnectionLimits(max_connections_per_address=1))
    assert connections.add("::ffff:10.0.0.1", 0.0) is None
    assert connections.add("::ffff:10.0.0.2", 0.0) is None
    assert connections.add("::ffff:10.0.0.1", 0.0) is not None


async def test_a_connection_that_closes_with_an_answer_that_nobody_reads_is_cut() -> None:
    connection = Connection()
    connection.transport.unread = 100
    await connection.receive((REQUEST % 0).replace(b"host: g", b"connection: close"), 1)
    assert connection.transport.is_closing()
    connection.loop.advance(2 * LIMITS.header_timeout_s + 1.5 * LIMITS.write_timeout_s)
    assert connection.transport.aborted


async def test_a_client_that_lags_is_cut_unless_it_reads_on() -> None:
    connection = Connection()
    connection.transport.unread = 1000
    connection.protocol.pause_writing()
    for _ in range(8):
        connection.transport.unread -= 10
        connection.loop.advance(0.9 * LIMITS.write_timeout_s)
        assert not connection.transport.aborted
    connection.loop.advance(1.5 * LIMITS.write_timeout_s)
    assert connection.transport.aborted
