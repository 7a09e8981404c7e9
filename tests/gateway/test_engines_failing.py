"""Engines that die, hang, refuse and break off: every request ends with the right status."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import aiohttp
import pytest

from tests.gateway.engine import Mode, RawEngine, StandIn, free_port, served
from tests.gateway.helpers import PLAIN, body, gateway, metric, post, until, until_true, until_waiting

pytestmark = pytest.mark.anyio

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\n"


@contextmanager
def engine_process(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the stand-in in a process that a test can kill."""
    process = subprocess.Popen([sys.executable, "-m", "tests.gateway.engine", str(port)])
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


async def is_up(http: aiohttp.ClientSession, url: str) -> bool:
    async with http.get(url + "/ready") as response:
        return response.status == 200


async def test_requests_of_a_killed_engine_wait_and_are_served_after_its_restart(
    http: aiohttp.ClientSession,
) -> None:
    port = free_port()
    with gateway(f"http://127.0.0.1:{port}", hold_timeout_s=20.0) as url:
        with engine_process(port) as process:
            await until(lambda: is_up(http, url))
            assert (await post(http, url, body("before")))[0] == 200
            process.kill()
            process.wait(60)
            waiting = asyncio.create_task(post(http, url, body("meanwhile")))
            await until_waiting(http, url, 1)
            assert not await is_up(http, url)
        with engine_process(port):
            assert (await waiting)[0] == 200
            assert await is_up(http, url)


async def test_a_request_in_a_dying_engine_gets_502_with_the_reason(http: aiohttp.ClientSession) -> None:
    with RawEngine(b"") as engine, gateway(engine.url) as url:
        status, answer = await post(http, url, body())
        assert (status, answer["error"]["code"], answer["error"]["type"]) == (502, "engine_broken", "server_error")
        assert answer["error"]["message"].startswith("engine-0 ")
        assert await metric(http, url, 'lengthwise_engine_failures_total{engine="engine-0",kind="broken"}') == 2, (
            "retried"
        )


async def test_an_incomplete_answer_is_502(http: aiohttp.ClientSession) -> None:
    with RawEngine(b'HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{"choices": [') as engine, gateway(engine.url) as url:
        assert (await post(http, url, body()))[0] == 502


