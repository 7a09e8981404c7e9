"""Bad requests get an error in OpenAI's format, with the right status."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from lengthwise.cli.model_options import validated
from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig
from lengthwise.gateway.bodies import CompletionBody
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import ADMIN, CHAT, PLAIN, body, gateway, metric, post, until_true, until_waiting

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def gateway_url() -> Iterator[str]:
    """One gateway for all bad requests; none of them reaches its engine."""
    engine = StandIn()
    with served(engine.app()) as engine_url, gateway(engine_url) as url:
        yield url
    assert not engine.bodies


@pytest.mark.parametrize(
    ("method", "path", "data", "status", "param"),
    [
        ("POST", PLAIN, b"", 400, None),
        ("POST", PLAIN, b"{not json", 400, None),
        ("POST", PLAIN, b"\xff\xfe", 400, None),
        ("POST", PLAIN, b"[1, 2]", 400, None),
        ("POST", PLAIN, b'{"max_tokens": "many"}', 400, "max_tokens"),
        ("POST", PLAIN, b'{"max_tokens": -1}', 400, "max_tokens"),
        ("POST", PLAIN, b'{"priority": "high"}', 400, "priority"),
        ("POST", PLAIN, b'{"stream": []}', 400, "stream"),
        ("POST", PLAIN, b'{"nvext": {"agent_hints": {"osl": -3}}}', 400, "nvext.agent_hints.osl"),
        ("POST", PLAIN, b'{"vllm_xargs": {"expected_tokens": NaN}}', 400, "vllm_xargs.expected_tokens"),
        ("POST", CHAT, b'{"model": "m"}', 400, "messages"),
        ("POST", CHAT, b'{"messages": "hi"}', 400, "messages"),
        ("POST", "/nothing", b"{}", 404, None),
        ("GET", CHAT, None, 405, None),
        ("DELETE", "/lengthwise/v1/policy", None, 405, None),
        ("POST", "/lengthwise/v1/policy", b'{"policy": "fastest"}', 400, "policy"),
        ("POST", "/lengthwise/v1/policy", b"fcfs", 400, "policy"),
    ],
)
async def test_a_bad_request_gets_an_error_that_names_the_parameter(
    http: aiohttp.ClientSession, gateway_url: str, method: str, path: str, data: Any, status: int, param: Any
) -> None:
    async with http.request(method, gateway_url + path, data=data, headers=ADMIN) as response:
        assert response.status == status
        error = (await response.json())["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert error["message"]
        assert status != 405 or "GET" in response.headers["allow"] or "POST" in response.headers["allow"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_413(http: aiohttp.ClientSession, engine_url: str, chunked: bool) -> None:
    async def pieces() -> Any:
        for _ in range(20):
            yield b"x" * 100

    with gateway(engine_url, max_body_bytes=1000) as url:
        async with http.post(url + PLAIN, data=pieces() if chunked else b"x" * 2000) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "body_too_large"


async def test_a_full_queue_refuses_with_429_and_retry_after(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, in_flight=1, max_waiting=1) as url:
        first = asyncio.create_task(post(http, url, body("runs")))
        await until_true(lambda: engine.running == 1)
        second = asyncio.create_task(post(http, url, body("waits")))
        await until_waiting(http, url, 1)
        async with http.post(url + PLAIN, json=body("too many")) as response:
            assert (response.status, response.headers["retry-after"]) == (429, "1")
            assert (await response.json())["error"]["type"] == "rate_limit_error"
        engine.gate.set()
        assert (await first)[0] == (await second)[0] == 200
        refused = 'lengthwise_requests_total{endpoint="/v1/completions",outcome="refused"}'
        assert await metric(http, url, refused) == 1


async def test_requests_that_arrive_at_once_do_not_exceed_the_limit_of_the_queue(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, in_flight=1, max_waiting=3) as url:
        calls = [asyncio.create_task(post(http, url, body(str(number)))) for number in range(12)]
        await until_true(lambda: sum(call.done() for call in calls) == 8)
        engine.gate.set()
        statuses = [status for status, _ in await asyncio.gather(*calls)]
    assert sorted(statuses) == [200] * 4 + [429] * 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"policy": "sjff"}, "did you mean sjf"),
        ({"engines": ("127.0.0.1:8000",)}, "is not the URL of an engine"),
        ({"engines": ("http://a", "http://a/v1")}, "an engine is given twice"),
        ({"engines": ("http://a", "http://user:password@a")}, "an engine is given twice"),
        ({"engines": ()}, "--engine"),
        ({"in_flight": 0}, "--in-flight: '0' is not valid"),
        ({"port": 70000}, "--port"),
        ({"silence_timeout_s": 0}, "--silence-timeout-s"),
    ],
)
def test_an_invalid_setting_is_named_as_an_option_of_the_command_line(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        validated(GatewayConfig, **{"engines": ("http://127.0.0.1:8000",), **flags})


async def test_no_answer_redirects_to_the_host_that_a_client_names(
    http: aiohttp.ClientSession, engine_url: str
) -> None:
    with gateway(engine_url) as url:
        for path in ("/health/", "/metrics/", "/lengthwise/v1/predict/"):
            async with http.get(url + path, headers={"host": "evil.example"}, allow_redirects=False) as response:
                assert response.status in (403, 404)
                assert "location" not in response.headers


async def test_names_that_stay_in_memory_are_limited(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    user = "u" * 100_000
    assert CompletionBody(user=user).job("a", 0.0, {}).tenant == "u" * 256
    with gateway(engine_url) as url:
        status, answer = await post(http, url, body(model="m" * 5000))
        assert (status, answer["error"]["param"]) == (400, "model")
        assert (await post(http, url, body(user)))[0] == 200
    assert engine.bodies[0]["user"] == user
