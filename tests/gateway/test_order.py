"""The order of requests: the policy, the in-flight limit, the change of the policy, admission."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import ADMIN, body, gateway, hinted, metric, post, until_true, until_waiting

pytestmark = pytest.mark.anyio

LENGTHS = {"long": 50, "middle": 20, "short": 2, "longer": 60, "shorter": 1}


async def hold(
    http: aiohttp.ClientSession, url: str, engine: StandIn, bodies: list[dict[str, Any]]
) -> asyncio.Task[Any]:
    """Make the bodies wait, in this order, behind a request that occupies the only slot of the engine."""
    engine.gate.clear()
    tasks = [asyncio.create_task(post(http, url, body("blocker", model=engine.model)))]
    await until_true(lambda: engine.running == 1)
    for n, waiting in enumerate(bodies, start=1):
        tasks.append(asyncio.create_task(post(http, url, waiting)))
        await until_waiting(http, url, n)
    return asyncio.ensure_future(asyncio.gather(*tasks))


async def order_under(policy: str, http: aiohttp.ClientSession, bodies: list[dict[str, Any]]) -> list[str]:
    engine = StandIn()
    with served(engine.app()) as engine_url, gateway(engine_url, policy=policy, in_flight=1) as url:
        answers = await hold(http, url, engine, bodies)
        engine.gate.set()
        assert {status for status, _ in await answers} == {200}
    return engine.names()[1:]


def mean_latency(order: list[str]) -> float:
    """Return the mean latency of requests served one by one in this order, in tokens."""
    ended = 0
    return sum(ended := ended + LENGTHS[name] for name in order) / len(order)


async def test_sjf_serves_the_shortest_first_and_lowers_mean_latency(http: aiohttp.ClientSession) -> None:
    bodies = [hinted(name, tokens) for name, tokens in LENGTHS.items()]
    fcfs = await order_under("fcfs", http, bodies)
    sjf = await order_under("sjf", http, bodies)
    assert fcfs == list(LENGTHS)
    assert sjf == ["shorter", "short", "middle", "long", "longer"]
    assert mean_latency(sjf) < mean_latency(fcfs)


async def test_a_hint_in_vllm_xargs_orders_requests(http: aiohttp.ClientSession) -> None:
    bodies = [body("b", 9, vllm_xargs={"expected_tokens": 9}), body("a", 9, vllm_xargs={"expected_tokens": 1.5})]
    assert await order_under("sjf", http, bodies) == ["a", "b"]


async def test_without_hints_sjf_keeps_the_order_of_arrival(http: aiohttp.ClientSession) -> None:
    assert await order_under("sjf", http, [body(name) for name in "dacb"]) == list("dacb")


async def test_a_lower_priority_number_runs_first_at_any_length(http: aiohttp.ClientSession) -> None:
    bodies = [hinted("short", 1), hinted("urgent", 90, priority=-1), hinted("later", 1, priority=5)]
    assert await order_under("sjf", http, bodies) == ["urgent", "short", "later"]


async def test_a_changed_policy_reorders_waiting_requests(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url, policy="sjf", in_flight=1) as url:
        answers = await hold(http, url, engine, [hinted(name, tokens) for name, tokens in LENGTHS.items()])
        async with http.post(url + "/lengthwise/v1/policy", json={"policy": "fcfs"}, headers=ADMIN) as response:
            assert await response.json() == {"policy": "fcfs"}
        engine.gate.set()
        await answers
        async with http.get(url + "/lengthwise/v1/policy") as response:
            assert await response.json() == {"policy": "fcfs"}
        assert await metric(http, url, "lengthwise_policy_changes_total") == 1
    assert engine.names()[1:] == list(LENGTHS)


async def test_the_policy_can_be_changed_from_this_machine_only(http: aiohttp.ClientSession, engine_url: str) -> None:
    async def change(url: str, header: str) -> int:
        target = url + "/lengthwise/v1/policy"
        async with http.post(target, json={"policy": "fcfs"}, headers={header: "x"} | ADMIN) as response:
            return response.status

    with gateway(engine_url) as url, gateway(engine_url, remote_control=True) as open_url:
        for header in ("x-forwarded-for", "forwarded", "origin"):
            assert await change(url, header) == 403
        assert await change(open_url, "origin") == 200


async def test_two_hundred_requests_are_each_served_once_while_the_policy_changes(http: aiohttp.ClientSession) -> None:
    engines = [StandIn(token_s=0.001), StandIn(token_s=0.001)]
    names = [str(n) for n in range(200)]
    with served(engines[0].app()) as a, served(engines[1].app()) as b, gateway(a, b, in_flight=4) as url:
        calls = [post(http, url, hinted(name, 1 + int(name) % 7)) for name in names]
        work = asyncio.gather(*calls)
        for served_before, policy in ((20, "fcfs"), (50, "sjf"), (80, "fcfs"), (110, "sjf")):
            await until_true(lambda n=served_before: sum(engine.finished for engine in engines) >= n)  # type: ignore[misc]
            async with http.post(url + "/lengthwise/v1/policy", json={"policy": policy}, headers=ADMIN) as response:
                assert response.status == 200
        answers = await work
        assert await metric(http, url, "lengthwise_requests_waiting") == 0
        assert await metric(http, url, 'lengthwise_requests_running{engine="engine-0"}') == 0
    assert [answer["usage"]["completion_tokens"] for _, answer in answers] == [1 + int(name) % 7 for name in names]
    assert Counter(engines[0].names() + engines[1].names()) == Counter(names)
    assert max(engine.most_at_once for engine in engines) == 4


async def test_a_request_waits_while_the_predicted_peak_of_kv_memory_does_not_fit(http: aiohttp.ClientSession) -> None:
    gauges = "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n"
    engine = StandIn(metrics=f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="26"}} 1.0\n{gauges}')
    with served(engine.app()) as url_, gateway(url_, policy="sjf", in_flight=8) as url:
        await until_true(lambda: engine.scrapes > 1)
        engine.gate.clear()
        sizes = {"a": 150, "b": 150, "c": 150}
        tasks = [asyncio.create_task(post(http, url, hinted(name, tokens))) for name, tokens in sizes.items()]
        await until_waiting(http, url, 1)
        await until_true(lambda: engine.running == 2)  # two of 150 tokens fit into 400, the third does not
        engine.gate.set()
        assert {status for status, _ in await asyncio.gather(*tasks)} == {200}
    assert engine.most_at_once == 2


async def test_slots_and_memory_that_other_clients_use_are_not_free(http: aiohttp.ClientSession) -> None:
    gauges = "vllm:num_requests_running 6.0\nvllm:num_requests_waiting 0.0\nvllm:kv_cache_usage_perc 0.5\n"
    engine = StandIn(metrics=f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="26"}} 1.0\n{gauges}')
    with served(engine.app()) as url_, gateway(url_, policy="sjf", in_flight=8) as url:
        await until_true(lambda: engine.scrapes > 3)
        engine.gate.clear()
        tasks = [asyncio.create_task(post(http, url, hinted(name, 20))) for name in "abcd"]
        await until_waiting(http, url, 2)  # two slots are left, and 200 of 400 tokens
        await until_true(lambda: engine.running == 2)
        engine.gate.set()
        assert {status for status, _ in await asyncio.gather(*tasks)} == {200}
    assert engine.most_at_once == 2
