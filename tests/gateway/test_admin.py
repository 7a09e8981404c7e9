"""The gateway's own paths: predict, queue and explain."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import PLAIN, body, gateway, hinted, until_true, until_waiting
from tests.predictors.guesses import Guess

pytestmark = pytest.mark.anyio

BASE = "/lengthwise/v1"
FOREIGN = {"Via": "1.1 proxy"}
PROMPT = "the secret words of a prompt"


async def get(http: aiohttp.ClientSession, url: str, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
    async with http.get(f"{url}{BASE}/{path}", headers=headers) as response:
        return response.status, json.loads(await response.read())


async def predicted(http: aiohttp.ClientSession, url: str, sent: dict[str, Any]) -> dict[str, Any]:
    async with http.post(f"{url}{BASE}/predict", json=sent) as response:
        assert response.status == 200
        found: dict[str, Any] = await response.json()
        return found


TURN = {"role": "user", "content": "about 300"}


@pytest.mark.parametrize(
    "sent",
    [
        {"prompt": "about 300"},
        {"messages": [TURN]},
        {"system": "be brief", "messages": [TURN]},
        {"input": "about 300", "instructions": "be brief"},
    ],
)
async def test_predict_returns_the_distribution_for_a_body_of_any_api(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, guess: Guess, sent: dict[str, Any]
) -> None:
    with gateway(engine_url, policy="sjf", predictor="fast") as url:
        found = await predicted(http, url, {"model": "stand-in", **sent})
    assert (found["model"], found["source"], found["median"]) == ("stand-in", "predictor", 300)
    values = list(found["quantiles"].values())
    assert values == sorted(values)
    assert found["mean"] <= found["cap"]
    assert not engine.bodies


async def test_predict_names_its_source_and_keeps_to_max_tokens(
    http: aiohttp.ClientSession, engine_url: str, guess: Guess
) -> None:
    with gateway(engine_url, policy="sjf", predictor="fast") as url:
        hint = await predicted(http, url, hinted("a", 50, prompt="about 7"))
        assert (hint["source"], hint["median"]) == ("hint", 50)
        capped = await predicted(http, url, {"prompt": "about 300", "max_tokens": 20})
        assert (capped["cap"], capped["quantiles"]["0.99"]) == (20, 20)
        assert (await predicted(http, url, {"prompt": "no number"}))["source"] == "prior"  # the predictor raises
        async with http.post(url + PLAIN, json=body(prompt="about 3")) as response:
            assert response.status == 200
        assert (await predicted(http, url, {"model": "stand-in", "prompt": "no number"}))["source"] == "history"
        assert (await predicted(http, url, {"prompt": [1, 2, 3]}))["source"] == "history"


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b'{"messages": 3}', 400, "invalid_value"),
        (b"x" * 1001, 413, "body_too_large"),
    ],
)
async def test_predict_refuses_an_invalid_body(
    http: aiohttp.ClientSession, engine_url: str, sent: bytes, status: int, code: str
) -> None:
    with gateway(engine_url, max_body_bytes=1000) as url:
        async with http.post(f"{url}{BASE}/predict", data=sent) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (status, code)


async def held(http: aiohttp.ClientSession, url: str, engine: StandIn) -> asyncio.Task[Any]:
    """Make two requests wait behind a running one; the second is shorter."""
    engine.gate.clear()

    async def send(name: str, tokens: int) -> int:
        sent = hinted(name, tokens, prompt=PROMPT)
        async with http.post(url + PLAIN, json=sent, headers={"x-request-id": f"id/{name}"}) as response:
            return response.status

    tasks = [asyncio.create_task(send("runs", 1))]
    await until_true(lambda: engine.running == 1)
    for waiting, (name, tokens) in enumerate({"long": 500, "short": 20}.items(), start=1):
        tasks.append(asyncio.create_task(send(name, tokens)))
        await until_waiting(http, url, waiting)
    return asyncio.ensure_future(asyncio.gather(*tasks))


async def test_the_queue_lists_waiting_requests_in_order_without_their_text(http: aiohttp.ClientSession) -> None:
    engine = StandIn()
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", in_flight=1) as url:
        answers = await held(http, url, engine)
        status, found = await get(http, url, "queue")
        assert (status, found["waiting"]) == (200, 2)
        (queue,) = found["queues"]
        assert (queue["engines"], queue["waiting"], queue["running"], queue["slots"]) == (["engine-0"], 2, 1, 1)
        assert [request["request_id"] for request in queue["requests"]] == ["id/short", "id/long"]
        assert [request["prediction"]["median"] for request in queue["requests"]] == [20, 500]
        assert queue["requests"][0]["prediction"]["source"] == "hint"
        assert "secret" not in json.dumps(found)
        _, one = await get(http, url, "queue?limit=1")
        assert [request["request_id"] for request in one["queues"][0]["requests"]] == ["id/short"]
        assert (await get(http, url, "queue?limit=few"))[0] == 400
        engine.gate.set()
        assert await answers == [200, 200, 200]
        assert (await get(http, url, "queue"))[1]["waiting"] == 0


async def test_explain_gives_the_key_and_the_terms_of_a_waiting_request(http: aiohttp.ClientSession) -> None:
    engine = StandIn()
    with served(engine.app()) as engine_url, gateway(engine_url, policy="sjf", in_flight=1) as url:
        answers = await held(http, url, engine)
        (long,) = (await get(http, url, "explain/id/long"))[1]["requests"]
        (short,) = (await get(http, url, "explain/id/short"))[1]["requests"]
        assert (short["state"], short["position"], long["position"]) == ("waiting", 1, 2)
        assert short["policy"]["name"] == "sjf"
        assert "key" in short["policy"]["formula"]
        assert short["policy"]["key"] == pytest.approx(20, rel=1e-3)
        assert short["policy"]["key"] < long["policy"]["key"]
        assert short["policy"]["terms"]["median"] == pytest.approx(20, rel=1e-3)
        assert short["engines"][0]["running"] == short["engines"][0]["in_flight"] == 1
        assert "secret" not in json.dumps([long, short])
        engine.gate.set()
        assert await answers == [200, 200, 200]
        assert (await get(http, url, "explain/id/short"))[0] == 404


async def test_explain_gives_the_engine_and_the_router_terms_of_a_running_request(
    http: aiohttp.ClientSession,
) -> None:
    engines = StandIn(), StandIn()
    with served(engines[0].app()) as one, served(engines[1].app()) as two, gateway(one, two, in_flight=1) as url:
        for engine in engines:
            engine.gate.clear()

        async def send() -> int:
            async with http.post(url + PLAIN, json=body(), headers={"x-request-id": "same"}) as response:
                return response.status

        calls = [asyncio.create_task(send()) for _ in range(2)]
        await until_true(lambda: sum(engine.running for engine in engines) == 2)
        found = (await get(http, url, "explain/same"))[1]["requests"]
        assert {request["state"] for request in found} == {"running"}
        assert {request["engine"] for request in found} == {"engine-0", "engine-1"}
        assert found[0]["router"]["name"] == "lengthwise"
        assert found[0]["router"]["terms"]
        for engine in engines:
            engine.gate.set()
        assert await asyncio.gather(*calls) == [200, 200]


@pytest.mark.parametrize("path", ["queue", "engines", "explain/one"])
async def test_paths_that_show_other_clients_are_for_this_machine_only(
    http: aiohttp.ClientSession, engine_url: str, path: str
) -> None:
    with gateway(engine_url) as url:
        status, error = await get(http, url, path, **FOREIGN)
        assert (status, error["error"]["code"]) == (403, "not_local")
    with gateway(engine_url, remote_control=True) as url:
        assert (await get(http, url, path, **FOREIGN))[0] != 403
