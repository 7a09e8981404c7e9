"""/v1/responses and /v1/messages are predicted and ordered like chat completions, each in its own format."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.gateway.engine import StandIn, served
from tests.gateway.formats import stream_events, whole_answer
from tests.gateway.helpers import CHAT, PLAIN, gateway, metric, until_true, until_waiting
from tests.gateway.test_predictions import events
from tests.predictors.guesses import Guess

pytestmark = pytest.mark.anyio

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def request(path: str, name: str = "a", tokens: int = 3, prompt: str = "hello", **fields: Any) -> dict[str, Any]:
    common: dict[str, Any] = {"model": "stand-in", **fields}
    if path == RESPONSES:
        return common | {"input": prompt, "max_output_tokens": tokens, "user": name}
    turns = [{"role": "user", "content": prompt}]
    if path == MESSAGES:
        return common | {"messages": turns, "max_tokens": tokens, "metadata": {"user_id": name}}
    named = common | {"max_tokens": tokens, "user": name}
    return named | ({"messages": turns} if path == CHAT else {"prompt": prompt})


async def send(http: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    async with http.post(url + path, json=body) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
async def test_body_and_answer_pass_byte_for_byte(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, path: str, stream: bool
) -> None:
    sent = json.dumps(request(path, tokens=4, stream=stream, made_up={"deep": [1.50, None]}), indent=1).encode()
    with gateway(engine_url, predictor="fast", policy="sjf") as url:
        async with http.post(url + path, data=sent) as response:
            assert response.status == 200
            received = await response.read()
    assert engine.raw == [sent]
    opening, each, closing = stream_events(path, 4, "length", "stand-in", usage=False)
    if stream:
        assert received == b"".join([*opening, *each, *closing])
    else:
        assert json.loads(received) == whole_answer(path, 4, "length", "stand-in")


async def test_requests_of_all_apis_wait_in_one_queue_ordered_by_predictions(
    http: aiohttp.ClientSession, guess: Guess
) -> None:
    lengths = {RESPONSES: 700, CHAT: 400, MESSAGES: 20, PLAIN: 90}
    engine = StandIn(lengths=dict.fromkeys(["blocker", *lengths], 1))
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", in_flight=1, predictor="fast") as url:
        engine.gate.clear()
        calls = [asyncio.create_task(send(http, url, RESPONSES, request(RESPONSES, "blocker", 900)))]
        await until_true(lambda: engine.running == 1)
        for n, (path, tokens) in enumerate(lengths.items(), start=1):
            body = request(path, path, 900, f"about {tokens}")
            calls.append(asyncio.create_task(send(http, url, path, body)))
            await until_waiting(http, url, n)
        await events(http, url, answered=4, failed=1)
        engine.gate.set()
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}
        assert engine.names() == ["blocker", MESSAGES, PLAIN, CHAT, RESPONSES]
        await events(http, url, observed=4)  # their lengths are read, each in its own format


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_the_length_of_a_stream_is_learned_without_changing_it(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, path: str, guess: Guess
) -> None:
    engine.lengths["a"] = 5
    with gateway(engine_url, policy="sjf", predictor="fast") as url:
        status, _ = await send(http, url, path, request(path, "a", 900, "about 7", stream=True))
        assert status == 200
        await events(http, url, observed=1)
        assert await metric(http, url, f'lengthwise_requests_total{{endpoint="{path}",outcome="ok"}}') == 1
    assert "stream_options" not in engine.bodies[0]


def parsed(stream: bytes) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for event in stream.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in event.splitlines())
        if lines:
            found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


async def broken(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, path: str
) -> tuple[str, dict[str, Any]]:
    engine.mode = "break"
    with gateway(engine_url) as url:
        status, received = await send(http, url, path, request(path, tokens=9, stream=True))
        assert status == 200
        line = f'lengthwise_requests_total{{endpoint="{path}",outcome="broken_stream"}}'
        assert await metric(http, url, line) == 1
    return parsed(received)[-1]


async def test_a_stream_of_responses_that_breaks_ends_with_a_numbered_error_event(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    name, error = await broken(http, engine, engine_url, RESPONSES)
    assert name == error["type"] == "error"
    assert (error["code"], error["sequence_number"]) == ("engine_broken", 4)
    assert "broke off" in error["message"]


async def test_a_stream_of_messages_that_breaks_ends_with_an_error_event_of_anthropic(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    name, error = await broken(http, engine, engine_url, MESSAGES)
    assert name == error["type"] == "error"
    assert error["error"] == {"type": "api_error", "message": "engine-0 broke off"}


@pytest.mark.parametrize(
    ("body", "status", "kind", "text"),
    [
        (b"{", 400, "invalid_request_error", "the body is not JSON"),
        (b'{"model":"stand-in"}', 400, "invalid_request_error", "messages: Field required"),
        (b'{"model":"other","messages":[]}', 404, "not_found_error", "is not served here"),
        (b'{"messages":[' + b" " * 200 + b"]}", 413, "request_too_large", "larger than 100 bytes"),
    ],
)
async def test_errors_of_messages_have_the_format_of_anthropic(
    http: aiohttp.ClientSession, engine_url: str, body: bytes, status: int, kind: str, text: str
) -> None:
    with gateway(engine_url, max_body_bytes=100) as url:
        async with http.post(url + MESSAGES, data=body) as response:
            assert response.status == status
            error = await response.json()
        async with http.get(url + MESSAGES) as response:
            assert (response.status, (await response.json())["type"]) == (405, "error")
    assert error["type"] == "error"
    assert error["error"]["type"] == kind
    assert text in error["error"]["message"]


async def test_a_full_queue_refuses_messages_with_429_and_retry_after(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, in_flight=1, max_waiting=0) as url:
        running = asyncio.create_task(send(http, url, MESSAGES, request(MESSAGES)))
        await until_true(lambda: engine.running == 1)
        async with http.post(url + MESSAGES, json=request(MESSAGES)) as response:
            assert (response.status, response.headers["retry-after"]) == (429, "1")
            assert (await response.json())["error"]["type"] == "rate_limit_error"
        engine.gate.set()
        assert (await running)[0] == 200
