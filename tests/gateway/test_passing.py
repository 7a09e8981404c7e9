"""Requests and answers pass through the gateway unchanged."""

from __future__ import annotations

import io
import json

import aiohttp
import pytest

from tests.gateway.engine import RawEngine, StandIn, served
from tests.gateway.helpers import CHAT, PLAIN, body, gateway, hinted, metric, post

pytestmark = pytest.mark.anyio


async def test_a_body_without_hints_reaches_the_engine_byte_for_byte(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    sent = '{ "prompt":"h\\u00e9llo \U0001f600",  "max_tokens": 1, "made_up": {"deep": [1.50, null]} }'.encode()
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, data=sent) as response:
            assert response.status == 200
    assert engine.raw == [sent]


async def test_a_body_of_many_megabytes_passes(http: aiohttp.ClientSession, engine: StandIn, engine_url: str) -> None:
    long = "word " * 800_000
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, data=io.BytesIO(json.dumps(body(prompt=long)).encode())) as response:
            assert response.status == 200
    assert engine.bodies[0]["prompt"] == long


async def test_an_answer_passes_with_status_body_and_headers(http: aiohttp.ClientSession) -> None:
    reply = b'HTTP/1.1 418 No\r\ncontent-type: application/json\r\nx-own: yes\r\ncontent-length: 8\r\n\r\n{"a": 1}'
    with RawEngine(reply) as engine, gateway(engine.url) as url:
        async with http.post(url + PLAIN, json=body()) as response:
            assert (response.status, await response.read()) == (418, b'{"a": 1}')
            assert response.headers["x-own"] == "yes"


async def test_a_stream_passes_byte_for_byte(http: aiohttp.ClientSession) -> None:
    events = b"".join(b'data: {"n":%d}\r\n\r\n' % n for n in range(300)) + b": a comment\n\ndata: [DONE]\n\nno end"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    with RawEngine(head + events) as engine, gateway(engine.url) as url:
        async with http.post(url + PLAIN, json=body(stream=True)) as response:
            assert response.headers["content-type"] == "text/event-stream"
            assert await response.read() == events


async def test_tokens_are_passed_on_as_they_arrive(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url) as url:
        engine.token_s = 0.05
        async with http.post(url + CHAT, json=body(messages=[], tokens=20, stream=True)) as response:
            first = await response.content.readany()
            assert b"t0 " in first
            assert b"t19 " not in first
            assert engine.finished == 0, "the first token arrived before the last was generated"
            assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_headers_and_request_id_of_the_client_are_passed_on(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    own = {"authorization": "Bearer k", "x-request-id": "mine", "traceparent": "00-1-2-01"}
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, json=body(), headers=own) as response:
            assert response.headers["x-request-id"] == "mine"
        async with http.post(url + PLAIN, json=body()) as response:
            made = response.headers["x-request-id"]
    assert own.items() <= engine.headers[0].items()
    assert engine.headers[0]["host"] == engine_url.removeprefix("http://")
    assert engine.headers[1]["x-request-id"] == made != ""


