"""Engines that join and leave while the gateway serves."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lengthwise.gateway.config import EngineConfig, GatewayConfig
from tests.gateway.engine import StandIn, free_port, served
from tests.gateway.helpers import ADMIN, PLAIN, body, gateway, metric, post, until, until_true, until_waiting

pytestmark = pytest.mark.anyio

ENGINES = "/lengthwise/v1/engines"


async def listed(http: aiohttp.ClientSession, url: str) -> dict[str, dict[str, Any]]:
    async with http.get(url + ENGINES) as response:
        return {engine["name"]: engine for engine in (await response.json())["engines"]}


async def add(http: aiohttp.ClientSession, gateway_url: str, /, **engine: Any) -> tuple[int, dict[str, Any]]:
    async with http.post(gateway_url + ENGINES, json=engine, headers=ADMIN) as response:
        return response.status, await response.json()


async def remove(http: aiohttp.ClientSession, url: str, name: str) -> int:
    async with http.delete(f"{url}{ENGINES}/{name}", headers=ADMIN) as response:
        return response.status


@pytest.mark.parametrize(
    ("hosts", "url", "joins"),
    [
        ([], "http://127.0.0.1:1", True),
        ([], "http://10.0.0.7:8000", False),
        ([], "http://gpu-1:8000", False),
        (["10.0.0.0/8"], "http://10.0.0.7:8000", True),
        (["10.0.0.0/8"], "http://11.0.0.7:8000", False),
        (["10.0.0.0/8"], "http://10.0.0.7.evil.example:8000", False),
        (["gpu-1", "*.gpu.internal"], "http://gpu-1:8000", True),
        (["gpu-1", "*.gpu.internal"], "http://A.gpu.internal", True),
        (["gpu-1", "*.gpu.internal"], "http://gpu.internal", False),
        (["gpu-1", "*.gpu.internal"], "http://evil-gpu.internal", False),
        (["gpu-1"], "http://gpu-1@evil.example", False),
        (["2001:db8::/32"], "http://[2001:db8::1]:8000", True),
        (["gpu-1"], "simulated:llama-3-8b@a100", False),
    ],
)
def test_engines_join_from_the_hosts_of_the_configuration_only(hosts: list[str], url: str, joins: bool) -> None:
    config = GatewayConfig.model_validate({"engines": ["http://127.0.0.1:8000"], "engine_hosts": hosts})
    assert config.may_join(EngineConfig(url=url)) == joins


@pytest.mark.parametrize("host", ["10.0.0.0/33", "a b", "*", "*.*.x", "http://gpu-1", "-x", ""])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        GatewayConfig.model_validate({"engines": ["http://127.0.0.1:8000"], "engine_hosts": [host]})


async def test_an_engine_of_another_host_does_not_join(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url) as url:
        status, answer = await add(http, url, url=engine_url.replace("127.0.0.1", "localhost"))
        assert (status, answer["error"]["code"]) == (403, "host_not_allowed")
        assert list(await listed(http, url)) == ["engine-0"]


async def test_an_engine_that_joins_takes_waiting_requests(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    second = StandIn()
    with gateway(engine_url, in_flight=1) as url, served(second.app()) as second_url:
        calls = [asyncio.create_task(post(http, url, body(name))) for name in ("a", "b")]
        await until_waiting(http, url, 1)
        status, joined = await add(http, url, url=second_url, name="new")
        assert (status, joined["name"], joined["up"], joined["in_flight"]) == (201, "new", True, 1)
        await until_true(lambda: second.finished == 1)
        engine.gate.set()
        assert [(await call)[0] for call in calls] == [200, 200]
        assert set(await listed(http, url)) == {"engine-0", "new"}


async def test_an_engine_that_leaves_finishes_its_requests_and_gets_no_new_ones(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    second = StandIn()
    with served(second.app()) as second_url, gateway(engine_url, second_url, router="round_robin") as url:
        running = asyncio.create_task(post(http, url, body("runs")))
        await until_true(lambda: engine.running + second.running == 1)
        name = "engine-0" if engine.running else "engine-1"
        leaving, staying = (engine, second) if engine.running else (second, engine)
        leaving.gate.clear()
        staying.gate.set()
        assert await remove(http, url, name) == 202
        assert (await listed(http, url))[name]["leaving"]
        for n in range(4):
            assert (await post(http, url, body(str(n))))[0] == 200
        assert len(leaving.bodies) == 1
        assert await remove(http, url, name) == 404
        leaving.gate.set()
        assert (await running)[0] == 200

        async def gone() -> bool:
            return name not in await listed(http, url)

        await until(gone)
        assert (leaving.finished, leaving.aborted) == (1, 0)
        assert await metric(http, url, f'lengthwise_engine_up{{engine="{name}"}}') == 0


@pytest.mark.parametrize("host", ["a" * 5000, "a..b", "a" * 64 + ".example"], ids=["long", "empty label", "long label"])
async def test_an_engine_whose_host_is_no_name_is_refused_with_400(
    http: aiohttp.ClientSession, engine_url: str, host: str
) -> None:
    with gateway(engine_url) as url:
        status, answer = await add(http, url, url=f"http://{host}:8000")
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_engine", "url")


async def test_requests_that_wait_for_the_last_engine_get_503_when_it_leaves(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, in_flight=1) as url:
        running = asyncio.create_task(post(http, url, body("runs")))
        await until_true(lambda: engine.running == 1)
        waiting = asyncio.create_task(post(http, url, body("waits")))
        await until_waiting(http, url, 1)
        assert await remove(http, url, "engine-0") == 202
        status, answer = await waiting
        assert (status, answer["error"]["code"]) == (503, "no_engine")
        engine.gate.set()
        assert (await running)[0] == 200
        assert (await post(http, url, body("later")))[0] == 503
        assert (await add(http, url, url=engine_url))[0] == 201
        assert (await post(http, url, body("again")))[0] == 200


async def test_running_requests_are_aborted_after_the_shutdown_timeout(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.hang_after = 2
    with gateway(engine_url, shutdown_timeout_s=0) as url:
        async with http.post(url + PLAIN, json=body(tokens=9, stream=True)) as response:
            await response.content.readany()
            await until_true(lambda: engine.hanging == 1)
            assert await remove(http, url, "engine-0") == 202
            *_, last = (await response.read()).strip().split(b"\n\n")
        assert b'"engine_broken"' in last
        await until_true(lambda: engine.aborted == 1)


async def test_an_engine_that_is_down_joins_and_gets_requests_once_it_is_up(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    port = free_port()
    with gateway(engine_url) as url:
        status, joined = await add(http, url, url=f"http://127.0.0.1:{port}", name="late")
        assert (status, joined["up"]) == (201, False)
        assert (await post(http, url, body()))[0] == 200
        with served(StandIn().app(), port):

            async def up() -> bool:
                return bool((await listed(http, url))["late"]["up"])

            await until(up)


async def test_an_invalid_engine_is_refused_with_the_reason(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url) as url:
        status, answer = await add(http, url, url=engine_url)
        assert status == 400
        assert "already" in answer["error"]["message"]
        for wrong in ({"url": "ftp://x"}, {}, {"url": "http://127.0.0.1:1", "name": "engine-0"}):
            assert (await add(http, url, **wrong))[0] == 400
        async with http.post(
            url + ENGINES, json={"url": "http://h"}, headers={"x-forwarded-for": "1.2.3.4"} | ADMIN
        ) as refused:
            assert refused.status == 403
        assert await remove(http, url, "unknown") == 404


async def test_an_engine_that_leaves_finishes_forwarded_requests(http: aiohttp.ClientSession) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def embed(_: Request) -> Response:
        loop.call_soon_threadsafe(arrived.set)
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        return JSONResponse({"data": []})

    async def other(_: Request) -> Response:
        return JSONResponse({"data": [{"id": "stand-in"}]})

    app = Starlette(routes=[Route("/v1/embeddings", embed, methods=["POST"]), Route("/{path:path}", other)])
    with served(app) as engine_url, gateway(engine_url) as url:

        async def embedding() -> int:
            async with http.post(url + "/v1/embeddings", json={"model": "stand-in", "input": "x"}) as response:
                return response.status

        call = asyncio.create_task(embedding())
        await arrived.wait()
        assert await remove(http, url, "engine-0") == 202
        go_on.set()
        assert await call == 200


async def test_an_engine_may_join_under_the_name_of_one_that_still_finishes_requests(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url) as url:
        call = asyncio.create_task(post(http, url, body()))
        await until_true(lambda: engine.running == 1)
        assert await remove(http, url, "engine-0") == 202
        assert (await add(http, url, url=engine_url, name="engine-0"))[0] == 201
        assert await metric(http, url, 'lengthwise_requests_running{engine="engine-0"}') == 1
        engine.gate.set()
        assert (await call)[0] == 200
        assert (await post(http, url, body()))[0] == 200
