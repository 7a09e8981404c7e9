"""A request that continues or names a stored answer of /v1/responses is sent to the engine that stores it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import aiohttp
import pytest

from lengthwise.client.client import EngineClient
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.stored_responses import ResponseOwners
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import gateway, until_true, until_waiting

pytestmark = pytest.mark.anyio


@pytest.fixture
def fleet() -> Iterator[tuple[list[StandIn], list[str]]]:
    engines = [StandIn(), StandIn(), StandIn()]
    with ExitStack() as stack:
        yield engines, [stack.enter_context(served(engine.app())) for engine in engines]


async def respond(http: aiohttp.ClientSession, url: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    async with http.post(url + "/v1/responses", json={"model": "stand-in", "input": "hi", **fields}) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_stays_on_its_engine(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]], stream: bool
) -> None:
    engines, urls = fleet
    with gateway(*urls, router="round_robin") as url:
        first = {"model": "stand-in", "input": "hi", "stream": stream}
        async with http.post(url + "/v1/responses", json=first) as response:
            await response.read()
        for _ in range(5):
            assert (await respond(http, url, previous_response_id="resp_1"))[0] == 200
    assert sorted(len(engine.bodies) for engine in engines) == [0, 0, 6]
    assert not any(engine.others for engine in engines), "no engine is asked: the engine of the answer is known"


async def test_the_engine_of_an_unknown_answer_is_searched_once(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    engines[1].stored.add("resp_7")
    with gateway(*urls, router="round_robin") as url:
        for _ in range(3):
            await respond(http, url, previous_response_id="resp_7")
    assert [len(engine.bodies) for engine in engines] == [0, 3, 0]
    assert [len(engine.others) for engine in engines] == [1, 1, 1]


@pytest.mark.parametrize("name", ["resp_unknown", "../../sleep", "", "a/b?c", "é", "x" * 5000])
async def test_a_request_with_an_unknown_id_is_passed_to_an_engine(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]], name: str
) -> None:
    engines, urls = fleet
    with gateway(*urls) as url:
        assert (await respond(http, url, previous_response_id=name))[0] == 200
    assert {path for engine in engines for _, path, _, _ in engine.others} <= {"/v1/responses/resp_unknown"}


async def test_a_request_for_a_busy_engine_does_not_delay_those_for_others(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    engines[0].stored.add("resp_7")
    engines[0].gate.clear()
    with gateway(*urls, in_flight=1) as url:
        pinned = [asyncio.create_task(respond(http, url, previous_response_id="resp_7")) for _ in range(2)]
        await until_true(lambda: len(engines[0].bodies) == 1)
        await until_waiting(http, url, 1)
        assert (await respond(http, url))[0] == 200
        engines[0].gate.set()
        assert [status for status, _ in await asyncio.gather(*pinned)] == [200, 200]
    assert [body.get("previous_response_id") for body in engines[0].bodies] == ["resp_7", "resp_7"]


async def test_a_waiting_request_whose_engine_leaves_runs_on_another(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    engines[0].stored.add("resp_7")
    engines[0].gate.clear()
    with gateway(*urls, in_flight=1) as url:
        pinned = [asyncio.create_task(respond(http, url, previous_response_id="resp_7")) for _ in range(2)]
        await until_true(lambda: len(engines[0].bodies) == 1)
        await until_waiting(http, url, 1)
        async with http.delete(url + "/lengthwise/v1/engines/engine-0") as response:
            assert response.status == 202
        await until_true(lambda: sum(len(engine.bodies) for engine in engines) == 2)
        engines[0].gate.set()
        assert [status for status, _ in await asyncio.gather(*pinned)] == [200, 200]
    assert len(engines[0].bodies) == 1


def test_the_least_recently_used_answers_are_forgotten_and_other_tenants_are_refused() -> None:
    owners, engine = ResponseOwners(most=2), GatewayEngine(EngineClient("http://127.0.0.1:1"), 0, 1)
    for name in ("a", "b"):
        owners.add(name, engine, "tenant")
    assert owners.find("a", "tenant") is engine
    owners.add("c", engine, "tenant")
    assert [owners.find(name, "tenant") is engine for name in "abc"] == [True, False, True]
    with pytest.raises(ApiError, match="'a' is not known here"):
        owners.find("a", "another")


def test_an_answer_with_the_id_of_another_tenants_does_not_take_that_over() -> None:
    owners, engine = ResponseOwners(), GatewayEngine(EngineClient("http://127.0.0.1:1"), 0, 1)
    owners.add("a", engine, "tenant")
    owners.add("a", engine, "another")
    assert owners.find("a", "tenant") is engine
    with pytest.raises(ApiError, match="'a' is not known here"):
        owners.find("a", "another")
