"""Engines that hang are found by the answers that have not begun, and their requests move to others."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.gateway.hangs import chance
from lengthwise.lengths import LogT, Point
from lengthwise.policies import Job
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import PLAIN, body, gateway, metric, post, until_true


def job(length: LogT | Point | None, started: float = 0.0) -> Job:
    made = Job("a", 0.0, 10, length, max_tokens=100)
    made.started = started
    return made


@given(
    st.lists(st.floats(1, 80), min_size=1, max_size=20),
    st.floats(0, 5),
    st.floats(0, 5),
    st.floats(0, 5),
)
def test_the_longer_the_silence_the_smaller_its_chance(
    medians: list[float], since: float, first_s: float, more_s: float
) -> None:
    jobs = [job(LogT(math.log(median), 0.7, 100)) for median in medians]
    shorter, longer = (chance(jobs, since, since + silent_s, 0.01) for silent_s in (first_s, first_s + more_s))
    assert 0.0 <= longer <= shorter <= 1.0
    assert chance(jobs, since, since, 0.01) in (0.0, pytest.approx(1.0))


def test_answers_that_should_have_ended_at_a_quarter_of_the_speed_have_no_chance() -> None:
    jobs = [job(Point(20)), job(LogT(3.0, 1.0, 100))]
    assert chance(jobs, 0.0, 0.7, 0.01) > 0.1, "20 tokens may take 0.8 s"
    assert chance(jobs, 0.0, 0.9, 0.01) == 0.0
    assert chance([], 0.0, 100.0, 0.01) == 1.0


def test_many_answers_show_a_hang_sooner_than_one_and_no_sooner_than_four() -> None:
    one, four, many = (chance([job(LogT(3.0, 1.0, 100))] * n, 0.0, 1.5, 0.01) for n in (1, 4, 64))
    assert many == pytest.approx(four) == pytest.approx(one**4)


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_requests_of_an_engine_that_hangs_move_to_another(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("lengthwise.gateway.hangs.MIN_SILENCE_S", 0.5)
    hanging, good = StandIn(token_s=0.002), StandIn(token_s=0.002)

    async def ask(url: str, name: str, **fields: Any) -> int:
        async with http.post(url + PLAIN, json=body(name, stream=stream, **fields)) as response:
            data = await response.read()
            return response.status if not stream or data.endswith(b"[DONE]\n\n") else 0

    with ExitStack() as stack:
        urls = [stack.enter_context(served(engine.app())) for engine in (hanging, good)]
        url = stack.enter_context(gateway(*urls, router="round_robin", in_flight=8, breaker_s=600.0))
        assert await asyncio.gather(*(ask(url, "warm") for _ in range(8))) == [200] * 8
        hanging.mode = "hang"
        names = [str(n) for n in range(12)]
        assert await asyncio.gather(*(ask(url, name) for name in names)) == [200] * 12
        moved = len(set(hanging.names()) - {"warm"})
        assert moved > 0
        assert await metric(http, url, 'lengthwise_retries_total{reason="overdue"}') == moved
        assert await metric(http, url, 'lengthwise_engine_breaker_open{engine="engine-0"}') == 1
        await until_true(lambda: hanging.running == 0)
    assert sorted(set(good.names()) - {"warm"}) == sorted(names)


@pytest.mark.anyio
async def test_a_request_that_may_be_executed_once_only_stays_on_an_engine_that_hangs_and_others_move(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthwise.gateway.hangs.MIN_SILENCE_S", 0.5)
    hanging, good = StandIn(), StandIn()
    with ExitStack() as stack:
        urls = [stack.enter_context(served(engine.app())) for engine in (hanging, good)]
        url = stack.enter_context(gateway(*urls, router="round_robin", breaker_s=600.0))
        for _ in range(4):
            assert (await post(http, url, body("warm")))[0] == 200
        hanging.gate.clear()
        calls = [asyncio.create_task(post(http, url, body(str(n), store=n % 4 < 2))) for n in range(8)]
        await until_true(lambda: len(hanging.bodies) + len(good.bodies) >= 12)

        async def moved() -> bool:
            return await metric(http, url, 'lengthwise_retries_total{reason="overdue"}') > 0

        while not await moved():
            await asyncio.sleep(0.01)
        stays = {sent["user"] for sent in hanging.bodies if sent.get("store")}
        assert stays
        hanging.gate.set()
        assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 8
    assert not stays & set(good.names())


@pytest.mark.anyio
async def test_the_only_engine_and_one_that_answers_others_keep_their_requests(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthwise.gateway.hangs.MIN_SILENCE_S", 0.5)
    slow, other = StandIn(token_s=0.002), StandIn(token_s=0.002)
    with ExitStack() as stack:
        urls = [stack.enter_context(served(engine.app())) for engine in (slow, other)]
        url = stack.enter_context(gateway(*urls, router="round_robin", in_flight=8))
        for _ in range(4):
            assert (await post(http, url, body("warm")))[0] == 200
        slow.hang_after, other.gate = 2000, slow.gate
        long = [asyncio.create_task(post(http, url, body("long", tokens=600, stream=False))) for _ in range(4)]
        assert [status for status, _ in await asyncio.gather(*long)] == [200] * 4
        assert await metric(http, url, 'lengthwise_retries_total{reason="overdue"}') == 0
    with served((engine := StandIn()).app()) as only, gateway(only) as url:
        assert (await post(http, url, body("warm")))[0] == 200
        engine.gate.clear()
        call = asyncio.create_task(post(http, url, body()))
        await asyncio.wait([call], timeout=1.5)
        engine.gate.set()
        assert (await call)[0] == 200
