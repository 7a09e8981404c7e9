"""Routers in front of HTTP engines: shared prefixes, engines that are down, and ledgers that end empty."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import EntryPoint
from typing import Any, cast

import aiohttp
import pytest

from lengthwise.cli.model_options import validated
from lengthwise.gateway import GatewayConfig
from lengthwise.gateway.bodies import ChatBody, CompletionBody
from lengthwise.routers import ROUTERS, Router, make_router
from lengthwise.routers.ledger import FOREIGN, KV_TOKENS, KV_USE
from lengthwise.routers.tracking import LedgerRouter
from tests.gateway.engine import StandIn, free_port, served
from tests.gateway.helpers import CHAT, PLAIN, body, gateway, metric, post, until, until_true, until_waiting
from tests.routers.ledger_checks import check_empty, check_ledger

pytestmark = pytest.mark.anyio

GAUGES = """\
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="65"} 1.0
"""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[LedgerRouter]:
    """The routers that gateways make."""
    routers: list[LedgerRouter] = []

    def make(name: str) -> Router:
        router = make_router(name)
        routers.append(cast("LedgerRouter", router))  # tests that read the ledger use routers that have one
        return router

    monkeypatch.setattr("lengthwise.gateway.app.warm_router", make)
    return routers


@contextmanager
def fleet(n: int, metrics: tuple[str | None, ...] = (), **options: Any) -> Iterator[tuple[list[StandIn], str]]:
    engines = [StandIn(metrics=metrics[number] if metrics else None) for number in range(n)]
    with ExitStack() as stack:
        urls = [stack.enter_context(served(engine.app())) for engine in engines]
        yield engines, stack.enter_context(gateway(*urls, **options))


def prompt(group: int, n: int) -> str:
    return f"You are assistant {group}. " * 200 + f"Question {n}."


@pytest.mark.parametrize("router", ["lengthwise", "cache_aware", "e2", "dynamo"])
async def test_requests_with_a_shared_prefix_go_to_the_same_engine(http: aiohttp.ClientSession, router: str) -> None:
    with fleet(3, router=router) as (engines, url):
        for n in range(4):
            for group in range(3):
                assert (await post(http, url, body(f"{group}", prompt=prompt(group, n))))[0] == 200
    homes = [{number for number, engine in enumerate(engines) if str(group) in engine.names()} for group in range(3)]
    assert [len(home) for home in homes] == [1, 1, 1]


async def test_a_conversation_stays_on_the_engine_that_has_its_prefix(http: aiohttp.ClientSession) -> None:
    turns = [{"role": "system", "content": "Be brief. " * 100}, {"role": "user", "content": "Hello."}]
    with fleet(4, router="lengthwise") as (engines, url):
        for _ in range(5):
            async with http.post(url + CHAT, json={"messages": turns, "max_tokens": 3, "user": "a"}) as response:
                assert response.status == 200
            turns += [{"role": "assistant", "content": "Hi. " * 80}, {"role": "user", "content": "More."}]
    assert sorted(len(engine.bodies) for engine in engines) == [0, 0, 0, 5]


async def test_prompts_without_a_shared_prefix_are_spread(http: aiohttp.ClientSession) -> None:
    with fleet(2, router="lengthwise") as (engines, url):
        for engine in engines:
            engine.gate.clear()
        calls = [asyncio.create_task(post(http, url, body(str(n), prompt=prompt(n, 0)))) for n in range(8)]
        await until_true(lambda: sum(engine.running for engine in engines) == 8)
        for engine in engines:
            engine.gate.set()
        await asyncio.gather(*calls)
    assert min(len(engine.bodies) for engine in engines) >= 3


@pytest.mark.parametrize("router", sorted(ROUTERS))
async def test_a_dead_engine_gets_no_request_and_the_ledger_ends_empty(
    http: aiohttp.ClientSession, router: str, made: list[LedgerRouter]
) -> None:
    engine, dead = StandIn(), f"http://127.0.0.1:{free_port()}"
    with served(engine.app()) as engine_url, gateway(dead, engine_url, router=router) as url:
        calls = [post(http, url, body(str(n), prompt=prompt(n % 2, n), stream=False)) for n in range(12)]
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}
        assert len(engine.bodies) == 12
        await until_true(lambda: set(made[0].numbers) == {1})
        await metric(http, url, "lengthwise_router_failures_total")  # passes on the events that wait for a decision
        check_ledger(made[0])
        check_empty(made[0])
        assert made[0].name == router


async def test_failing_engines_and_cancelled_requests_leave_the_ledger_empty(
    http: aiohttp.ClientSession, made: list[LedgerRouter]
) -> None:
    with fleet(2, router="lengthwise", silence_timeout_s=0.3) as (engines, url):
        for mode in ("break", "refuse", "error", "hang", "ok"):
            for engine in engines:
                engine.mode = mode
            for n in range(4):
                async with http.post(url + PLAIN, json=body(tokens=9, stream=n % 2 == 0)) as response:
                    await response.read()
        for engine in engines:
            engine.gate.clear()
        began = sum(len(engine.bodies) for engine in engines)
        leaving = asyncio.create_task(post(http, url, body("leaves")))
        await until_true(lambda: sum(len(engine.bodies) for engine in engines) == began + 1)
        assert len(made[0].ledger) == 1
        leaving.cancel()

        async def none_left() -> bool:
            await metric(http, url, "lengthwise_router_failures_total")  # passes on the events, as above
            return len(made[0].ledger) == 0

        await until(none_left)
        check_empty(made[0])


async def test_an_engine_that_is_up_again_is_chosen_again(
    http: aiohttp.ClientSession, made: list[LedgerRouter]
) -> None:
    stays, returns, port = StandIn(), StandIn(), free_port()
    with served(stays.app()) as one, gateway(one, f"http://127.0.0.1:{port}", router="round_robin") as url:
        await until_true(lambda: set(made[0].numbers) == {0})
        with served(returns.app(), port):
            await until_true(lambda: set(made[0].numbers) == {0, 1})
            for n in range(4):
                await post(http, url, body(str(n)))
    assert (len(stays.bodies), len(returns.bodies)) == (2, 2)


async def test_the_router_receives_the_metrics_of_an_engine(
    http: aiohttp.ClientSession, made: list[LedgerRouter]
) -> None:
    with fleet(2, (None, GAUGES), router="lengthwise") as (engines, url):
        await until_true(lambda: made[0].ledger.loads[1, FOREIGN] == 5)
        assert made[0].ledger.loads[1, KV_USE] == 0.25
        assert made[0].ledger.loads[:2, KV_TOKENS].tolist() == [400_000, 1024]
        await post(http, url, body())
        assert [len(engine.bodies) for engine in engines] == [1, 0], "the engine reports five requests of others"


@contextmanager
def two_models(**options: Any) -> Iterator[tuple[StandIn, StandIn, str]]:
    a, b = StandIn(model="a"), StandIn(model="b")
    with served(a.app()) as url_a, served(b.app()) as url_b, gateway(url_a, url_b, **options) as url:
        yield a, b, url


async def test_a_request_is_sent_only_to_an_engine_that_serves_its_model(http: aiohttp.ClientSession) -> None:
    with two_models() as (a, b, url):
        for n in range(8):
            assert (await post(http, url, body(model="ab"[n % 2])))[0] == 200
    assert [request["model"] for request in a.bodies + b.bodies] == ["a"] * 4 + ["b"] * 4


async def test_an_unknown_model_is_404_and_the_list_of_models_is_the_union(http: aiohttp.ClientSession) -> None:
    with two_models() as (a, b, url):
        status, answer = await post(http, url, body(model="c"))
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")
        async with http.get(url + "/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["a", "b"]
    assert not a.bodies + b.bodies


async def test_requests_for_a_busy_model_do_not_block_those_for_another(http: aiohttp.ClientSession) -> None:
    with two_models(in_flight=1) as (a, b, url):
        a.gate.clear()
        held = [asyncio.create_task(post(http, url, body(model="a"))) for _ in range(3)]
        await until_waiting(http, url, 2)
        assert (await post(http, url, body(model="b")))[0] == 200
        a.gate.set()
        assert {status for status, _ in await asyncio.gather(*held)} == {200}
    assert (len(a.bodies), len(b.bodies)) == (3, 1)


async def test_waiting_requests_run_on_an_engine_that_starts_to_serve_their_model(
    http: aiohttp.ClientSession,
) -> None:
    with two_models(in_flight=1) as (a, b, url):
        a.gate.clear()
        calls = [asyncio.create_task(post(http, url, body(model="a"))) for _ in range(3)]
        await until_waiting(http, url, 2)
        b.model = "a"
        await until_waiting(http, url, 0)
        assert (await post(http, url, body(model="b")))[0] == 404
        a.gate.set()
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}
    assert (len(a.bodies), len(b.bodies)) == (1, 2)


@pytest.mark.parametrize("named_by", ["a dotted path", "an entry point"])
async def test_a_router_of_another_package_serves_requests(
    http: aiohttp.ClientSession, named_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "tests.conformance.outside_router:Alternate"
    registered = EntryPoint("alternate", path, "lengthwise.routers")
    monkeypatch.setattr("lengthwise.specs.entry_points", lambda group: [registered] * (group == registered.group))
    router = path if named_by == "a dotted path" else registered.name
    with fleet(2, router=f"{router}:repeat=2") as (engines, url):
        for n in range(4):
            assert (await post(http, url, body(str(n))))[0] == 200
    assert [engine.names() for engine in engines] == [["0", "1"], ["2", "3"]]


async def test_metrics_of_an_engine_that_has_none_are_read_only_at_the_start(http: aiohttp.ClientSession) -> None:
    with fleet(2) as (engines, url):
        async with http.get(url + "/health") as response:
            assert (await response.json())["router"] == "lengthwise"
        await until_true(lambda: all(engine.scrapes for engine in engines))
        checked = [len(engine.health_headers) for engine in engines]
        await until_true(lambda: all(len(e.health_headers) >= n + 3 for e, n in zip(engines, checked, strict=True)))
        assert [engine.scrapes for engine in engines] == [2, 2], "once for its kind, once for its load"


async def test_the_cost_terms_of_decisions_are_in_the_metrics_and_in_the_log(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "lengthwise.gateway.routing"), fleet(2, router="lengthwise") as (engines, url):
        for n in range(3):
            await post(http, url, body(str(n), prompt=prompt(0, n)))

        async def counted() -> bool:
            return await metric(http, url, "lengthwise_router_seconds_count") == 3

        await until(counted)
        assert await metric(http, url, 'lengthwise_router_cost_total{term="first_token"}') > 0
        assert await metric(http, url, 'lengthwise_router{router="lengthwise"}') == 1
        assert [len(engine.bodies) for engine in engines] == [3, 0]
    lines = [record.getMessage() for record in caplog.records if record.name == "lengthwise.gateway.routing"]
    assert len(lines) == 3
    assert all("first_token=" in line for line in lines)


async def test_a_gateway_in_front_of_one_engine_has_no_router(
    http: aiohttp.ClientSession, made: list[LedgerRouter]
) -> None:
    with fleet(1) as (_, url):
        assert (await post(http, url, body()))[0] == 200
        async with http.get(url + "/health") as response:
            assert (await response.json())["router"] is None
        assert await metric(http, url, "lengthwise_router_seconds_count") == 1
    assert not made


def test_lengthwise_is_the_default_router_for_several_engines() -> None:
    one, two = ("http://a:1",), ("http://a:1", "http://b:1")
    configs = [validated(GatewayConfig, engines=engines) for engines in (one, two)]
    assert [config.chosen_router for config in configs] == [None, "lengthwise"]
    assert validated(GatewayConfig, engines=two, router="e2").chosen_router == "e2"


@pytest.mark.parametrize(
    ("sent", "tokens", "blocks"),
    [
        (CompletionBody(prompt="x" * 1030), 257, 4),
        (CompletionBody(prompt=["x" * 1030]), 257, 4),
        (CompletionBody(prompt=list(range(130))), 130, 2),
        (CompletionBody(prompt=[list(range(130))]), 130, 2),
        (CompletionBody(prompt=["two", "prompts"]), 0, 0),
        (CompletionBody(prompt=[1, "mixed"]), 0, 0),
        (CompletionBody(prompt=[2**70]), 0, 0),
        (CompletionBody(), 0, 0),
        (ChatBody(messages=["nonsense"]), 0, 0),
        (ChatBody(messages=[{"role": "user", "content": "x" * 1030}]), 257, 4),
    ],
)
def test_a_job_has_the_tokens_and_blocks_of_its_prompt(sent: CompletionBody, tokens: int, blocks: int) -> None:
    job = sent.job("1", 0.0, {})
    assert (job.prompt_tokens, len(job.blocks)) == (tokens, blocks)
