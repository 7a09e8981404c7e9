"""Faults of engines and clients under load on a real gateway process; the property of `accounting` holds after each."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.cli.test_reload import serving as reloadable
from tests.cli.test_serve import serving
from tests.gateway.accounting import Ledger, ledger, read_metrics
from tests.gateway.engine import Mode, RawEngine, StandIn, free_port, served, wait_for
from tests.gateway.helpers import ADMIN, PLAIN, TOKEN, until, until_true

pytestmark = pytest.mark.anyio

ENGINES = "/lengthwise/v1/engines"
SLOTS, WAITING = 4, 40
OPTIONS = {
    "predictor": "none",
    "router": "round_robin",
    "in-flight": SLOTS,
    "max-waiting": WAITING,
    "health-interval-s": 0.1,
    "first-byte-timeout-s": 3,
    "silence-timeout-s": 4,
    "header-timeout-s": 2,
    "body-timeout-s": 2,
    "write-timeout-s": 1,
    "breaker-s": 0.2,
    "shutdown-timeout-s": 2,
    "admin-token": TOKEN,
}
GARBAGE = [
    b"",
    b"\x00\xff garbage",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{'not': 1",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\ndata: {\n\ndata: \xff",
    b"HTTP/1.1 999 ?\r\n\r\n",
]


@dataclass
class Front:
    """A gateway process in front of two working engines."""

    url: str
    engines: list[StandIn]

    def answered(self) -> list[str]:
        return [name for engine in self.engines for name in engine.names()]

    @asynccontextmanager
    async def joined_by(self, book: Ledger, engine_url: str) -> AsyncIterator[None]:
        """Add an engine, and remove it at the end."""
        async with book.http.post(
            self.url + ENGINES, json={"url": engine_url, "name": "faulty"}, headers=ADMIN
        ) as response:
            assert response.status == 201
        try:
            yield
        finally:
            async with book.http.delete(f"{self.url}{ENGINES}/faulty", headers=ADMIN) as response:
                assert response.status == 202

            async def gone() -> bool:
                return 'lengthwise_engine_up{engine="faulty"}' not in await read_metrics(book.http, self.url)

            await until(gone)


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    engines = [StandIn(token_s=0.001), StandIn(token_s=0.001)]
    with ExitStack() as stack:
        urls = [stack.enter_context(served(engine.app())) for engine in engines]
        options = [f"--engine={url}" for url in urls] + [f"--{name}={value}" for name, value in OPTIONS.items()]
        _, url = stack.enter_context(serving(*options))
        yield Front(url, engines)


@contextmanager
def engine_process(port: int, token_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """A stand-in as a process, once it answers."""
    command = [sys.executable, "-m", "tests.gateway.engine", str(port), str(token_s)]
    process = subprocess.Popen(command)

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
        return False

    try:
        wait_for(answers, 60)
        yield process
    finally:
        process.kill()
        process.wait(60)


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def request_bytes(name: str, tokens: int, *, stream: bool) -> bytes:
    content = json.dumps({"prompt": "x", "user": name, "max_tokens": tokens, "stream": stream}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n" % len(content) + content


async def test_an_engine_killed_in_mid_stream_and_restarted_loses_no_request(front: Front) -> None:
    port = free_port()
    async with ledger(front.url) as book:
        with engine_process(port, 0.05) as process:
            async with front.joined_by(book, f"http://127.0.0.1:{port}"):
                load = asyncio.create_task(book.load(36, tokens=8))

                async def runs_there() -> bool:
                    metrics = await read_metrics(book.http, front.url)
                    return metrics['lengthwise_engine_answers_open{engine="faulty"}'] > 0

                await until(runs_there)
                process.kill()
                await load
                process.wait(60)
                assert book.count("failed") <= SLOTS, "the requests that ran there"
                with engine_process(port, 0.0):

                    async def up_again() -> bool:
                        metrics = await read_metrics(book.http, front.url)
                        return metrics['lengthwise_engine_up{engine="faulty"}'] == 1

                    await until(up_again, 30)
                    await book.load(12)
        await book.settle()


@pytest.mark.parametrize("mode", ["error", "unavailable", "busy", "refuse", "break"])
async def test_an_engine_that_answers_with_errors_loses_no_request(front: Front, mode: Mode) -> None:
    faulty = StandIn(mode=mode)
    with served(faulty.app()) as url:
        async with ledger(front.url) as book:
            async with front.joined_by(book, url):
                await book.load(36)
            await book.settle(front.answered())
            assert len(faulty.bodies) > 0
            if mode in ("unavailable", "busy"):
                book.assert_all_answered()


async def test_an_engine_that_hangs_loses_no_request(front: Front) -> None:
    for faulty in (StandIn(mode="hang"), StandIn(hang_after=2)):
        with served(faulty.app()) as url:
            async with ledger(front.url) as book:
                async with front.joined_by(book, url):
                    await book.load(24)
                await book.settle(front.answered())
                assert 0 < book.count("failed") <= len(faulty.bodies)
                await until_true(lambda faulty=faulty: faulty.running == 0)  # type: ignore[misc]


async def test_an_engine_that_answers_garbage_loses_no_request(front: Front) -> None:
    async with ledger(front.url) as book:
        for garbage in GARBAGE:
            with RawEngine(garbage) as faulty:
                async with front.joined_by(book, faulty.url):
                    await book.load(8)
        await book.settle(front.answered())


async def test_a_burst_beyond_capacity_is_refused_with_429_and_retry_after(front: Front) -> None:
    holds = 2 * SLOTS + WAITING
    async with ledger(front.url) as book:
        await book.load(5 * holds)
        await book.settle(front.answered())
        assert set(book.statuses) <= {200, 429}
        assert book.count("answered") >= holds
        assert len(book.retry_after) == book.statuses[429] > 0
        assert all(1 <= int(seconds) <= 60 for seconds in book.retry_after)


async def test_requests_cancelled_at_any_time_leave_nothing_behind(front: Front) -> None:
    before = len(front.answered())
    async with ledger(front.url) as book:
        calls = [asyncio.create_task(book.ask(stream=n % 2 == 0, tokens=20)) for n in range(40)]
        for n in range(1, 40, 2):  # those that are not cancelled reach an engine, so that the count of them rises
            await until_true(lambda n=n: len(front.answered()) - before >= n // 2)  # type: ignore[misc]
            calls[n].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await book.settle(front.answered())
        assert book.count("answered") >= 20
    for engine in front.engines:
        await until_true(lambda engine=engine: engine.running == 0)  # type: ignore[misc]


async def test_half_closed_and_reset_connections_leave_nothing_behind(front: Front) -> None:
    def misbehave() -> None:
        for n in range(12):
            with connect(front.url) as sock:
                whole = request_bytes("half", 20, stream=n % 2 == 0)
                sock.sendall(whole if n % 3 else whole[: len(whole) // 2])
                if n % 4 < 2:
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
                else:  # reset: unread data is dropped
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    async with ledger(front.url) as book:
        load = asyncio.create_task(book.load(24))
        await asyncio.to_thread(misbehave)
        await load
        await book.settle()
        book.assert_all_answered()


async def test_slow_clients_do_not_delay_others(front: Front) -> None:
    def write_slowly() -> bytes:
        whole = request_bytes("slow", 3, stream=False)
        with connect(front.url) as sock:
            for start in range(0, len(whole), 40):
                sock.sendall(whole[start : start + 40])
            return sock.recv(65536)

    def never_read(never: socket.socket) -> None:
        never.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        never.sendall(request_bytes("never", 10_000_000, stream=True))

    aborted = sum(engine.aborted for engine in front.engines)
    for engine in front.engines:
        engine.token_s = 1e-6
    async with ledger(front.url) as book:
        with connect(front.url) as never:
            never_read(never)
            assert (await asyncio.to_thread(write_slowly)).startswith(b"HTTP/1.1 200")
            await book.load(24)
            await until_true(lambda: sum(engine.aborted for engine in front.engines) > aborted)
        await book.settle()
        book.assert_all_answered()
    for engine in front.engines:
        engine.token_s = 0.001


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_bodies = st.fixed_dictionaries(
    {"model": st.just("fuzzed") | _json.filter(bool)},  # without a model, any engine would get it
    optional={
        "prompt": _json,
        "stream": _json,
        "max_tokens": st.integers(-1, 1 << 33) | _json,
        "priority": _json,
        "user": _json,
        "n": _json,
        "stream_options": _json,
        "nvext": st.fixed_dictionaries({"agent_hints": st.fixed_dictionaries({"osl": _json}) | _json}) | _json,
        "vllm_xargs": st.fixed_dictionaries({"expected_tokens": _json}) | _json,
    },
)
_heads = st.lists(
    st.tuples(
        st.sampled_from([b"x-session-id", b"x-lengthwise-slo-s", b"x-request-id", b"connection", b"x-other"]),
        st.binary(max_size=30) | st.sampled_from([b"nan", b"-1", b"1e400", b"close, x-other"]),
    ),
    max_size=4,
)


async def test_fuzzed_bodies_hints_and_headers_get_a_valid_answer(front: Front) -> None:
    async def answer(_: object) -> JSONResponse:
        return JSONResponse({"choices": [], "usage": {"completion_tokens": 1}})

    async def models(_: object) -> JSONResponse:
        return JSONResponse({"data": [{"id": "fuzzed"}]})

    routes = [Route("/v1/models", models), Route("/{path:path}", answer, methods=["GET", "POST"])]
    statuses = set()

    @settings(max_examples=80)
    @given(st.sampled_from([PLAIN, "/v1/chat/completions"]), _bodies | st.binary(max_size=60), _heads)
    def exchange(path: str, fuzzed: object, heads: list[tuple[bytes, bytes]]) -> None:
        content = fuzzed if isinstance(fuzzed, bytes) else json.dumps(fuzzed).encode()
        lines = [b"POST %s HTTP/1.1" % path.encode(), b"host: g", b"content-length: %d" % len(content)]
        lines += [name + b": " + value for name, value in heads]
        with connect(front.url) as sock:
            sock.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + content)
            status = sock.recv(65536).split()[1]
            statuses.add(status)
            assert status in (b"200", b"400", b"404", b"408"), "a valid answer or the client's error"

    with served(Starlette(routes=routes)) as url:
        async with ledger(front.url) as book:
            async with front.joined_by(book, url):
                load = asyncio.create_task(book.load(24))
                await asyncio.to_thread(exchange)
                await load
            await book.settle(front.answered())
            book.assert_all_answered()
            assert {b"200", b"400"} <= statuses


async def test_reloads_under_load_lose_nothing(tmp_path: Path) -> None:
    engines = [StandIn(token_s=0.001) for _ in range(3)]
    with ExitStack() as stack:
        urls = [stack.enter_context(served(engine.app())) for engine in engines]
        gateway = stack.enter_context(reloadable(tmp_path, engines=urls[:2], in_flight=SLOTS))
        async with ledger(gateway.url) as book:
            for number, left in enumerate([urls[1:], urls[2:], urls, urls[:2]]):
                load = asyncio.create_task(book.load(24, tokens=10))
                await asyncio.to_thread(gateway.reload, engines=left, in_flight=SLOTS + number % 2)
                await load
            book.assert_all_answered()
            await book.settle(name for engine in engines for name in engine.names())
    assert all(engine.bodies for engine in engines)


async def test_after_sigterm_under_load_the_gateway_is_not_ready_then_every_request_ends(tmp_path: Path) -> None:
    engines = [StandIn(token_s=0.01), StandIn(hang_after=2)]
    with ExitStack() as stack:
        urls = [stack.enter_context(served(engine.app())) for engine in engines]
        times = {"drain_s": 3, "shutdown_timeout_s": 1, "resend": False}  # those that hang stay
        gateway = stack.enter_context(reloadable(tmp_path, engines=urls, in_flight=SLOTS, **times))
        async with ledger(gateway.url) as book:
            load = asyncio.create_task(book.load(24))
            await until_true(lambda: engines[1].hanging == SLOTS)
            gateway.process.send_signal(signal.SIGTERM)

            async def not_ready() -> bool:
                async with book.http.get(gateway.url + "/ready") as response:
                    return response.status == 503

            await until(not_ready)
            late = await book.ask(stream=False)
            assert book.ends[late] == "answered", "requests are accepted while the gateway drains"
            await load
            assert book.count("lost") == 0
            assert book.count("failed") == SLOTS, "the requests that hang"
        assert await asyncio.to_thread(gateway.process.wait, 20) == 0
