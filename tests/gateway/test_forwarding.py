"""Paths without predicted answers reach an engine that serves their model, unqueued and unchanged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.forwarding import FORWARDED
from lengthwise.gateway.keys import add_key
from tests.gateway.engine import RawEngine, StandIn, free_port, served
from tests.gateway.helpers import body, gateway, metric, post, until_true

pytestmark = pytest.mark.anyio


@pytest.fixture
def fleet() -> Iterator[tuple[list[StandIn], list[str]]]:
    """Two engines of model a, one of model b."""
    engines = [StandIn(model=name) for name in ("a", "a", "b")]
    with ExitStack() as stack:
        yield engines, [stack.enter_context(served(engine.app())) for engine in engines]


async def send(
    http: aiohttp.ClientSession, url: str | URL, method: str = "POST", **options: Any
) -> tuple[int, dict[str, Any]]:
    async with http.request(method, url, **options) as response:
        return response.status, json.loads(await response.read())


@pytest.mark.parametrize(
    "path",
    [*sorted(FORWARDED - {"/v1/audio/speech"}), "/v1/new/path.2", "/v2/rerank", "/v1/images/edits/more"],
)
async def test_a_path_reaches_an_engine_of_its_model_byte_for_byte(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]], path: str
) -> None:
    engines, urls = fleet
    sent = b'{ "model":"b",  "input": ["h\\u00e9", 1.50] }'
    with gateway(*urls, extra_paths="/v1/new/path.2, /v2/rerank, /v1/images/*") as url:
        headers = {"x-request-id": "one", "content-type": "application/json; charset=utf-8"}
        status, _ = await send(http, url + path + "?q=1", data=sent, headers=headers)
        assert status == 200
        assert await metric(http, url, 'lengthwise_requests_total{endpoint="forwarded",outcome="ok"}') == 1
    (method, seen, raw, received), *more = engines[2].others
    assert (method, seen, raw, more) == ("POST", path, sent, [])
    assert received["content-type"] == "application/json; charset=utf-8"
    assert received["x-request-id"] == "one"
    assert not engines[0].others


async def test_a_multipart_upload_is_routed_by_its_field_and_passes_unchanged(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    form = aiohttp.FormData()
    form.add_field("file", b'RIFF\x00--x\r\nname="model"\r\n\r\na\r\n' * 1000, filename="speech.wav")
    form.add_field("model", "b")
    with gateway(*urls) as url:
        status, answer = await send(http, url + "/v1/audio/transcriptions", data=form)
    assert (status, answer["text"]) == (200, "transcribed")
    (_, _, raw, headers) = engines[2].others[0]
    assert headers["content-type"].startswith("multipart/form-data; boundary=")
    assert raw.count(b"RIFF") == 1000


async def test_a_binary_answer_passes_unchanged(http: aiohttp.ClientSession, engine: StandIn, engine_url: str) -> None:
    with gateway(engine_url) as url:
        async with http.post(url + "/v1/audio/speech", json={"model": "stand-in", "input": "hi"}) as response:
            assert response.headers["content-type"] == "audio/mpeg"
            assert await response.read() == b"\x00\xffRIFF"


async def test_an_answer_that_breaks_off_is_an_error_for_the_client(http: aiohttp.ClientSession) -> None:
    reply = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ncontent-length: 9\r\n\r\nhalf"
    with RawEngine(reply) as engine, gateway(engine.url) as url, pytest.raises(aiohttp.ClientPayloadError):
        async with http.post(url + "/v1/audio/speech", json={}) as response:
            await response.read()


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        ({"json": {"model": "c"}}, 404, "model_not_found"),
        ({"json": {"input": "which model?"}}, 400, "invalid_value"),
        ({"data": b"{"}, 400, "invalid_value"),
    ],
)
async def test_a_request_without_a_known_model_is_refused_if_engines_differ(
    http: aiohttp.ClientSession,
    fleet: tuple[list[StandIn], list[str]],
    sent: dict[str, Any],
    status: int,
    code: str,
) -> None:
    _, urls = fleet
    with gateway(*urls) as url:
        answer = await send(http, url + "/v1/embeddings", **sent)
    assert (answer[0], answer[1]["error"]["code"]) == (status, code)


async def test_a_request_without_a_model_is_forwarded_if_all_engines_serve_the_same(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    _, urls = fleet
    with gateway(*urls[:2]) as url:
        assert (await send(http, url + "/tokenize", json={"prompt": "hi"}))[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/sleep",
        "/wake_up",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/v1/load_lora_adapter",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/stored_1",
        "/v1/conversations/conv_1",
        "/v1/files",
        "/v1/batches",
        "/v1/images/generations",
        "/v1/responses/resp_1/unknown",
        "/v1/embeddings/more",
        "/v2/rerank",
        "/v1/%6coad_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/../sleep",
        "/v1/..%2fsleep",
        "/v1/%2e%2e/sleep",
        "/v1/x/../../sleep",
        "/v1//sleep",
        "/v1/a%00b",
        "/v1/embeddings/",
        "/v1/",
    ],
)
async def test_paths_that_administer_engines_are_not_forwarded(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, path: str
) -> None:
    from yarl import URL

    with gateway(engine_url) as url:
        status, answer = await send(http, URL(url + path, encoded=True), json={"model": "stand-in"})
        assert (status, answer["error"]["code"]) == (404, "not_found")
    assert not engine.others


@pytest.mark.parametrize("path", ["v1/x", "/v1/*/x", "/*", "/v1/../x", "/lengthwise/v1/*", "/v1/models/*", "/v1/x?"])
def test_what_is_no_path_to_forward_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not a path to forward"):
        GatewayConfig.model_validate({"engines": ["http://x"], "extra_paths": [path]})


async def test_tenants_and_tokens_count_on_forwarded_paths(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    headers = {"authorization": f"Bearer {add_key(file, 'a', {'tokens_per_minute': 1000})}"}
    paths = ["/v1/rerank", "/v1/images/generations"]
    with gateway(engine_url, keys=file, extra_paths=paths) as url:

        async def ask(path: str, size: int) -> int:
            sent = {"model": "stand-in", "input": "x" * size}
            return (await send(http, url + path, json=sent, headers=headers))[0]

        async def used() -> float:
            return await metric(http, url, 'lengthwise_tenant_tokens_total{tenant="a"}')

        for path in ("/v1/embeddings", *paths):
            assert (await send(http, url + path, json={}))[0] == 401
        assert await ask("/v1/embeddings", 30) == 200
        assert await used() == 2, "as the engine reports"
        assert [await ask(path, 900) for path in paths] == [200, 200]
        assert 602 < await used() < 660, "by bytes / 3 where it does not"
        assert await ask("/tokenize", 5000) == 200, "no LLM runs for it"
        assert await ask("/v1/embeddings", 1500) == 429
        assert await used() < 660
    assert len(engine.others) == 4


async def test_unsupported_methods_are_refused(http: aiohttp.ClientSession, engine: StandIn, engine_url: str) -> None:
    with gateway(engine_url) as url:
        for method, path in (
            ("PATCH", "/v1/embeddings"),
            ("GET", "/v1/chat/completions"),
            ("DELETE", "/v1/models/stand-in"),
            ("POST", "/v1/models"),
        ):
            status, answer = await send(http, url + path, method)
            assert (status, answer["error"]["code"]) == (405, "method_not_allowed")
    assert not engine.others


async def test_a_forwarded_request_does_not_wait_behind_the_queue(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    engine.gate.clear()
    with gateway(engine_url, in_flight=1) as url:
        running = asyncio.create_task(post(http, url, body()))
        await until_true(lambda: engine.running == 1)
        assert (await send(http, url + "/v1/embeddings", json={"model": "stand-in", "input": "x"}))[0] == 200
        engine.gate.set()
        assert (await running)[0] == 200


async def test_a_body_beyond_the_limits_is_refused(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url, max_body_bytes=100) as url:
        status, answer = await send(http, url + "/v1/embeddings", data=b"x" * 101)
        assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert not engine.others


async def test_an_unreachable_engine_is_skipped(http: aiohttp.ClientSession, engine: StandIn, engine_url: str) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with gateway(dead, engine_url, health_interval_s=60.0) as url:
        assert (await send(http, url + "/v1/embeddings", json={"model": "stand-in"}))[0] == 200
    with gateway(dead) as url:
        status, answer = await send(http, url + "/v1/embeddings", json={"model": "stand-in"})
        assert (status, answer["error"]["code"]) == (503, "no_engine")


@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel")])
async def test_a_stored_answer_is_found_on_the_engine_that_has_it(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]], method: str, tail: str
) -> None:
    engines, urls = fleet
    engines[1].stored.add("resp_9")
    with gateway(*urls) as url:
        assert (await send(http, f"{url}/v1/responses/resp_9{tail}", method))[0] == 200
        assert (await send(http, f"{url}/v1/responses/resp_none{tail}", method))[0] == 404
    assert [len(engine.others) for engine in engines] == [2, 2, 1]


async def test_only_the_engine_that_stores_an_answer_is_asked_for_it(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    engines[2].stored.add("resp_1")
    with gateway(*urls) as url:
        sent = {"model": "b", "input": "hi", "stream": True}
        async with http.post(url + "/v1/responses", json=sent) as response:
            assert response.status == 200
            await response.read()
        assert (await send(http, url + "/v1/responses/resp_1", "GET"))[0] == 200
    assert [len(engine.others) for engine in engines] == [0, 0, 1]
