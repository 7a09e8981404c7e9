"""`fair` in the gateway charges a tenant the true lengths of its answers, not the expected ones."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import body, gateway, hinted, post, until_true, until_waiting

pytestmark = pytest.mark.anyio

LONG = 50_000


async def test_a_tenant_is_charged_the_true_length_of_an_answer(http: aiohttp.ClientSession) -> None:
    engine = StandIn(lengths={"a": 3})
    with served(engine.app()) as engine_url, gateway(engine_url, policy="fair(fcfs)", in_flight=1) as url:
        await post(http, url, hinted("a", LONG))  # expected to be long, answered with three tokens
        engine.gate.clear()
        calls = [asyncio.create_task(post(http, url, body("blocks")))]
        await until_true(lambda: len(engine.bodies) == 2)
        for number, name in enumerate(("a", "b"), start=1):
            calls.append(asyncio.create_task(post(http, url, body(name))))
            await until_waiting(http, url, number)
        engine.gate.set()
        await asyncio.gather(*calls)
    assert engine.names() == ["a", "blocks", "a", "b"]


async def test_a_tenant_is_not_charged_for_a_cancelled_waiting_request(http: aiohttp.ClientSession) -> None:
    engine = StandIn()
    with served(engine.app()) as engine_url, gateway(engine_url, policy="fair(fcfs)", in_flight=1) as url:
        engine.gate.clear()
        calls = [asyncio.create_task(post(http, url, body("blocks")))]
        await until_true(lambda: len(engine.bodies) == 1)
        leaving = asyncio.create_task(post(http, url, hinted("a", LONG)))
        await until_waiting(http, url, 1)
        leaving.cancel()
        await until_waiting(http, url, 0)
        for number, name in enumerate(("a", "b"), start=1):
            calls.append(asyncio.create_task(post(http, url, body(name))))
            await until_waiting(http, url, number)
        engine.gate.set()
        await asyncio.gather(*calls)
    assert engine.names() == ["blocks", "a", "b"]
