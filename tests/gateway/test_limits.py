"""Limits on connections and on the bytes that the gateway holds, in a real server process."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import time
import urllib.request
from collections.abc import Iterator

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lengthwise.gateway.keys import add_key
from tests.cli.test_serve import complete, serving
from tests.gateway.engine import StandIn, served, wait_for
from tests.gateway.helpers import ADMIN, PLAIN, body, gateway, limited_gateway, post, until_true

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\n"


@pytest.fixture(scope="module")
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture(scope="module")
def limited(stand_in: StandIn) -> Iterator[str]:
    times = [f"--{name}-timeout-s=0.5" for name in ("header", "body", "write")]
    with (
        served(stand_in.app()) as engine_url,
        serving("--engine", engine_url, "--max-header-bytes", "4096", "--predictor", "none", *times) as (_, url),
    ):
        yield url


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answer(sock: socket.socket) -> tuple[int, str]:
    """Return the status and the code of the error once the gateway has closed the connection."""
    data = b""
    while more := sock.recv(65536):
        data += more
    head, _, content = data.partition(b"\r\n\r\n")
    assert (b"retry-after: 1" in head) == head.startswith(b"HTTP/1.1 503")
    return int(head.split()[1]), json.loads(content)["error"]["code"]


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
def test_a_large_header_is_431(limited: str, end: bytes) -> None:
    with connect(limited) as sock:
        sock.sendall(HEAD + b"x-large: " + b"x" * 8192 + end)
        assert answer(sock) == (431, "headers_too_large")


def test_an_incomplete_head_is_408(limited: str) -> None:
    with connect(limited) as sock, connect(limited) as silent:
        sock.sendall(HEAD)
        assert answer(sock) == answer(silent) == (408, "request_timeout")


def test_an_incomplete_body_is_408(limited: str) -> None:
    with connect(limited) as sock:
        sock.sendall(HEAD + b"content-length: 100\r\n\r\n{")
        assert answer(sock) == (408, "request_timeout")


def test_a_client_that_never_reads_loses_its_connection_and_its_slot(limited: str, stand_in: StandIn) -> None:
    stand_in.token_s = 1e-6
    with connect(limited) as sock:
        content = json.dumps(body(tokens=10_000_000, stream=True)).encode()
        sock.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(content) + content)
        wait_for(lambda: stand_in.aborted == 1, timeout_s=60)
    stand_in.token_s = 0.0
    assert complete(limited) == 200


def test_connections_beyond_the_limit_are_refused_with_503(stand_in: StandIn) -> None:
    with served(stand_in.app()) as engine_url:
        options = ("--engine", engine_url, "--max-connections", "2", "--predictor", "none")
        with serving(*options) as (_, url):
            with connect(url), connect(url), connect(url) as third:
                assert answer(third) == (503, "too_many_connections")

            def served_again() -> bool:
                with connect(url) as sock:
                    sock.sendall(b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n")
                    return sock.recv(65536).startswith(b"HTTP/1.1 200")

            wait_for(served_again)


@pytest.mark.anyio
async def test_bodies_beyond_the_byte_budget_are_refused_until_others_have_ended(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, max_held_bytes=2500) as url:  # a body, and the text of its prompt
        first = asyncio.create_task(post(http, url, body(prompt="x" * 800)))
        await until_true(lambda: engine.running == 1)
        status, refused = await post(http, url, body(prompt="x" * 800))
        assert (status, refused["error"]["code"]) == (503, "bodies_full")
        assert (await post(http, url, body(prompt="x" * 3000)))[0] == 413
        engine.gate.set()
        assert (await first)[0] == 200
        assert (await post(http, url, body(prompt="x" * 800)))[0] == 200


@pytest.mark.anyio
async def test_a_large_body_is_served_and_one_to_the_policy_endpoint_is_413(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url) as url:
        large = json.dumps(body(prompt="x" * (3 << 20))).encode()
        async with http.post(url + PLAIN, data=io.BytesIO(large)) as response:
            assert response.status == 200
        async with http.post(url + "/lengthwise/v1/policy", data=b" " * (1 << 17), headers=ADMIN) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (413, "body_too_large")
        async with http.post(url + PLAIN, data=io.BytesIO(b"{" + b" " * (2 << 20))) as response:
            assert response.status == 400
    assert len(engine.raw[0]) > 3 << 20


@pytest.mark.anyio
@pytest.mark.parametrize("path", [PLAIN, "/v1/embeddings"])
async def test_a_body_of_too_many_elements_is_400_and_a_million_token_ids_or_a_long_text_are_not(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, path: str
) -> None:
    with gateway(engine_url) as url:
        for content, status in [
            ([1] * (1 << 20), 400),
            ([12345] * 1_000_000, 200),
            ("a, b: [{" * (1 << 18), 200),
            ([{}] * (1 << 16), 400),
            ([{"a": [1]}] * (1 << 12), 200),
        ]:
            field = "prompt" if path == PLAIN else "input"
            sent = json.dumps({"model": "stand-in", field: content, "max_tokens": 1}).encode()
            async with http.post(url + path, data=io.BytesIO(sent)) as response:
                assert response.status == status
                if status == 400:
                    error = (await response.json())["error"]
                    assert (error["code"], error["type"]) == ("body_too_complex", "invalid_request_error")


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def request_bytes(path: str = PLAIN, **fields: object) -> bytes:
    content = json.dumps({"model": "stand-in", "prompt": "x", **fields}).encode()
    head = b"POST %s HTTP/1.1\r\nhost: g\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % (path.encode(), len(content)) + content


def small_window(url: str) -> socket.socket:
    """Return a connection whose unread bytes the system buffers little of."""
    host, port = url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect((host, int(port)))
    return sock


def count(url: str, line: str) -> float:
    with urllib.request.urlopen(url + "/metrics", timeout=20) as response:  # noqa: S310
        for found in response.read().decode().splitlines():
            if found.startswith(line + " "):
                return float(found.rsplit(" ", 1)[1])
    return 0.0


class Large:
    """An engine whose answers in one piece are large."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.answers = 0

    async def answer(self, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse({"data": []})
        self.answers += 1
        return JSONResponse({"choices": [{"text": "x" * self.size}]})


@pytest.fixture(scope="module")
def large() -> Large:
    return Large(8 << 20)


@pytest.fixture(scope="module")
def unread(large: Large, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A gateway with one slot in front of it, and the key of a tenant with one request at once."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    key = add_key(keys, "one", {"concurrency": 1})
    routes = [Route("/{path:path}", large.answer, methods=["GET", "POST"])]
    with (
        served(Starlette(routes=routes)) as engine_url,
        limited_gateway(engine_url, keys=keys, in_flight=1, write_timeout_s=1.0) as url,
    ):
        yield url, key


def with_key(sent: bytes, key: str) -> bytes:
    return sent.replace(b"host: g", b"host: g\r\nauthorization: Bearer " + key.encode())


OK, CANCELLED = (
    f'lengthwise_requests_total{{endpoint="/v1/completions",outcome="{outcome}"}}' for outcome in ("ok", "cancelled")
)


def test_a_tenants_request_lasts_until_its_answer_is_read_and_its_slot_does_not(
    unread: tuple[str, str], large: Large
) -> None:
    url, key = unread
    before, asked = large.answers, with_key(request_bytes(), key)
    with small_window(url) as reader:
        reader.sendall(asked)
        wait_for(lambda: large.answers == before + 1)
        wait_for(lambda: count(url, 'lengthwise_requests_running{engine="engine-0"}') == 0)
        assert count(url, "lengthwise_held_bytes") >= large.size
        with connect(url) as second:
            second.sendall(asked)
            assert second.recv(65536).startswith(b"HTTP/1.1 429"), "its first request is not over"


def test_a_steady_reader_is_not_cut_and_one_that_stops_is_and_that_is_not_ok(
    unread: tuple[str, str], large: Large
) -> None:
    url, key = unread
    asked = with_key(request_bytes(), key)
    wait_for(lambda: count(url, "lengthwise_held_bytes") == 0, timeout_s=30)
    ok, cancelled = count(url, OK), count(url, CANCELLED)
    with small_window(url) as reader:
        reader.sendall(asked)
        data, began = b"", time.monotonic()
        while (elapsed := time.monotonic() - began) < 3:
            if len(data) < large.size / 2 * elapsed / 3:
                data += reader.recv(4096)
            assert count(url, OK) == ok, "it is not over before it is read"
        data += read_all(reader)
    assert len(data.partition(b"\r\n\r\n")[2]) == len(json.dumps({"choices": [{"text": ""}]})) - 2 + large.size
    wait_for(lambda: count(url, OK) == ok + 1)
    with small_window(url) as never:
        never.sendall(asked)
        wait_for(lambda: count(url, CANCELLED) == cancelled + 1, timeout_s=30)
    assert count(url, OK) == ok + 1
    wait_for(lambda: count(url, "lengthwise_held_bytes") == 0)


def test_a_stream_that_is_not_read_frees_its_slot_when_its_engine_has_ended_it_and_can_be_read_later() -> None:
    engine = StandIn()
    with (
        served(engine.app()) as engine_url,
        limited_gateway(engine_url, in_flight=1) as url,
        small_window(url) as late,
    ):
        late.sendall(request_bytes(stream=True, max_tokens=40_000))  # 5 MB, of which the system buffers some
        wait_for(lambda: engine.finished == 1, timeout_s=60)
        assert complete(url) == 200
        assert count(url, OK) == 1, "that of the other client"
        late.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        assert read_all(late).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        wait_for(lambda: count(url, OK) == 2 and count(url, "lengthwise_held_bytes") == 0)


def test_clients_that_never_read_give_their_slots_up_after_seconds() -> None:
    engine = StandIn(token_s=1e-6)
    with (
        served(engine.app()) as engine_url,
        limited_gateway(engine_url, in_flight=2, max_held_bytes=2_000_000, health_interval_s=60.0) as url,
        small_window(url) as one,
        small_window(url) as two,
    ):
        for sock in (one, two):
            sock.sendall(request_bytes(stream=True, max_tokens=10_000_000))
        wait_for(lambda: engine.running == 2)
        began = time.monotonic()
        assert complete(url) == 200
        assert time.monotonic() - began < 45, "not after --write-timeout-s"


def test_connections_of_one_address_are_limited_and_others_are_served(stand_in: StandIn) -> None:
    with (
        served(stand_in.app()) as engine_url,
        limited_gateway(engine_url, max_connections_per_address=2) as url,
        connect(url),
        connect(url),
        connect(url) as third,
        socket.socket() as other,
    ):
        refused = read_all(third)
        assert refused.startswith(b"HTTP/1.1 429")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
        other.bind(("127.0.0.2", 0))
        other.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        other.sendall(b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n")
        assert other.recv(65536).startswith(b"HTTP/1.1 200")
