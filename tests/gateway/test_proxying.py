"""The gateway as an HTTP proxy: headers, query, the end of a stream, retry-after, and which peer is local."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.gateway.engine import RawEngine, StandIn
from tests.gateway.helpers import ADMIN, PLAIN, TOKEN, body, gateway, metric, post, until_true, until_waiting

pytestmark = pytest.mark.anyio


async def test_repeated_headers_and_the_query_reach_the_engine(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    sent = [("x-tag", "one"), ("x-tag", "two"), ("cookie", "a=1"), ("cookie", "b=2")]
    with gateway(engine_url) as url:
        target = URL(url + PLAIN + "?api-version=1&q=a%2Fb+c", encoded=True)
        async with http.post(target, json=body(), headers=sent) as response:
            assert response.status == 200
    received = [(name.decode(), value.decode()) for name, value in engine.raw_headers[0]]
    assert [pair for pair in received if pair[0] in ("x-tag", "cookie")] == sent
    assert engine.queries == ["api-version=1&q=a%2Fb+c"]


@pytest.mark.parametrize("value", ["h\u00e9llo", "\U0001f600"])
async def test_a_header_in_utf8_reaches_the_engine_unchanged(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, value: str
) -> None:
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, json=body(), headers={"x-note": value}) as response:
            assert response.status == 200
    assert (b"x-note", value.encode()) in engine.raw_headers[0]


async def test_headers_named_by_connection_are_not_forwarded(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    hop = {"connection": "keep-alive, X-Hop", "x-hop": "secret", "x-end": "stays"}
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, json=body(), headers=hop) as response:
            assert response.status == 200
    assert "x-hop" not in engine.headers[0]
    assert engine.headers[0]["x-end"] == "stays"
    reply = b"HTTP/1.1 200 OK\r\nconnection: close, x-hop\r\nx-hop: 1\r\nx-end: 2\r\ncontent-length: 2\r\n\r\n{}"
    with RawEngine(reply) as raw, gateway(raw.url) as url:
        async with http.post(url + PLAIN, json=body()) as response:
            assert "x-hop" not in response.headers
            assert response.headers["x-end"] == "2"


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (b"data: [DONE]\n\n", "ok"),
        (b"data: [DONE]", "ok"),
        (b"data:[DONE]\r\n\r\n: ping\n\n", "ok"),
        (b"", "broken_stream"),
        (b'data: {"choices": [{"text": "data: [DONE]"}]}\n\n', "broken_stream"),
    ],
)
async def test_a_stream_without_done_passes_and_counts_as_broken(
    http: aiohttp.ClientSession, end: bytes, outcome: str
) -> None:
    stream = b'data: {"choices": [{"text": "a"}]}\n\n' + end
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(stream)
    with RawEngine(head + stream) as engine, gateway(engine.url) as url:
        async with http.post(url + PLAIN, json=body(stream=True)) as response:
            assert await response.read() == stream
        for each in ("ok", "broken_stream"):
            line = f'lengthwise_requests_total{{endpoint="/v1/completions",outcome="{each}"}}'
            assert await metric(http, url, line) == (each == outcome)
        line = 'lengthwise_engine_failures_total{engine="engine-0",kind="unfinished"}'
        assert await metric(http, url, line) == (outcome == "broken_stream")


async def test_retry_after_is_the_predicted_wait(http: aiohttp.ClientSession, engine: StandIn, engine_url: str) -> None:
    async def refusal(url: str) -> int:
        async with http.post(url + PLAIN, json=body("too many")) as response:
            assert response.status == 429
            return int(response.headers["retry-after"])

    with gateway(engine_url, in_flight=1, max_waiting=4) as url:
        engine.token_s = 0.2
        assert (await post(http, url, body("measured")))[0] == 200  # 3 tokens: 0.6 s
        engine.token_s = 0.0
        engine.gate.clear()
        calls = [asyncio.create_task(post(http, url, body("runs")))]
        await until_true(lambda: engine.running == 1)
        calls += [asyncio.create_task(post(http, url, body(str(n)))) for n in range(4)]
        await until_waiting(http, url, 4)
        assert 3 <= await refusal(url) <= 60  # four wait and one runs, about 0.6 s each
        engine.gate.set()
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}


@pytest.mark.parametrize(
    "headers",
    [
        {"Via": "1.1 proxy"},
        {"X-Real-IP": "127.0.0.1"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-Host": "gateway"},
        {"Forwarded": "for=127.0.0.1"},
        {"Origin": "http://127.0.0.1"},
        {"Host": "gateway.example.com"},
        {"Host": "127.0.0.1.example.com:8080"},
        {"Host": "10.0.0.7"},
        {"Host": ""},
    ],
)
async def test_the_policy_is_not_changed_through_a_proxy_or_under_a_foreign_host(
    http: aiohttp.ClientSession, engine_url: str, headers: dict[str, str]
) -> None:
    with gateway(engine_url) as url:
        async with http.post(
            url + "/lengthwise/v1/policy", json={"policy": "fcfs"}, headers=headers | ADMIN
        ) as response:
            assert response.status in (400, 403)
        async with http.get(url + "/lengthwise/v1/policy") as response:
            assert await response.json() == {"policy": "lengthwise"}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]:8080", "[::1]"])
async def test_the_policy_is_changed_from_this_machine(http: aiohttp.ClientSession, engine_url: str, host: str) -> None:
    with gateway(engine_url) as url:
        changed = {"policy": "fcfs"}
        async with http.post(url + "/lengthwise/v1/policy", json=changed, headers={"Host": host} | ADMIN) as response:
            assert await response.json() == changed


@pytest.mark.parametrize("remote_control", [False, True])
async def test_without_keys_a_change_needs_the_admin_token_on_this_machine_too(
    http: aiohttp.ClientSession, engine_url: str, remote_control: bool
) -> None:
    base = "/lengthwise/v1"
    changes: list[tuple[str, str, dict[str, str] | None]] = [
        ("PUT", "/policy", {"policy": "fcfs"}),
        ("POST", "/policy", {"policy": "fcfs"}),
        ("POST", "/engines", {"url": "http://127.0.0.1:1"}),
        ("DELETE", "/engines/engine-0", None),
    ]
    with gateway(engine_url, remote_control=remote_control) as url:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
            for method, path, sent in changes:
                async with http.request(method, url + base + path, json=sent, headers=headers) as response:
                    assert (response.status, (await response.json())["error"]["code"]) == (403, "no_admin_token")
        for path in ("/policy", "/engines", "/queue"):
            async with http.get(url + base + path) as response:
                assert response.status == 200, "reading stays open to this machine"
        async with http.put(url + base + "/policy", json={"policy": "fcfs"}, headers=ADMIN) as response:
            assert response.status == 200
    with gateway(engine_url, admin_token=None) as url:
        async with http.put(url + base + "/policy", json={"policy": "fcfs"}, headers=ADMIN) as response:
            assert response.status == 403, "without a token no change is possible"


async def test_a_model_name_cannot_forge_a_line_of_the_log(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name = "gpt-x\nERROR forged line\x1b[2J\u2028" + "y" * 4000
    engine.model, seen = name, ""
    with gateway(engine_url, predictor="fast", policy="sjf") as url:
        assert (await post(http, url, {**body(), "model": name}))[0] == 200

        def logged() -> bool:
            nonlocal seen
            seen += capfd.readouterr().err
            return "is not known" in seen

        await until_true(logged)
    assert "gpt-x\\nERROR forged line\\x1b[2J\\u2028" in seen
    assert not any(line.startswith("ERROR") for line in seen.splitlines())
    assert len(seen) < 1000


async def test_health_reports_predictions_from_history_after_the_predictor_died(
    http: aiohttp.ClientSession, engine_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "dying.py").write_text(
        "import os\n\nclass Dying:\n    def predict(self, inputs):\n        os._exit(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def health(url: str) -> tuple[str, str]:
        async with http.get(url + "/health") as response:
            found = json.loads(await response.read())
            return found["predictor"], found["predictions_from"]

    with gateway(engine_url, predictor="dying:Dying", policy="sjf") as url:
        assert await health(url) == ("dying:Dying", "predictor")
        assert await metric(http, url, 'lengthwise_predictor{predictor="dying:Dying"}') == 1
        for died in range(1, 4):
            assert (await post(http, url, body()))[0] == 200
            while await metric(http, url, 'lengthwise_predictor_events_total{event="failed"}') < died:
                await asyncio.sleep(0.01)
        assert await health(url) == ("dying:Dying", "history")
        assert await metric(http, url, 'lengthwise_predictor{predictor="dying:Dying"}') == 0
        assert (await post(http, url, body()))[0] == 200