async def test_a_hint_is_sent_to_the_engine_as_expected_tokens(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway({"url": engine_url, "kind": "lengthwise"}) as url:
        await post(http, url, hinted("nvext", 40))
        await post(http, url, hinted("beside others", 40, vllm_xargs={"other": "x"}))
        await post(http, url, hinted("already set", 40, vllm_xargs={"expected_tokens": 7}))
        await post(http, url, body("capped", 10, nvext={"agent_hints": {"osl": 500}}))
        await post(http, url, body("none"))
        assert await metric(http, url, 'lengthwise_predictions_total{source="hint"}') == 4
    assert [sent.get("vllm_xargs") for sent in engine.bodies] == [
        {"expected_tokens": 40},
        {"other": "x", "expected_tokens": 40},
        {"expected_tokens": 7},
        {"expected_tokens": 10},
        None,
    ]
    assert engine.bodies[0]["nvext"] == {"agent_hints": {"osl": 40}}


LIMITS = {"slo_s": "x-lengthwise-slo-s", "ttft_s": "x-lengthwise-ttft-s", "per_token_s": "x-lengthwise-per-token-s"}


@pytest.mark.parametrize("name", LIMITS)
async def test_what_is_left_of_a_limit_is_sent_to_the_engine(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, name: str
) -> None:
    with gateway({"url": engine_url, "kind": "lengthwise"}) as url:
        for limit in ("30", "1e9", "1e-9"):
            await http.post(url + PLAIN, json=body("a"), headers={LIMITS[name]: limit})
        await http.post(url + PLAIN, json=body("a", vllm_xargs={name: 30, "other": "x"}))
    sent = [received["vllm_xargs"] for received in engine.bodies]
    assert 20 < sent[0][name] <= 30
    assert 86_000 < sent[1][name] <= 86_400
    assert sent[2][name] == 0.001
    assert 20 < sent[3][name] <= 30
    assert sent[3]["other"] == "x"


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("limit", ["0", "-1", "nan", "soon", ""])
async def test_a_limit_that_is_no_number_above_0_is_refused(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, name: str, limit: str
) -> None:
    with gateway(engine_url) as url:
        for sent, headers, param in (
            (body("a"), {LIMITS[name]: limit}, LIMITS[name]),
            (body("a", vllm_xargs={name: limit}), {}, f"vllm_xargs.{name}"),
        ):
            async with http.post(url + PLAIN, json=sent, headers=headers) as response:
                assert response.status == 400
                assert (await response.json())["error"]["param"] == param
    assert engine.bodies == []


async def test_limits_come_from_the_request_then_the_tenant_then_the_model(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    models = {"stand-in": {"slo_s": 300, "ttft_s": 30, "per_token_s": 3}}
    tenants = {"default": {"ttft_s": 20, "per_token_s": 2}}
    with gateway({"url": engine_url, "kind": "lengthwise"}, models=models, tenants=tenants) as url:
        await http.post(url + PLAIN, json=body("a"), headers={"x-lengthwise-per-token-s": "1"})
    left = engine.bodies[0]["vllm_xargs"]
    assert 200 < left["slo_s"] <= 300
    assert 10 < left["ttft_s"] <= 20
    assert 0.5 < left["per_token_s"] <= 1


async def test_nothing_is_added_for_an_engine_of_another_kind(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url) as url:
        await http.post(url + PLAIN, json=hinted("a", 40), headers={"x-lengthwise-slo-s": "30"})
    assert engine.bodies == [hinted("a", 40)]


async def test_models_of_all_engines_are_listed_once_each(http: aiohttp.ClientSession) -> None:
    one, same, other = StandIn(model="m1"), StandIn(model="m1"), StandIn(model="m2")
    with served(one.app()) as a, served(same.app()) as b, served(other.app()) as c, gateway(a, b, c) as url:
        async with http.get(url + "/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["m1", "m2"]


async def test_round_robin_alternates_between_engines(http: aiohttp.ClientSession) -> None:
    one, two = StandIn(), StandIn()
    with served(one.app()) as a, served(two.app()) as b, gateway(a, b, router="round_robin") as url:
        for n in range(4):
            await post(http, url, body(str(n)))
    assert (one.names(), two.names()) == (["0", "2"], ["1", "3"])


async def test_health_and_metrics_report_the_state(http: aiohttp.ClientSession, engine_url: str) -> None:
    with gateway(engine_url, policy="fcfs") as url:
        await post(http, url, body())
        async with http.get(url + "/health") as response:
            found = json.loads(await response.read())
            assert (response.status, found["status"], found["policy"]) == (200, "ok", "fcfs")
            assert found["engines"] == [{"name": "engine-0", "up": True, "running": 0}]
        assert await metric(http, url, 'lengthwise_requests_total{endpoint="/v1/completions",outcome="ok"}') == 1
        assert await metric(http, url, 'lengthwise_engine_up{engine="engine-0"}') == 1
        assert await metric(http, url, 'lengthwise_policy{policy="fcfs"}') == 1
        assert await metric(http, url, "lengthwise_queue_seconds_count") == 1


async def test_the_async_openai_client_works(engine_url: str) -> None:
    openai = pytest.importorskip("openai")
    with gateway(engine_url) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            assert [model.id async for model in client.models.list()] == ["stand-in"]
            request = {"model": "stand-in", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            whole = await client.chat.completions.create(**request)
            assert whole.usage.completion_tokens == 4
            stream = await client.chat.completions.create(**request, stream=True)
            assert [part.choices[0].delta.content async for part in stream] == ["t0 ", "t1 ", "t2 ", "t3 "]
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(**{**request, "max_tokens": "many"})
            assert refused.value.param == "max_tokens"


async def test_completions_are_requested_uncompressed_so_that_they_can_be_measured(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, json=body(), headers={"accept-encoding": "gzip"}) as response:
            assert response.status == 200
    assert "accept-encoding" not in engine.headers[0]
