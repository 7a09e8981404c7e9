"""The dashboard: its files, its events and their access rule, and simulations of recent traffic."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.gateway import GatewayConfig, create_app, dashboard
from lengthwise.gateway.keys import add_key
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import ADMIN, PLAIN, body, gateway, hinted, metric, post, until, until_waiting

pytestmark = pytest.mark.anyio

BASE = "/lengthwise/v1"
FOREIGN = {"Via": "1.1 proxy"}
PROMPT = "the secret words of a prompt"


@asynccontextmanager
async def watching(http: aiohttp.ClientSession, url: str, **headers: str) -> AsyncIterator[AsyncIterator[Any]]:
    """Yield the events of the dashboard as (name, data)."""
    async with http.get(f"{url}{BASE}/events", headers=headers) as response:
        assert response.status == 200, await response.text()

        async def events() -> AsyncIterator[Any]:
            name = ""
            async for line in response.content:
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    yield name, json.loads(line[6:])

        yield events()


async def test_the_page_needs_no_key_and_nothing_from_another_host(
    http: aiohttp.ClientSession, engine_url: str, tmp_path: Path
) -> None:
    add_key(tmp_path / "keys.json", "ops", {"admin": True})
    with gateway(engine_url, keys=str(tmp_path / "keys.json")) as url:
        for path in ("/", "/dashboard.css", "/dashboard.js"):
            async with http.get(url + path) as response:
                assert response.status == 200
                assert "default-src 'none'" in response.headers["content-security-policy"]
                text = re.sub(r"http://www\.w3\.org/2000/svg", "", await response.text())
                assert not re.search(r"https?:|//[a-z]+\.", text)
                assert "<script>" not in text
                assert not re.search(r"\s(style|on\w+)=", text)


async def test_a_snapshot_has_the_queue_in_its_order_and_no_text(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, policy="sjf", in_flight=1) as url:
        calls = [asyncio.create_task(post(http, url, hinted("first", 5, prompt=PROMPT)))]
        await until_waiting(http, url, 0)
        for name, tokens in (("long", 900), ("short", 20)):
            calls.append(asyncio.create_task(post(http, url, hinted(name, tokens, prompt=PROMPT))))
        await until_waiting(http, url, 2)
        async with watching(http, url) as events:
            name, history = await anext(events)
            assert name == "history"
            assert "sjf" in history["known_policies"]
            name, snapshot = await anext(events)
            assert name == "snapshot"
            assert [row[3] for row in snapshot["queue"]] == [20, 900]  # caps
            assert (snapshot["waiting"], len(snapshot["slots"])) == (2, 1)
            assert snapshot["policies"][snapshot["policy"]] == "sjf"
            assert snapshot["engines"][0]["running"] == 1
            engine.gate.set()
            await asyncio.gather(*calls)
            finished: list[int] = []
            while len(finished) < 3:
                _, snapshot = await anext(events)
                finished += [row[7] for row in snapshot["finished"]]
            assert sorted(finished) == [5, 20, 900]
            text = json.dumps([history, snapshot])
            assert PROMPT not in text
            assert engine_url.removeprefix("http://") not in text


async def test_events_have_the_access_rule_of_the_queue(
    http: aiohttp.ClientSession, engine_url: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    admin, other = add_key(keys, "ops", {"admin": True}), add_key(keys, "chat", {})
    with gateway(engine_url, keys=str(keys)) as url:
        for key, status in ((None, 401), (other, 403), (admin, 200)):
            headers = FOREIGN | ({} if key is None else {"Authorization": f"Bearer {key}"})
            async with http.get(f"{url}{BASE}/events", headers=headers) as response:
                assert response.status == status


async def test_requests_of_other_origins_are_refused(http: aiohttp.ClientSession, engine_url: str) -> None:
    with gateway(engine_url) as url:
        for headers, status in (
            ({"Origin": url}, 200),
            ({"Origin": url, "Sec-Fetch-Site": "same-origin"}, 200),
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
        ):
            async with http.put(f"{url}{BASE}/policy", json={"policy": "fcfs"}, headers=headers | ADMIN) as response:
                assert response.status == status, headers


async def test_viewers_are_bounded_and_no_task_runs_without_them(
    http: aiohttp.ClientSession, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "MAX_VIEWERS", 1)
    with gateway(engine_url) as url:
        idle = await metric(http, url, "lengthwise_tasks")
        async with watching(http, url) as events:
            await anext(events)
            async with http.get(f"{url}{BASE}/events") as response:
                assert response.status == 503
                assert (await response.json())["error"]["code"] == "too_many_viewers"
            assert await metric(http, url, "lengthwise_tasks") > idle

        async def is_idle() -> bool:
            return await metric(http, url, "lengthwise_tasks") <= idle

        await until(is_idle)


async def test_a_stopping_gateway_ends_the_streams_of_its_viewers(http: aiohttp.ClientSession, engine_url: str) -> None:
    app = create_app(GatewayConfig.model_validate({"engines": [engine_url], "predictor": "none", "state": "off"}))
    with served(app) as url:
        async with watching(http, url) as events:
            await anext(events)
            app.state.draining = True
            assert [name async for name, _ in events] in ([], ["snapshot"])


async def test_the_last_hour_under_another_policy_is_kept_up_to_date_while_a_page_is_open(
    http: aiohttp.ClientSession, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    async def simulated(question: bytes) -> tuple[list[bytes], bool]:
        asked.append(json.loads(question.partition(b"\n")[0]))
        answer = {"policy": "fcfs", "over": {"ttft_p50": [2.1, 2.0, 2.2]}}
        return [json.dumps(line).encode() for line in ({"requests": 60}, answer)], True

    monkeypatch.setattr(dashboard, "_simulated", simulated)
    monkeypatch.setattr(dashboard, "_MIN_BESIDE", 50)
    with gateway(engine_url, policy="sjf") as url:
        await asyncio.gather(*(post(http, url, hinted(f"r{n}", 2)) for n in range(60)))
        assert asked == [], "nothing is simulated without a viewer"
        async with watching(http, url) as events:
            async for name, data in events:
                if name == "snapshot" and data["beside"] is not None:
                    break
            assert data["beside"] == {"now": {"requests": 60}, "policy": "fcfs", "over": {"ttft_p50": [2.1, 2.0, 2.2]}}
            await anext(events)
            await anext(events)
    assert len(asked) == 1, "the next replay waits"
    assert asked[0]["question"]["policies"] == ["fcfs"]


async def test_an_open_request_is_explained_by_its_number(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, in_flight=1) as url:
        call = asyncio.create_task(post(http, url, hinted("first", 5)))
        await until_waiting(http, url, 0)
        async with watching(http, url) as events:
            await anext(events)
            _, snapshot = await anext(events)
        number = snapshot["slots"][0][0]
        async with http.get(f"{url}{BASE}/explain/number:{number}") as response:
            (found,) = (await response.json())["requests"]
        assert (found["state"], found["engine"]) == ("running", "engine-0")
        async with http.get(f"{url}{BASE}/explain/number:999999") as response:
            assert response.status == 404
        engine.gate.set()
        await call


@pytest.mark.parametrize(
    ("question", "status", "code"),
    [
        ({"policies": ["fcfs"], "engines": [1]}, 409, "too_few_requests"),
        ({"policies": ["no_such"], "engines": [1]}, 400, "invalid_value"),
        ({"policies": ["os:system"], "engines": [1]}, 400, "invalid_value"),
        ({"policies": [], "engines": [1]}, 400, "invalid_value"),
        ({"policies": ["fcfs"], "engines": [1000]}, 400, "invalid_value"),
        ({"policies": ["fcfs"], "engines": [1], "engine": "/etc/passwd"}, 400, "invalid_value"),
        ({"policies": ["fcfs"] * 2000, "engines": [1]}, 413, "body_too_large"),
        ([], 400, "invalid_value"),
    ],
)
async def test_what_if_refuses_an_invalid_question(
    http: aiohttp.ClientSession, engine_url: str, question: Any, status: int, code: str
) -> None:
    with gateway(engine_url) as url:
        async with http.post(f"{url}{BASE}/what-if", json=question) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (status, code)


async def test_what_if_answers_in_ratios_from_the_recorded_traffic(
    http: aiohttp.ClientSession, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_MAX_ANSWER_S", 300.0)  # the machine may be busy
    with gateway(engine_url) as url:
        for _ in range(3):
            await asyncio.gather(*(post(http, url, body(tokens=20)) for _ in range(20)))
        question = {"policies": ["fcfs", "sjf"], "engines": [1, 2]}
        async with http.post(f"{url}{BASE}/what-if", json=question) as response:
            found = await response.json()
            assert response.status == 200, found
        assert found["now"]["requests"] == 60
        cases = [(answer["policy"], answer["engines"]) for answer in found["answers"]]
        assert cases == [("fcfs", 1), ("sjf", 1), ("fcfs", 2), ("sjf", 2)]
        assert all("what runs now" in answer["words"] for answer in found["answers"])


async def test_a_what_if_simulation_that_takes_too_long_is_ended(
    http: aiohttp.ClientSession, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_MAX_ANSWER_S", 0.01)
    with gateway(engine_url) as url:
        await asyncio.gather(*(post(http, url, body(tokens=2)) for _ in range(50)))
        async with http.post(f"{url}{BASE}/what-if", json={"policies": ["fcfs"], "engines": [1]}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "no_simulation")
        async with http.post(url + PLAIN, json=body()) as response:
            assert response.status == 200
