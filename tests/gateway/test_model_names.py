"""Aliases and fallbacks: the model that serves a request, and the header that names it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import aiohttp
import pytest

from tests.gateway.engine import StandIn, free_port, served
from tests.gateway.helpers import CHAT, body, gateway, post, until

pytestmark = pytest.mark.anyio

MODELS: dict[str, Any] = {
    "big": {"aliases": ["gpt-4o", "best"], "fallbacks": ["small"]},
    "small": {"aliases": ["mini"]},
}


@pytest.fixture
def fleet() -> Iterator[tuple[list[StandIn], list[str]]]:
    engines = [StandIn(model="big"), StandIn(model="small")]
    with ExitStack() as stack:
        yield engines, [stack.enter_context(served(engine.app())) for engine in engines]


async def test_an_alias_is_replaced_in_the_body_and_no_other_byte_changes(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    sent = '{ "messages":[{"role":"user","content":"h\\u00e9 \\"model\\": \\"best\\""}],  "model" : "best","x": 1.50}'
    with gateway(*urls, models=MODELS) as url:
        async with http.post(url + CHAT, data=sent.encode()) as response:
            assert (response.status, response.headers["x-lengthwise-model"]) == (200, "big")
    assert engines[0].raw == [sent.replace('"model" : "best"', '"model" : "big"').encode()]


async def test_a_request_by_model_name_passes_unchanged_without_the_header(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    sent = json.dumps(body(model="small")).encode()
    with gateway(*urls, models=MODELS) as url:
        async with http.post(url + "/v1/completions", data=sent) as response:
            assert response.status == 200
            assert "x-lengthwise-model" not in response.headers
    assert engines[1].raw == [sent]


async def test_aliases_are_replaced_in_forwarded_json_and_forms(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    form = aiohttp.FormData({"model": "mini", "language": "en"})
    form.add_field("file", b"RIFF", filename="a.wav")
    with gateway(*urls, models=MODELS) as url:
        async with http.post(url + "/v1/embeddings", json={"model": "mini", "input": "x"}) as response:
            assert (response.status, response.headers["x-lengthwise-model"]) == (200, "small")
        async with http.post(url + "/v1/audio/transcriptions", data=form) as response:
            assert response.status == 200
    (_, _, raw, _), (_, _, upload, _) = engines[1].others
    assert json.loads(raw) == {"model": "small", "input": "x"}
    assert b'name="model"\r\n\r\nsmall\r\n' in upload
    assert b"\r\n\r\nen\r\n" in upload


async def test_a_fallback_serves_while_no_engine_of_the_model_is_up(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    port = free_port()

    async def serving(url: str) -> str:
        async with http.post(url + "/v1/completions", json=body(model="gpt-4o")) as response:
            assert response.status == 200
            return response.headers["x-lengthwise-model"]

    async def by_big() -> bool:
        return await serving(url) == "big"

    big = engines[0]
    with gateway(f"http://127.0.0.1:{port}", urls[1], models=MODELS) as url:
        with served(big.app(), port):
            await until(by_big)
        assert await until_model(http, url, "small")
        with served(big.app(), port):
            await until(by_big)


async def until_model(http: aiohttp.ClientSession, url: str, model: str) -> bool:
    async def served_by() -> bool:
        async with http.post(url + "/v1/completions", json=body(model="big")) as response:
            return response.status == 200 and response.headers.get("x-lengthwise-model", "big") == model

    await until(served_by)
    return True


async def test_a_fallback_serves_while_the_breaker_of_the_model_is_open(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    engines[0].mode = "error"
    with gateway(*urls, models=MODELS, breaker_failures=2, breaker_s=60.0) as url:
        statuses = [(await post(http, url, body(model="big")))[0] for _ in range(4)]
    assert statuses == [500, 500, 200, 200]
    assert [request["model"] for request in engines[1].bodies] == ["small", "small"]


async def test_without_a_fallback_that_is_up_a_request_waits_for_its_model(
    http: aiohttp.ClientSession, engine: StandIn
) -> None:
    dead, port = f"http://127.0.0.1:{free_port()}", free_port()
    engine.model = "big"
    with gateway(f"http://127.0.0.1:{port}", dead, models=MODELS, hold_timeout_s=20.0) as url:
        waiting = asyncio.create_task(post(http, url, body(model="big")))
        with served(engine.app(), port):
            assert (await waiting)[0] == 200


async def test_models_lists_aliases_beside_their_models(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    _, urls = fleet
    with gateway(*urls, models=MODELS) as url:
        async with http.get(url + "/v1/models") as response:
            listed = {model["id"]: model for model in (await response.json())["data"]}
        assert set(listed) == {"big", "small", "gpt-4o", "best", "mini"}
        assert listed["mini"]["root"] == "small"
        async with http.get(url + "/v1/models/gpt-4o") as response:
            assert (await response.json()).items() >= {"id": "gpt-4o", "object": "model", "root": "big"}.items()
        async with http.get(url + "/v1/models/org/unknown") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")


async def test_the_latency_target_of_a_model_applies_to_requests_without_one(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    models = {"big": {"aliases": ["best"], "slo_s": 500.0}}
    with gateway({"url": urls[0], "kind": "lengthwise"}, models=models) as url:
        for headers in ({}, {"x-lengthwise-slo-s": "9"}):
            async with http.post(url + "/v1/completions", json=body(model="best"), headers=headers) as response:
                assert response.status == 200
    targets = [request["vllm_xargs"]["slo_s"] for request in engines[0].bodies]
    assert 300 < targets[0] <= 500
    assert 0 < targets[1] <= 9
