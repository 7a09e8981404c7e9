"""Any bytes of an engine's answer reach the client unchanged, though the gateway reads them for lengths."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.predictors.service import PredictionService
from tests.gateway.engine import RawEngine
from tests.gateway.helpers import CHAT, gateway
from tests.predictors.guesses import Guess

PASSED = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
ONE_PIECE, STREAM = b"application/json", b"text/event-stream"


@pytest.fixture(scope="module")
def engine() -> Iterator[RawEngine]:
    with RawEngine(b"") as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: RawEngine) -> Iterator[str]:
    """A gateway with a predictor, so that it removes the usage of streams and learns from every length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthwise.gateway.app.prediction_service", lambda _, **__: PredictionService(Guess))
        with gateway(engine.url, predictor="fast", policy="sjf") as url:
            yield url


def answer(engine: RawEngine, url: str, kind: bytes, body: bytes, **fields: Any) -> tuple[int, bytes]:
    """Return the status and the body that a client gets when the engine answers with `body`."""
    engine.reply = PASSED % (kind, len(body)) + body
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    sent = {"messages": [{"role": "user", "content": "7"}], "stream": kind == STREAM, **fields}
    connection.request("POST", CHAT, json.dumps(sent))
    response = connection.getresponse()
    try:
        return response.status, response.read()
    finally:
        connection.close()


def data(event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


WORDS = ["completion_tokens", "prompt_tokens", "usage", "finish_reason", "[DONE]", 'data: {"usage": 1}']
COUNTS = ["null", '"5"', "-3", "2.5", "true", "[]", '{"completion_tokens": 4}', "9" * 400, "9" * 5000, "1e999", "NaN"]


@pytest.mark.parametrize("word", WORDS)
def test_text_that_is_the_name_of_a_measured_field_passes(engine: RawEngine, url: str, word: str) -> None:
    choice = {"index": 0, "delta": {"content": word}}
    stream = data({"choices": [choice]}) + data({"choices": [choice], "usage": None}) + b"data: [DONE]\n\n"
    assert answer(engine, url, STREAM, stream) == (200, stream)
    whole = json.dumps({"choices": [{"message": {"content": word}, "logprobs": {word: word}}]}).encode()
    assert answer(engine, url, ONE_PIECE, whole) == (200, whole)


@pytest.mark.parametrize("count", COUNTS)
def test_an_invalid_token_count_passes(engine: RawEngine, url: str, count: str) -> None:
    usage = f'"usage": {{"prompt_tokens": {count}, "completion_tokens": {count}}}'
    whole = f'{{"choices": [{{"finish_reason": "stop"}}], {usage}}}'.encode()
    assert answer(engine, url, ONE_PIECE, whole) == (200, whole)
    stream = b'data: {"choices": [{"finish_reason": "stop"}], %s}\n\ndata: [DONE]\n\n' % usage.encode()
    assert answer(engine, url, STREAM, stream) == (200, stream)


def test_deeply_nested_json_passes(engine: RawEngine, url: str) -> None:
    deep = b'{"usage": ' + b"[" * 100_000
    assert answer(engine, url, ONE_PIECE, deep) == (200, deep)
    assert answer(engine, url, STREAM, b"data: " + deep) == (200, b"data: " + deep)


@pytest.mark.parametrize("value", ["h\u00e9".encode(), "\U0001f600".encode(), b"\xe9"])
def test_a_header_that_is_not_ascii_passes(engine: RawEngine, url: str, value: bytes) -> None:
    engine.reply = b"HTTP/1.1 200 OK\r\nx-note: %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % value
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request("POST", CHAT, b'{"messages": []}')
    response = connection.getresponse()
    assert (response.status, response.headers["x-note"].encode("latin-1")) == (200, value)
    connection.close()


FRAGMENTS = [
    *(f'"{word}"'.encode() for word in WORDS[:4]),
    *(count.encode() for count in COUNTS),
    *(b"data: ", b"data: [DONE]", b"\n\n", b"\n", b"\r\n", b"\r", b": ", b"{", b"}", b"[", b"]", b",", b"\xff", b"\0"),
    b'{"choices": [{"index": 0, "finish_reason": "stop"}], "usage": ',
]
ANYTHING = st.lists(st.binary(max_size=8) | st.sampled_from(FRAGMENTS), max_size=30).map(b"".join)


@settings(max_examples=150)
@given(ANYTHING, st.sampled_from([ONE_PIECE, STREAM]))
def test_any_bytes_pass_unchanged(engine: RawEngine, url: str, body: bytes, kind: bytes) -> None:
    options = {"stream_options": {"include_usage": True}}  # the client asks for usage: nothing is removed
    assert answer(engine, url, kind, body, **options) == (200, body)


@settings(max_examples=150)
@given(st.lists(ANYTHING, max_size=4), st.integers(0, 4))
def test_only_the_usage_event_is_removed_from_any_stream(
    engine: RawEngine, url: str, parts: list[bytes], place: int
) -> None:
    events = [b"data: " + part.replace(b"usage", b"use") + b"\n\n" for part in parts]
    usage = data({"choices": [], "usage": {"completion_tokens": 3}})
    sent = b"".join([*events[:place], usage, *events[place:]])
    assert answer(engine, url, STREAM, sent) == (200, b"".join(events))


def test_a_line_without_end_is_an_error(engine: RawEngine, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.client.sse.MAX_LINE", 1 << 20)
    event = data({"choices": []})
    status, received = answer(engine, url, STREAM, event + b"data: " + b"x" * (2 << 20))
    assert status == 200
    assert received.startswith(event)
    assert json.loads(received[len(event) :].removeprefix(b"data: "))["error"]["code"] == "engine_broken"
