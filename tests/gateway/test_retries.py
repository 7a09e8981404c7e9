"""Requests that an engine refuses or loses are sent again, within limits; requests that take too long end."""

from __future__ import annotations

import asyncio
import json
import random

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.client.client import EngineClient
from lengthwise.gateway.retries import Retries, retry_after_s
from tests.gateway.engine import Mode, RawEngine, StandIn, served
from tests.gateway.helpers import PLAIN, body, gateway, metric, post, until_true, until_waiting

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\n"


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.sampled_from(["request", "failure"]), st.floats(0, 2)), max_size=300))
def test_retries_of_an_engine_never_exceed_their_share_of_requests_and_the_floor(
    events: list[tuple[str, float]],
) -> None:
    clock = Time()
    retries = Retries(most=2, share=0.1, clock=clock)
    requests = made = 0
    for event, pause_s in events:
        clock.now += pause_s
        if event == "request":
            retries.on_request()
            requests += 1
        else:
            made += retries.wait_s(0) is not None
        assert made <= 10 + 0.1 * requests + 3 * clock.now + 1e-6


def test_all_that_run_on_an_engine_may_move_when_it_fails() -> None:
    retries = Retries(most=2, share=0.0, first=64, clock=Time())
    assert [retries.wait_s(0) is not None for _ in range(65)] == [True] * 64 + [False]


def test_waits_grow_exponentially_with_jitter() -> None:
    retries = Retries(most=3, share=0.1, jitter=random.Random(1))
    waits = [retries.wait_s(n) for n in range(3)]
    assert all(wait is not None and 0 <= wait <= 0.025 * 2**n for n, wait in enumerate(waits))
    assert retries.wait_s(3) is None


@pytest.mark.parametrize(("retry_after", "waits"), [(None, True), (2.0, True), (60.0, False)])
def test_a_long_retry_after_prevents_a_retry(retry_after: float | None, waits: bool) -> None:
    wait_s = Retries(most=1, share=0.0).wait_s(0, retry_after)
    assert (wait_s is not None) == waits
    assert wait_s is None or wait_s >= (retry_after or 0.0)


@pytest.mark.parametrize(("header", "seconds"), [("2", 2.0), ("-1", 0.0), (None, None), ("Wed, 21 Oct 2026", None)])
def test_a_retry_after_header_is_parsed_in_seconds(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header) == seconds


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("mode", "reason"), [("busy", "refused"), ("unavailable", "refused")])
async def test_a_refused_request_is_sent_to_another_engine(
    http: aiohttp.ClientSession, mode: Mode, reason: str, stream: bool
) -> None:
    bad, good = StandIn(mode=mode, retry_after="60"), StandIn()
    with served(bad.app()) as one, served(good.app()) as two, gateway(one, two, router="round_robin") as url:
        for n in range(4):
            async with http.post(url + PLAIN, json=body(str(n), stream=stream)) as response:
                assert response.status == 200
        assert await metric(http, url, f'lengthwise_retries_total{{reason="{reason}"}}') == len(bad.bodies) > 0
    assert sorted(good.names()) == ["0", "1", "2", "3"]


