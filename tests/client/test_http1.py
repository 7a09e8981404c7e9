"""The HTTP/1.1 client of the gateway, against a server that answers with the test's bytes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.client.http1 import ConnectionLostError, HttpPool, NotConnectedError
from tests.gateway.engine import free_port

pytestmark = pytest.mark.anyio
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def connected(serve: Serve, *, silence_s: float = 10.0, idle_s: float = 10.0) -> AsyncIterator[HttpPool]:
    """A pool of connections to a server that calls `serve` for each connection."""
    served: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.create_task(handle(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/base"
    pool = HttpPool(url, connect_timeout_s=5.0, silence_timeout_s=silence_s, idle_s=idle_s)
    try:
        yield pool
    finally:
        pool.close()
        server.close()
        await asyncio.gather(*served)


async def one_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


def answering(
    *pieces: bytes, close: bool = False, seen: list[bytes] | None = None, connections: list[int] | None = None
) -> Serve:
    """Answer every request of a connection with these pieces, each sent on its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if connections is not None:
            connections.append(1)
        while True:
            request = await one_request(reader)
            if seen is not None:
                seen.append(request)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                return

    return serve


async def exchange(pool: HttpPool, method: str = "POST", body: bytes | None = b"{}") -> tuple[int, bytes]:
    answer = await pool.request(method, b"/x", [(b"A", b"1")], body)
    try:
        await answer.head()
        return answer.status, await answer.read()
    finally:
        answer.release()


async def test_a_request_is_sent_byte_for_byte_with_host_and_length() -> None:
    seen: list[bytes] = []
    async with connected(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", seen=seen)) as pool:
        answer = await pool.request("POST", b"/a b?q=\xff", [(b"X-A", b"1"), (b"x-a", b"\xff")], b"body")
        await answer.head()
        answer.release()
    head, _, body = seen[0].partition(b"\r\n\r\n")
    first, host, *rest = head.split(b"\r\n")
    assert first == b"POST /base/a%20b?q=\xff HTTP/1.1"
    assert host.startswith(b"Host: 127.0.0.1:")
    assert (rest, body) == ([b"X-A: 1", b"x-a: \xff", b"Content-Length: 4"], b"body")


async def test_a_line_break_in_a_header_is_refused() -> None:
    async with connected(answering(b"")) as pool:
        with pytest.raises(ValueError, match="line break"):
            await pool.request("GET", b"/", [(b"a", b"1\r\nb: 2")], None)


BODY = b"data: 1\n\ndata: 2\n\n"
FRAMES = {
    "length": (b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY, False),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n%b\r\n9\r\n%b\r\n0\r\n\r\n"
        % (BODY[:9], BODY[9:]),
        False,
    ),
    "end of connection": (b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n" + BODY, True),
    "continue first": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
        False,
    ),
}


@pytest.mark.parametrize("frame", FRAMES)
@given(cuts=st.lists(st.integers(0, 120), max_size=4))
def test_an_answer_is_the_same_in_any_framing_and_pieces(frame: str, cuts: list[int]) -> None:
    raw, close = FRAMES[frame]
    edges = [0, *sorted(cut % len(raw) for cut in cuts), len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(edges) if a < b]

    async def check() -> None:
        async with connected(answering(*pieces, close=close)) as pool:
            assert await exchange(pool) == (200, BODY)

    asyncio.run(check())


@pytest.mark.parametrize("frame", ["length", "chunked"])
@given(cut=st.floats(0, 0.999))
def test_a_truncated_answer_fails(frame: str, cut: float) -> None:
    raw, _ = FRAMES[frame]

    async def check() -> None:
        async with connected(answering(raw[: int(cut * len(raw))], close=True)) as pool:
            with pytest.raises(ConnectionLostError):
                await exchange(pool)

    asyncio.run(check())


