"""Bytes that no HTTP library sends are answered or refused at once, and harm no other request."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.cli.test_serve import serving
from tests.gateway.accounting import ledger
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import ADMIN, TOKEN

BODY: dict[str, Any] = {"model": "stand-in", "prompt": "x", "max_tokens": 3}
CHAT: dict[str, Any] = {"model": "stand-in", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
JSON = json.dumps(BODY).encode()


@pytest.fixture(scope="module")
def gateway_url() -> Iterator[str]:
    engine = StandIn()
    with (
        served(engine.app()) as engine_url,
        serving("--engine", engine_url, "--predictor", "fast", "--admin-token", TOKEN) as (_, url),
    ):
        yield url


def exchange(url: str, data: bytes) -> list[int]:
    """Return the statuses of all answers once the gateway has closed the connection; a hang fails."""
    host, port = url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(data)
        while more := sock.recv(65536):
            received += more
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def request(
    body: bytes | dict[str, Any] = JSON,
    *headers: bytes,
    path: bytes = b"/v1/completions",
    line: bytes = b"POST %s HTTP/1.1",
    closes: bool = True,
) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    own = [b"host: localhost", b"content-length: %d" % len(content), *([b"connection: close"] if closes else [])]
    return b"\r\n".join([line % path, *own, *headers, b"", content])


def chunked(chunks: bytes) -> bytes:
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n" + chunks
    )


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(JSON), JSON)
H2C = (b"connection: close, Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAoAAA")


@pytest.mark.parametrize(
    ("data", "statuses"),
    {
        "a chunked body": (chunked(CHUNK + b"0\r\n\r\n"), [200]),
        "with an extension and trailers": (chunked(CHUNK.replace(b"\r", b";a=b\r", 1) + b"0\r\nx: y\r\n\r\n"), [200]),
        "a chunk without a size": (chunked(b"zz\r\nabc"), [400]),
        "a negative chunk": (chunked(b"-1\r\nabc"), [400]),
        "a chunk beyond 64 bits": (chunked(b"f" * 17 + b"\r\nabc"), [400]),
        "two lengths": (HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", [400]),
        "a length and chunks": (HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", [400]),
        "a negative length": (HEAD + b"content-length: -4\r\n\r\n", [400]),
        "a length beyond 64 bits": (HEAD + b"content-length: " + b"9" * 30 + b"\r\n\r\n", [400]),
        "no length": (b"POST /v1/completions HTTP/1.0\r\n\r\n", [400]),
        "HTTP/1.0": (request(line=b"POST %s HTTP/1.0"), [200]),
        "HTTP/3.7": (request(line=b"POST %s HTTP/3.7"), [400]),
        "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
        "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), [400]),
        "a tunnel": (b"CONNECT evil:443 HTTP/1.1\r\nhost: evil:443\r\n\r\n", [400]),
        "a NUL in a header": (request(JSON, b"x: a\x00b"), [400]),
        "a folded header": (request(JSON, b"x: a\r\n b"), [400]),
        "a bare CR": (request(JSON, b"x: a\rb: c"), [400]),
        "bytes beyond ASCII in headers": (request(JSON, b"x-session-id: \xff", b"x-lengthwise-template: \xfe"), [200]),
        "a long request id": (request(JSON, b"x-request-id: " + b"a" * 50_000), [200]),
        "an empty request id": (request(JSON, b"x-request-id: "), [200]),
        "Expect": (request(JSON, b"expect: 100-continue"), [100, 200]),
        "an unknown expectation": (request(JSON, b"expect: tea"), [200]),
        "pipelined requests": (request(closes=False) * 2 + request(), [200, 200, 200]),
        "HEAD": (b"HEAD /health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n", [200]),
        "OPTIONS": (request(b"", line=b"OPTIONS %s HTTP/1.1"), [405]),
        "an upgrade to HTTP/2 with a body": (request(JSON, *H2C, closes=False), [200]),
        "an upgrade after another request": (request(closes=False) + request(JSON, *H2C, closes=False), [200, 200]),
        "a gzip body": (request(b"\x1f\x8b\x08aaaa", b"content-encoding: gzip"), [400]),
    }.values(),
    ids=str,
)
def test_an_unusual_request_is_answered(gateway_url: str, data: bytes, statuses: list[int]) -> None:
    assert exchange(gateway_url, data) == statuses


def test_a_request_with_an_upgrade_may_arrive_in_pieces(gateway_url: str) -> None:
    host, port = gateway_url.removeprefix("http://").split(":")
    data = request(JSON, *H2C, closes=False)
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), 7):
            sock.sendall(data[start : start + 7])
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


NUMBERS = ("1e308", "-1e308", "NaN", "Infinity", "-5", "9" * 400, "-" + "9" * 400, "1e-320", '"5"', "[1]", "{}", "null")
BODIES: dict[str, list[Any]] = {
    "prompt": [
        [1, 2],
        [-1, 2**70],
        [1.5],
        [True],
        ["a", "b"],
        [[1, 2], [3]],
        [],
        [[]],
        ["a", 1, None],
        None,
        {"a": 1},
        5,
    ],
    "model": ["", " ", "模型", "a\0b", "a\r\nx: y", "m" * 100_000, 5, ["stand-in"], None],
    "stream_options": [None, {}, {"include_usage": False}, {"include_usage": True, "continuous_usage_stats": True}],
    "n": [0, -1, 3, 10**30, "x", [1]],
    "best_of": [5],
    "stream": [True, "yes", 1, None, []],
    "user": [5, "\0", "u" * 100_000],
    "metadata": [{"template": 5}, {"template": "\0" * 1000}, "x", None],
    "nvext": ["x", {}, {"agent_hints": None}, {"agent_hints": []}],
    "vllm_xargs": [None, [], {"length_mu": "x"}],
}
ODD: list[Any] = [None, 5, "x", {}, {"role": 5}, {"role": "user", "content": [None, 5, {"type": 5}]}, {"tool_calls": 5}]
TOOLS: list[Any] = [5, "x", [None], [{}], [{"function": None}], [{"function": {"name": 5}}]]


def bodies() -> Iterator[tuple[bytes, bytes]]:
    """Paths and bodies with values of the wrong type, size or meaning."""
    for number in NUMBERS:
        hints = (f'"nvext": {{"agent_hints": {{"osl": {number}}}}}', f'"vllm_xargs": {{"expected_tokens": {number}}}')
        for field in (*(f'"{name}": {number}' for name in ("max_tokens", "priority", "n", "seed")), *hints):
            yield b"/v1/completions", JSON[:-1] + f", {field}}}".encode()
    for field, values in BODIES.items():
        for value in values:
            yield b"/v1/completions", json.dumps({**BODY, field: value}).encode()
    for path in (b"/v1/chat/completions", b"/v1/messages", b"/lengthwise/v1/predict"):
        for messages in [None, "x", [], *([message] for message in ODD)]:
            yield path, json.dumps({**CHAT, "messages": messages}).encode()
        for tools in TOOLS:
            yield path, json.dumps({**CHAT, "tools": tools}).encode()
    for given in [None, [], *([item] for item in ODD)]:
        yield b"/v1/responses", json.dumps({"model": "stand-in", "input": given, "instructions": 5}).encode()
    for raw in (
        b"",
        b"   ",
        b"null",
        b"[]",
        b"{}",
        b"\xef\xbb\xbf" + JSON,
        JSON + JSON,
        b"[" * 100_000,
        b'{"\\ud800": 1}',
    ):
        yield b"/v1/completions", raw
    yield b"/v1/audio/transcriptions", b"-" * 2000
    for spec in (5, None, "x" * 60_000, "fair(" * 10_000):
        yield b"/lengthwise/v1/policy", json.dumps({"policy": spec}).encode()


@pytest.mark.anyio
async def test_no_value_in_a_body_makes_the_gateway_fail_or_leak(gateway_url: str) -> None:
    async with ledger(gateway_url) as book, aiohttp.ClientSession(gateway_url) as http:
        for path, raw in bodies():
            async with http.post(path.decode(), data=raw, headers=ADMIN) as response:
                answer = await response.read()
                assert response.status in (200, 400, 404, 413), (
                    f"{path!r} {raw[:200]!r}: {response.status} {answer[:200]!r}"
                )
        await http.close()
        await book.load(10)
        book.assert_all_answered()
        await book.settle()
