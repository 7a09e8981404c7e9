"""A request is cancelled when its client disconnects."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.gateway.engine import StandIn
from tests.gateway.helpers import PLAIN, body, gateway, hinted, metric, post, until, until_true, until_waiting

pytestmark = pytest.mark.anyio


async def cancelled(http: aiohttp.ClientSession, url: str, n: int) -> None:
    """Wait until the gateway has counted n requests as cancelled."""

    async def counted() -> bool:
        line = 'lengthwise_requests_total{endpoint="/v1/completions",outcome="cancelled"}'
        return await metric(http, url, line) == n

    await until(counted)


async def cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_waiting_request_leaves_the_queue_and_reaches_no_engine(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, in_flight=1) as url:
        first = asyncio.create_task(post(http, url, body("first")))
        await until_true(lambda: engine.running == 1)
        leaving = asyncio.create_task(post(http, url, hinted("leaving", 1)))
        await until_waiting(http, url, 1)
        staying = asyncio.create_task(post(http, url, hinted("staying", 9)))
        await until_waiting(http, url, 2)
        await cancel(leaving)
        await until_waiting(http, url, 1)
        engine.gate.set()
        assert (await first)[0] == (await staying)[0] == 200
        await cancelled(http, url, 1)
    assert engine.names() == ["first", "staying"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_running_request_is_aborted_in_the_engine_and_frees_its_slot(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, stream: bool
) -> None:
    engine.token_s = 0.01
    with gateway(engine_url, in_flight=1) as url:
        running = asyncio.create_task(post(http, url, body("gone", 100_000, stream=stream)))
        await until_true(lambda: engine.running == 1)
        await cancel(running)
        await until_true(lambda: engine.aborted == 1)
        assert (await post(http, url, body("next", 1)))[0] == 200
        await cancelled(http, url, 1)
    assert (engine.finished, engine.aborted) == (1, 1)


async def test_a_request_with_a_large_body_is_cancelled_like_any_other(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, in_flight=1) as url:
        large = [{**body(f"large-{n}"), "prompt": "word " * 20_000 * n} for n in range(1, 9)]
        leaving = [asyncio.create_task(post(http, url, each)) for each in large]
        await until_waiting(http, url, len(large) - 1)
        for task in leaving:
            await cancel(task)
        await cancelled(http, url, len(large))
        await until_true(lambda: engine.running == 0)


async def test_a_stream_whose_client_disconnects_is_aborted(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.token_s = 0.01
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, json=body(tokens=100_000, stream=True)) as response:
            await response.content.readany()
            response.close()
        await until_true(lambda: engine.aborted == 1)
        await cancelled(http, url, 1)
        assert await metric(http, url, 'lengthwise_requests_running{engine="engine-0"}') == 0


async def test_many_cancelled_requests_leave_nothing_behind(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.token_s = 0.002
    with gateway(engine_url, in_flight=3) as url:
        calls = [asyncio.create_task(post(http, url, hinted(str(n), 1 + n % 9))) for n in range(90)]
        for n, call in enumerate(calls):
            if n % 3 == 0:
                call.cancel()
                await asyncio.sleep(0.001)
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(end, tuple) and end[0] == 200 for end in ended) >= 60
        await until_waiting(http, url, 0)
        await until_true(lambda: engine.running == 0)
        assert (await post(http, url, body("after")))[0] == 200
        assert await metric(http, url, 'lengthwise_requests_running{engine="engine-0"}') == 0
    assert engine.most_at_once <= 6  # requests that are being aborted still count in the engine
    assert len(set(engine.names())) == len(engine.names())