@given(st.binary(min_size=1, max_size=200))
def test_garbage_fails(raw: bytes) -> None:
    async def check() -> None:
        async with connected(answering(b"\x00" + raw, close=True)) as pool:
            with pytest.raises(ConnectionLostError):
                await exchange(pool)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 1000),
        (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 6000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 200),
    ],
    ids=["many headers", "one header", "answers that only announce another"],
)
async def test_a_head_without_end_fails(begin: bytes, more: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await one_request(reader)
        writer.write(begin)
        while True:
            writer.write(more)
            await writer.drain()

    async with connected(serve) as pool:
        with pytest.raises(ConnectionLostError, match="head of the answer is too large"):
            await exchange(pool)
        assert not pool.busy


async def test_an_answer_in_one_piece_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.client.http1._MAX_WHOLE", 1 << 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await one_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b" " * 100_000)
            await writer.drain()

    async with connected(serve) as pool:
        with pytest.raises(ConnectionLostError, match="too large"):
            await exchange(pool)
        assert not pool.busy


async def test_trailers_are_not_kept_as_headers_of_the_next_answer() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n"
    async with connected(answering(chunked)) as pool:
        for _ in range(2):
            answer = await pool.request("GET", b"/x", [], None)
            await answer.head()
            assert await answer.read() == b"{}"
            assert answer.headers == [(b"transfer-encoding", b"chunked")]
            answer.release()


async def test_connections_are_reused_after_complete_answers_only() -> None:
    connections: list[int] = []
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with connected(answering(whole, connections=connections)) as pool:
        for _ in range(3):
            assert await exchange(pool) == (200, b"ok")
        assert len(connections) == 1
        answer = await pool.request("POST", b"/x", [], b"")
        answer.release()  # before its answer arrives
        assert await exchange(pool) == (200, b"ok")
        assert len(connections) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
    ],
)
async def test_a_connection_with_close_or_with_surplus_bytes_is_not_reused(answer: bytes) -> None:
    connections: list[int] = []
    async with connected(answering(answer, connections=connections)) as pool:
        assert [await exchange(pool) for _ in range(2)] == [(200, b"ok")] * 2
    assert len(connections) == 2


async def test_an_idle_connection_is_closed_after_idle_s() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await one_request(reader)
        writer.write(b"HTTP/1.1 204 None\r\n\r\n")
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        ended.set()

    async with connected(serve, idle_s=0.05) as pool:
        assert await exchange(pool) == (204, b"")
        await asyncio.wait_for(ended.wait(), 60)


async def test_a_head_request_has_no_body() -> None:
    async with connected(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")) as pool:
        assert await exchange(pool, "HEAD", None) == (200, b"")


async def test_silence_times_out_also_in_the_middle_of_an_answer() -> None:
    for sent in (b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"):
        async with connected(answering(sent), silence_s=0.05) as pool:
            with pytest.raises(TimeoutError):
                await exchange(pool)


async def test_a_reader_that_pauses_holds_the_server_back_and_loses_nothing() -> None:
    size, sent = 8 << 20, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await one_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async with connected(serve) as pool:
        answer = await pool.request("POST", b"/x", [], b"")
        await answer.head()
        before = -1
        while sent != before:  # until the server makes no progress
            before = sent
            await asyncio.sleep(0.05)
        assert sum(map(len, answer.parts)) < 1 << 20
        assert len(await answer.read()) == size
        answer.release()


async def test_closing_the_pool_fails_open_answers() -> None:
    async with connected(answering(b"HTTP/1.1 200 OK\r\n\r\nfirst")) as pool:
        answer = await pool.request("POST", b"/x", [], b"")
        await answer.head()
        assert await answer.chunk() == b"first"
        pool.close()
        with pytest.raises(ConnectionLostError):
            await answer.chunk()
        answer.release()


async def test_a_refused_connection_is_not_connected() -> None:
    pool = HttpPool(f"http://127.0.0.1:{free_port()}", connect_timeout_s=5.0, silence_timeout_s=1.0, idle_s=1.0)
    with pytest.raises(NotConnectedError):
        await exchange(pool)