async def test_requests_go_around_an_engine_that_is_down(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with gateway(dead, engine_url, health_interval_s=60.0) as url:
        for n in range(4):
            assert (await post(http, url, body(str(n))))[0] == 200
        assert await metric(http, url, 'lengthwise_engine_up{engine="engine-0"}') == 0
    assert engine.names() == ["0", "1", "2", "3"]


async def test_with_no_engine_up_a_request_gets_503_after_the_hold_timeout(http: aiohttp.ClientSession) -> None:
    with gateway(f"http://127.0.0.1:{free_port()}", hold_timeout_s=0.2) as url:
        status, answer = await post(http, url, body())
        assert (status, answer["error"]["code"]) in [(503, "no_engine"), (502, "engine_unreachable")]
        status, answer = await post(http, url, body())
        assert (status, answer["error"]["code"]) == (503, "no_engine")
        assert (await http.get(url + "/v1/models")).status == 503
        assert (await http.get(url + "/ready")).status == 503


async def test_a_silent_engine_is_504_and_its_request_is_aborted(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.mode = "hang"
    with gateway(engine_url, silence_timeout_s=0.2) as url:
        status, answer = await post(http, url, body())
        assert (status, answer["error"]["code"]) == (504, "engine_timeout")
        await until_true(lambda: engine.aborted == 1)
        assert await is_up(http, url), "a silent engine may only be busy: its health decides"


@pytest.mark.parametrize(("mode", "status"), [("error", 500), ("refuse", 400)])
async def test_an_error_of_the_engine_is_passed_on_unchanged(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, mode: str, status: int
) -> None:
    engine.mode = mode  # type: ignore[assignment]
    with gateway(engine_url) as url:
        assert await post(http, url, body(stream=True)) == (status, {"error": {"message": "its own", "code": status}})
        assert await is_up(http, url)


async def test_a_stream_that_breaks_ends_with_an_error_event(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.mode = "break"
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, json=body(tokens=9, stream=True)) as response:
            *tokens, last = (await response.read()).strip().split(b"\n\n")
        assert len(tokens) == 2
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_broken"
        outcome = 'lengthwise_requests_total{endpoint="/v1/completions",outcome="broken_stream"}'
        assert await metric(http, url, outcome) == 1


@pytest.mark.parametrize("cut", [b'data: {"n":1}\n\ndata: {"n":', b'data: {"n":1}\n', b'data: {"n":1}\r\n\r\nda'])
async def test_the_error_event_is_separate_wherever_the_stream_breaks(http: aiohttp.ClientSession, cut: bytes) -> None:
    with RawEngine(EVENTS + cut) as engine, gateway(engine.url) as url:
        async with http.post(url + PLAIN, json=body(stream=True)) as response:
            lines = [line for line in (await response.read()).splitlines() if line]
    assert [sorted(json.loads(line.removeprefix(b"data: "))) for line in lines] == [["n"], ["error"]]


async def test_an_engine_that_lists_its_models_in_brackets_only_serves_on(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    with RawEngine(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}") as engine:
        engine.models = b"[" * 100_000
        with gateway(engine.url) as url:
            assert (await post(http, url, body()))[0] == 200
    assert not [record for record in caplog.records if record.exc_info], "a failed check, and no failure of the gateway"


async def test_a_stream_that_breaks_before_its_first_byte_is_a_plain_502(http: aiohttp.ClientSession) -> None:
    with RawEngine(EVENTS) as engine, gateway(engine.url) as url:
        assert (await post(http, url, body(stream=True)))[0] == 502


async def test_a_failed_request_frees_its_slot(http: aiohttp.ClientSession) -> None:
    engine = StandIn(mode="break")
    with served(engine.app()) as engine_url, gateway(engine_url, in_flight=1) as url:
        for _ in range(3):
            async with http.post(url + PLAIN, json=body(tokens=9, stream=True)) as response:
                await response.read()
        engine.mode = "ok"
        assert (await post(http, url, body()))[0] == 200


@pytest.mark.parametrize("mode", ["error", "unavailable"])
async def test_an_engine_that_fails_at_once_gets_few_requests(http: aiohttp.ClientSession, mode: Mode) -> None:
    engines = [StandIn(mode=mode), StandIn(token_s=0.002), StandIn(token_s=0.002)]
    with ExitStack() as stack:
        urls = [stack.enter_context(served(engine.app())) for engine in engines]
        url = stack.enter_context(gateway(*urls, breaker_failures=3, breaker_s=600.0))

        async def client() -> None:
            for _ in range(20):
                assert (await post(http, url, body()))[0] == 200

        await asyncio.gather(*(client() for _ in range(6)))
    assert sum(len(engine.bodies) for engine in engines) == 120 + len(engines[0].bodies), "each failure is retried"
    assert len(engines[0].bodies) <= 3 + 5, "three failures in a row, and the requests that ran at the same time"


async def test_an_engine_that_works_again_gets_requests_again(http: aiohttp.ClientSession) -> None:
    bad, good = StandIn(mode="error"), StandIn()
    with served(bad.app()) as one, served(good.app()) as two, gateway(one, two, breaker_s=0.05) as url:
        await asyncio.gather(*(post(http, url, body()) for _ in range(40)))
        failed = len(bad.bodies)
        bad.mode = "ok"

        async def used() -> bool:
            await post(http, url, body())
            return len(bad.bodies) > failed

        await until(used)


async def test_without_another_engine_a_failing_one_is_used(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.mode = "error"
    with gateway(engine_url, breaker_failures=1, breaker_s=600.0) as url:
        assert [(await post(http, url, body()))[0] for _ in range(4)] == [500] * 4
        assert await metric(http, url, 'lengthwise_engine_breaker_open{engine="engine-0"}') == 1
        engine.mode = "ok"
        assert (await post(http, url, body()))[0] == 200
        assert await metric(http, url, 'lengthwise_engine_breaker_open{engine="engine-0"}') == 0


async def test_a_stream_without_a_first_byte_frees_its_slot_before_the_idle_timeout(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.mode = "hang"
    with gateway(engine_url, in_flight=1, first_byte_timeout_s=0.2) as url:
        status, answer = await post(http, url, body(stream=True))
        assert (status, answer["error"]["code"]) == (504, "engine_timeout")
        await until_true(lambda: engine.aborted == 1)
        engine.mode = "ok"
        assert (await post(http, url, body()))[0] == 200


async def test_a_request_on_a_pooled_connection_that_closes_is_sent_once_more(http: aiohttp.ClientSession) -> None:
    answer = b'{"choices": []}'
    reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
    with RawEngine(reply + answer, swallow=True) as engine, gateway(engine.url, health_interval_s=600.0) as url:
        statuses = [(await post(http, url, body(str(n))))[0] for n in range(4)]
        assert statuses == [200] * 4
    assert any(b"POST" in request for request in engine.swallowed)
