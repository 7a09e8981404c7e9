"""A gateway that only observes passes every request at once and unchanged, and logs a row for each."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig
from lengthwise.predictors.service import PredictionService
from lengthwise.traffic.reader import read_traffic
from lengthwise.traffic.rows import RequestRow
from tests.gateway.engine import Mode, RawEngine, StandIn, free_port, served
from tests.gateway.helpers import CHAT, PLAIN, body, gateway, metric, until, until_true
from tests.predictors.guesses import Guess

pytestmark = pytest.mark.anyio


@contextmanager
def observing(engine: str, log: Path, predictor: str = "none", **options: Any) -> Iterator[str]:
    options = {"predictor": predictor, "hold_timeout_s": 0.0, **options}
    with gateway(engine, observe=True, log=log, **options) as url:
        yield url


def rows(log: Path) -> tuple[RequestRow, ...]:
    return read_traffic(log).rows


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "traffic"


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guess]:
    """Replace `fast` by a predictor that reads the number at the end of a prompt and can hang."""
    made = Guess()
    monkeypatch.setattr("lengthwise.gateway.app.prediction_service", lambda *_, **__: PredictionService(lambda: made))
    yield made
    made.gate.set()


async def streamed(http: aiohttp.ClientSession, url: str, data: dict[str, Any], path: str = PLAIN) -> str:
    async with http.post(url + path, json={**data, "stream": True}) as response:
        assert response.status == 200
        return await response.text()


async def test_requests_are_forwarded_at_once_in_order_of_arrival(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, log: Path
) -> None:
    engine.gate.clear()
    names = [f"r{n}" for n in range(40)]
    with observing(engine_url, log) as url:
        calls = []
        for n, name in enumerate(names):
            calls.append(asyncio.create_task(streamed(http, url, body(name, 3 + n % 5))))
            await until_true(lambda n=n: len(engine.bodies) == n + 1)  # type: ignore[misc]
        assert engine.names() == names
        assert engine.running == len(names), "all run in the engine before the first answer"
        engine.gate.set()
        answers = await asyncio.gather(*calls)
    assert all("[DONE]" in answer for answer in answers)
    entries = rows(log)
    assert [entry.output_tokens for entry in entries] == [3 + n % 5 for n in range(40)]
    assert {entry.policy for entry in entries} == {"fcfs"}
    assert all(a.arrival_s <= b.arrival_s for a, b in itertools.pairwise(entries))


async def test_a_body_and_its_answer_pass_byte_for_byte(
    http: aiohttp.ClientSession, engine: StandIn, log: Path
) -> None:
    engine.owned_by = "vllm"  # which else receives a priority
    sent = '{ "prompt":"h\\u00e9llo \U0001f600",  "max_tokens": 1, "made_up": {"deep": [1.50, null]} }'.encode()
    with served(engine.app()) as engine_url, observing(engine_url, log) as url:
        async with http.post(url + PLAIN, data=sent, headers={"authorization": "mine"}) as response:
            through = await response.read()
        async with http.post(engine_url + PLAIN, data=sent) as response:
            assert through == await response.read()
    assert engine.raw == [sent, sent]
    assert engine.headers[0]["authorization"] == "mine"


async def test_an_engine_that_refuses_is_passed_on_and_not_asked_again(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, log: Path
) -> None:
    with observing(engine_url, log) as url:
        answers: list[tuple[Mode, int]] = [("busy", 429), ("error", 500), ("ok", 200)]
        for engine.mode, status in answers:
            async with http.post(url + PLAIN, json=body()) as response:
                assert response.status == status
    assert len(engine.bodies) == 3, "nothing is sent twice"
    assert [row.outcome for row in rows(log)] == ["client_error", "engine_error", "ok"]


async def test_other_paths_pass_unlogged(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, log: Path
) -> None:
    with observing(engine_url, log) as url:
        async with http.get(url + "/v1/models") as response:
            assert (await response.json())["data"][0]["id"] == engine.model
        async with http.get(url + "/v1/responses/unknown") as response:
            assert response.status == 404
    with pytest.raises(InputError, match="holds no requests"):
        rows(log)


async def test_each_row_has_the_times_the_length_and_the_prediction(
    http: aiohttp.ClientSession, log: Path, guess: Guess
) -> None:
    engine = StandIn(token_s=0.005, lengths={"whole": 20})
    with served(engine.app()) as engine_url, observing(engine_url, log, "fast") as url:
        text = await streamed(http, url, body("whole", 90, prompt="about 25"))
        assert "usage" not in text, "the client did not ask for it"
        await streamed(http, url, body("cut", 4, prompt="about 300"))
        async with http.post(url + PLAIN, json=body("plain", 7, prompt="about 9")) as response:
            assert response.status == 200
        async with http.post(url + PLAIN, json=body("hinted", 7, nvext={"agent_hints": {"osl": 7}})) as response:
            assert response.status == 200
    assert engine.bodies[0]["stream_options"] == {"include_usage": True}
    found = read_traffic(log)
    whole, cut, plain, hinted = found.rows
    assert (whole.outcome, whole.output_tokens, whole.input_tokens, whole.max_tokens) == ("ok", 20, 7, 90)
    assert (whole.counted, whole.censored) == (False, False)
    assert whole.first_token_s is not None
    assert whole.finished_s is not None
    assert whole.arrival_s < whole.first_token_s < whole.finished_s
    assert whole.finished_s - whole.arrival_s >= 20 * 0.005
    assert whole.mu == pytest.approx(math.log(25), abs=1e-5)
    assert whole.predictor_mu is not None
    assert (cut.outcome, cut.output_tokens, cut.censored, cut.counted) == ("ok", 4, True, False)
    assert (plain.outcome, plain.first_token_s, plain.output_tokens) == ("ok", None, 7)
    assert (hinted.source, hinted.sigma, hinted.predictor_mu) == ("hint", 0.0, None)
    assert hinted.mu == pytest.approx(math.log(7), abs=1e-5)
    (counts,) = found.predictors
    assert (counts.asked, counts.answered, counts.failed) == (3, 3, 0)
    del guess


async def test_a_predictor_that_hangs_or_raises_delays_no_request(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, log: Path, guess: Guess
) -> None:
    guess.gate.clear()
    with observing(engine_url, log, "fast") as url:
        for name in "abc":
            await streamed(http, url, body(name, 3, prompt="no number"))
        assert engine.finished == 3, "all were answered while the predictor hung"
        guess.gate.set()
        async with http.post(url + CHAT, json={"messages": ["no object"], "max_tokens": 2}) as response:
            assert response.status == 200
    first, *others = rows(log)
    assert (first.source, first.mu) == ("prior", None)
    assert all(row.predictor_mu is None and row.history_mu != first.history_mu for row in others)


async def test_a_request_whose_client_disconnects_is_aborted_and_logged(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, log: Path
) -> None:
    engine.token_s = 0.01
    with observing(engine_url, log) as url:
        async with http.post(url + PLAIN, json=body("a", 900, stream=True)) as response:
            await response.content.readany()
            response.close()
        await until_true(lambda: engine.aborted == 1)
    (row,) = rows(log)
    assert row.outcome == "cancelled"
    assert row.output_tokens is None or (row.counted and row.censored and 1 <= row.output_tokens < 900)


async def test_an_answer_is_complete_where_its_client_disconnects_after_the_last_event(
    http: aiohttp.ClientSession, log: Path
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    choice, usage = (
        b'{"choices":[{"text":"x","finish_reason":"stop"}]}',
        b'{"choices":[],"usage":{"completion_tokens":7}}',
    )
    events = b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\n" % (choice, usage)
    with RawEngine(head + events, swallow=True) as engine, observing(engine.url, log, health_interval_s=600.0) as url:
        async with http.post(url + PLAIN, json=body(stream=True)) as response:
            while b"[DONE]" not in await response.content.readany():
                pass
            response.close()
        await until_true(lambda: bool(engine.swallowed))  # the gateway has closed its connection
    (row,) = rows(log)
    assert (row.outcome, row.output_tokens, row.counted) == ("ok", 7, False)


async def test_a_stream_without_usage_is_counted_by_its_events(http: aiohttp.ClientSession, log: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    events = b"".join(b'data: {"n":%d}\n\n' % n for n in range(300)) + b"data: [DONE]\n\n"
    with RawEngine(head + events) as engine, observing(engine.url, log) as url:
        async with http.post(url + PLAIN, json=body(stream=True)) as response:
            assert await response.read() == events
    found = read_traffic(log)
    (row,) = found.rows
    assert (row.outcome, row.output_tokens, row.counted) == ("ok", 300, True)


async def test_a_request_to_an_engine_that_is_not_there_fails_at_once_and_is_logged(
    http: aiohttp.ClientSession, log: Path
) -> None:
    with observing(f"http://127.0.0.1:{free_port()}", log) as url:
        async with http.post(url + PLAIN, json=body()) as response:
            assert response.status == 503
    assert [(row.outcome, row.started_s) for row in rows(log)] == [("refused", None)]


async def test_a_full_disk_stops_the_log_but_no_request(
    http: aiohttp.ClientSession, engine_url: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with observing(engine_url, log) as url:
        monkeypatch.setattr("lengthwise.traffic.log.write_all", full)
        assert "[DONE]" in await streamed(http, url, body())
        line = "lengthwise_traffic_log_dropped_total"
        await until(lambda: _at_least(http, url, line))
        monkeypatch.undo()
        assert "[DONE]" in await streamed(http, url, body())
    assert len(rows(log)) == 1


async def _at_least(http: aiohttp.ClientSession, url: str, line: str) -> bool:
    return await metric(http, url, line) >= 1


async def test_what_the_engine_reports_is_logged_when_it_changes(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, log: Path
) -> None:
    cache = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="65"} 1\n'
    texts = [f"vllm:num_requests_running {n}\nvllm:num_requests_waiting 1\n{cache}" for n in (3, 4)]
    engine.metrics = texts[0]
    with observing(engine_url, log) as url:
        for text in texts:
            engine.metrics = text
            seen = engine.scrapes
            await until_true(lambda seen=seen: engine.scrapes >= seen + 3)  # type: ignore[misc]
        await streamed(http, url, body())
    found = read_traffic(log).engines
    assert [(each.running, each.waiting, each.kv_tokens, each.block_size) for each in found] == [
        (3, 1, 1024, 16),
        (4, 1, 1024, 16),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "observe is given without log"),
        ({"log": "x", "policy": "sjf"}, "policy is sjf and observe is on"),
        ({"log": "x", "in_flight": 4}, "in_flight is 4 and observe is on"),
        ({"log": "x", "engines": [{"url": "http://x", "in_flight": 4}]}, "an engine has in_flight and observe is on"),
    ],
)
def test_settings_that_hold_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatewayConfig.model_validate({"engines": ["http://x"], "observe": True, **options})
