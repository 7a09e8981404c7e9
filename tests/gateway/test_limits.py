"""Limits on connections and on the bytes that the gateway holds, in a real server process."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Iterator

import aiohttp
import pytest

from tests.cli.test_serve import complete, serving
from tests.gateway.engine import StandIn, served, wait_for
from tests.gateway.helpers import PLAIN, body, gateway, post, until_true

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
        wait_for(lambda: stand_in.aborted == 1, timeout_s=20)
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
    with gateway(engine_url, max_held_bytes=1500) as url:
        first = asyncio.create_task(post(http, url, body(prompt="x" * 800)))
        await until_true(lambda: engine.running == 1)
        status, refused = await post(http, url, body(prompt="x" * 800))
        assert (status, refused["error"]["code"]) == (503, "bodies_full")
        assert (await post(http, url, body(prompt="x" * 2000)))[0] == 413
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
        async with http.post(url + "/lengthwise/v1/policy", data=b" " * (1 << 17)) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (413, "body_too_large")
        async with http.post(url + PLAIN, data=io.BytesIO(b"{" + b" " * (2 << 20))) as response:
            assert response.status == 400
    assert len(engine.raw[0]) > 3 << 20


@pytest.mark.anyio
@pytest.mark.parametrize("path", [PLAIN, "/v1/embeddings"])
async def test_a_body_of_too_many_elements_is_413_and_a_long_text_is_not(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, path: str
) -> None:
    with gateway(engine_url) as url:
        for content, status in [([1] * (1 << 20), 413), ([1] * (1 << 19), 200), ("a, b: " * (1 << 18), 200)]:
            sent = json.dumps({"model": "stand-in", "prompt": "x", "input": content, "max_tokens": 1}).encode()
            async with http.post(url + path, data=io.BytesIO(sent)) as response:
                assert response.status == status
