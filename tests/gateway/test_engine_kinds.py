"""The fields sent to an engine depend on its kind, which is detected or configured."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import body, gateway, hinted, post, until

pytestmark = pytest.mark.anyio

VLLM = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


async def kind_of(http: aiohttp.ClientSession, url: str) -> tuple[str, str | None]:
    async with http.get(url + "/lengthwise/v1/engines") as response:
        engine = (await response.json())["engines"][0]
    return engine["kind"], engine["description"]


@pytest.mark.parametrize(
    ("engine", "kind", "description"),
    [
        (StandIn(metrics=VLLM, scheduler={"policy": "tie"}), "lengthwise", "vLLM with our scheduler, policy tie"),
        (StandIn(metrics=VLLM), "vllm", "vLLM"),
        (StandIn(owned_by="vllm"), "vllm", "vLLM"),
        (StandIn(owned_by="sglang"), "sglang", "SGLang"),
        (StandIn(metrics="sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n"), "sglang", "SGLang"),
        (StandIn(), "openai", "an OpenAI server"),
    ],
)
async def test_the_kind_of_an_engine_is_detected(
    http: aiohttp.ClientSession, engine: StandIn, kind: str, description: str
) -> None:
    with served(engine.app()) as engine_url, gateway(engine_url) as url:
        assert await kind_of(http, url) == (kind, description)
        await post(http, url, body())
    assert engine.asked_kind == (kind in ("lengthwise", "vllm")), "only vLLM is asked for its scheduler, and once"


async def test_the_kind_is_detected_again_after_an_engine_was_down(http: aiohttp.ClientSession) -> None:
    stock, ours = StandIn(owned_by="vllm"), StandIn(owned_by="vllm", scheduler={"policy": "sjf"})
    with served(stock.app()) as engine_url:
        port = int(engine_url.rsplit(":", 1)[1])
        serving = gateway(engine_url)
        url = serving.__enter__()
        assert (await kind_of(http, url))[0] == "vllm"
    try:

        async def forgotten() -> bool:
            return (await kind_of(http, url))[1] is None

        await until(forgotten)
        with served(ours.app(), port):

            async def found() -> bool:
                return (await kind_of(http, url))[0] == "lengthwise"

            await until(found)
    finally:
        serving.__exit__(None, None, None)


async def sent(http: aiohttp.ClientSession, kind: str, *bodies: dict[str, Any], policy: str = "sjf") -> list[Any]:
    engine = StandIn()
    with served(engine.app()) as engine_url, gateway({"url": engine_url, "kind": kind}, policy=policy) as url:
        for each in bodies:
            await post(http, url, each)
    return [each.get("priority") for each in engine.bodies]


async def test_the_order_is_sent_as_a_priority_lower_first_to_vllm_and_higher_first_to_sglang(
    http: aiohttp.ClientSession,
) -> None:
    bodies = [hinted(str(n), tokens) for n, tokens in enumerate((100, 3, 50, 2000, 1))]
    vllm, sglang = await sent(http, "vllm", *bodies), await sent(http, "sglang", *bodies)
    assert max(vllm[1], vllm[4]) < vllm[2] < vllm[3]
    assert min(sglang[1], sglang[4]) > sglang[2] > sglang[3]
    assert await sent(http, "openai", *bodies) == [None] * 5


async def test_a_clients_priority_precedes_the_policys_order(http: aiohttp.ClientSession) -> None:
    bodies = [hinted("a", 3), hinted("b", 900, priority=-1), hinted("c", 1, priority=1)]
    plain, urgent, later = await sent(http, "vllm", *bodies)
    assert urgent < plain < later
    assert await sent(http, "openai", *bodies) == [None, -1, 1], "an unknown engine gets the client's priority"


async def test_no_field_is_added_to_a_body_without_priority(http: aiohttp.ClientSession) -> None:
    engine = StandIn()
    request = {"model": "stand-in", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]}
    with served(engine.app()) as engine_url, gateway({"url": engine_url, "kind": "vllm"}) as url:
        await http.post(url + "/v1/messages", json=request)
    assert all("priority" not in each for each in engine.bodies)