@pytest.mark.anyio
async def test_an_engine_that_sends_retry_after_pauses_while_another_serves_its_requests(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthwise.gateway.dispatch._MAX_PAUSE_S", 600.0)
    full, other = StandIn(mode="busy", retry_after="600"), StandIn()
    with served(full.app()) as one, served(other.app()) as two, gateway(one, two, router="round_robin") as url:
        for n in range(8):
            assert (await post(http, url, body(str(n))))[0] == 200
    assert len(full.bodies) == 1


@pytest.mark.anyio
async def test_a_request_lost_before_the_first_byte_is_sent_to_another_engine(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with RawEngine(EVENTS) as broken, gateway(broken.url, engine_url, router="round_robin") as url:
        for n in range(4):
            async with http.post(url + PLAIN, json=body(str(n), stream=True)) as response:
                assert response.status == 200
        assert await metric(http, url, 'lengthwise_retries_total{reason="broken"}') >= 1
        assert await metric(http, url, 'lengthwise_engine_up{engine="engine-0"}') == 1, (
            "one lost request does not mark an engine as down"
        )
    assert sorted(engine.names()) == ["0", "1", "2", "3"]


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_an_engine_fails_is_sent_to_another_once(
    http: aiohttp.ClientSession, stream: bool
) -> None:
    bad, good = StandIn(mode="error"), StandIn()
    with served(bad.app()) as one, served(good.app()) as two, gateway(one, two, router="round_robin") as url:
        for n in range(12):
            async with http.post(url + PLAIN, json=body(str(n), stream=stream)) as response:
                assert response.status == 200
        assert await metric(http, url, 'lengthwise_retries_total{reason="failed"}') == len(bad.bodies) > 0
        good.mode = "error"
        assert (await post(http, url, body("twice")))[0] == 500
    assert sorted(good.names()) == sorted([*map(str, range(12)), "twice"])


@pytest.mark.anyio
async def test_a_request_that_fails_on_two_engines_opens_the_breaker_of_neither(http: aiohttp.ClientSession) -> None:
    engines = [StandIn(mode="error"), StandIn(mode="error")]
    with (
        served(engines[0].app()) as one,
        served(engines[1].app()) as two,
        gateway(one, two, router="round_robin", breaker_failures=4, breaker_s=600.0) as url,
    ):
        for _ in range(4):
            assert (await post(http, url, body()))[0] == 500
        assert sum(len(engine.bodies) for engine in engines) == 8
        opened = [await metric(http, url, f'lengthwise_engine_breaker_open{{engine="engine-{n}"}}') for n in (0, 1)]
    assert opened == [0, 0], "four failures, of which each engine counts those that it was the first to see"


ONCE = [
    ("/v1/chat/completions", {"messages": [], "store": True}, {}),
    ("/v1/responses", {"input": "x", "store": True}, {}),
    ("/v1/responses", {"input": "x", "background": True}, {}),
    (PLAIN, {"prompt": "x"}, {"resend": False}),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("path", "fields", "options"), ONCE)
async def test_a_request_that_may_be_executed_once_only_is_not_sent_again(
    http: aiohttp.ClientSession, path: str, fields: dict[str, object], options: dict[str, bool]
) -> None:
    bad, good = StandIn(mode="error"), StandIn()
    statuses = []
    with (
        served(bad.app()) as one,
        served(good.app()) as two,
        gateway(one, two, router="round_robin", breaker_failures=99, **options) as url,
    ):
        for _ in range(4):
            async with http.post(url + path, json={"model": "stand-in", **fields}) as response:
                statuses.append(response.status)
    assert sorted(set(statuses)) == [200, 500]
    assert len(bad.bodies) + len(good.bodies) == 4


@pytest.mark.anyio
@pytest.mark.parametrize("resend", [True, False])
async def test_a_request_that_engines_lose_is_executed_at_most_twice(http: aiohttp.ClientSession, resend: bool) -> None:
    with (
        RawEngine(b"") as one,
        RawEngine(b"") as two,
        gateway(one.url, two.url, router="round_robin", health_interval_s=600.0, resend=resend) as url,
    ):
        assert (await post(http, url, body("lost")))[0] == 502
        received = [request for engine in (one, two) for request in engine.answered if b'"lost"' in request]
    assert len(received) == 1 + resend


@pytest.mark.anyio
async def test_an_answer_says_whether_its_request_was_sent_twice() -> None:
    answer = b'{"choices": []}'
    reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
    with RawEngine(reply + answer, swallow=True) as engine:
        async with EngineClient(engine.url) as client:
            resent = []
            for _ in range(2):  # the second one is lost on the connection of the first, which the engine closes
                async with await client.forward("POST", PLAIN, b"{}", []) as received:
                    resent.append(received.resent)
                    await received.read()
    assert resent == [False, True]


@pytest.mark.anyio
async def test_a_request_is_not_retried_after_the_first_byte(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with (
        RawEngine(EVENTS + b'data: {"n":1}\n\n') as broken,
        gateway(broken.url, engine_url, router="round_robin") as url,
    ):
        ends = []
        for n in range(2):
            async with http.post(url + PLAIN, json=body(str(n), stream=True)) as response:
                ends.append((await response.read()).strip().rpartition(b"\n\n")[2])
    assert sum(b"engine_broken" in end for end in ends) == 1
    assert len(engine.bodies) == 1


@pytest.mark.anyio
async def test_the_only_engine_is_retried_after_its_retry_after_and_its_last_refusal_is_passed_on(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.mode, engine.retry_after = "busy", "0.01"
    with gateway(engine_url, retries=2) as url:
        assert await post(http, url, body()) == (429, {"error": {"message": "its own", "code": 429}})
        assert len(engine.bodies) == 3
        engine.retry_after = "3600"
        async with http.post(url + PLAIN, json=body()) as response:
            assert (response.status, response.headers["retry-after"]) == (429, "3600")
        assert len(engine.bodies) == 4


@pytest.mark.anyio
async def test_a_retry_waits_for_another_engine_without_blocking_requests_behind_it(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthwise.gateway.dispatch._PAUSE_S", 0.0)
    one, two = StandIn(), StandIn()
    with (
        served(one.app()) as first,
        served(two.app()) as second,
        gateway(first, second, router="round_robin", in_flight=1) as url,
    ):
        one.mode = "busy"
        two.gate.clear()
        calls = []
        for n in range(2):  # one runs on the second engine, the other is refused by the first and waits
            calls.append(asyncio.create_task(post(http, url, body(str(n)))))
            await until_true(lambda n=n: len(one.bodies) + len(two.bodies) >= n + 1)  # type: ignore[misc]
        await until_waiting(http, url, 1)
        one.mode = "ok"
        assert (await post(http, url, body("behind")))[0] == 200
        two.gate.set()
        assert [(await call)[0] for call in calls] == [200, 200]
    assert one.names()[-1] == "behind"
    assert len(two.bodies) == 2


@pytest.mark.anyio
async def test_an_answer_in_one_piece_that_hangs_times_out_once_the_engines_speed_is_known(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url, in_flight=1, first_byte_timeout_s=0.2) as url:
        assert (await post(http, url, body()))[0] == 200
        engine.mode = "hang"
        status, answer = await post(http, url, body())
        assert (status, answer["error"]["code"]) == (504, "engine_timeout")
        await until_true(lambda: engine.aborted == 1)
        engine.mode = "ok"
        assert (await post(http, url, body()))[0] == 200


@pytest.mark.anyio
async def test_a_request_that_takes_too_long_ends_with_504_and_a_stream_with_an_event(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.hang_after = 2
    with gateway(engine_url, request_timeout_s=0.3, breaker_failures=1) as url:
        status, answer = await post(http, url, body(tokens=9))
        assert (status, answer["error"]["code"]) == (504, "timeout")
        async with http.post(url + PLAIN, json=body(tokens=9, stream=True)) as response:
            *tokens, last = (await response.read()).strip().split(b"\n\n")
        assert len(tokens) == 2
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "timeout"
        await until_true(lambda: engine.aborted == 2)
        assert await metric(http, url, 'lengthwise_engine_breaker_open{engine="engine-0"}') == 0, (
            "the timeout is no failure of the engine"
        )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "headers", "status", "code"),
    [
        ({"queue_timeout_s": 0.1}, {}, 503, "queue_timeout"),
        ({"enforce_deadlines": True}, {"x-lengthwise-slo-s": "0.1"}, 504, "deadline_exceeded"),
    ],
)
async def test_a_request_that_waits_too_long_fails_and_is_not_sent(
    http: aiohttp.ClientSession,
    engine: StandIn,
    engine_url: str,
    options: dict[str, float],
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    engine.gate.clear()
    with gateway(engine_url, in_flight=1, **options) as url:
        running = asyncio.create_task(post(http, url, body("runs")))
        await until_true(lambda: engine.running == 1)
        async with http.post(url + PLAIN, json=body("waits"), headers=headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (status, code)
            assert ("retry-after" in response.headers) == (status == 503)
        await until_waiting(http, url, 0)
        engine.gate.set()
        await running
    assert engine.names() == ["runs"]
