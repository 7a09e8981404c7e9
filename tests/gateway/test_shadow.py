"""The shadow forwards every request at once and unchanged, and logs one line for each."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.errors import InputError
from lengthwise.gateway.shadow import create_shadow
from lengthwise.predictors.service import PredictionService
from lengthwise.traffic.shadow_log import (
    EngineMemory,
    Entry,
    Gauges,
    Header,
    Logged,
    PredictorAccount,
    ShadowLog,
    read_log,
)
from tests.gateway.engine import RawEngine, StandIn, free_port, served
from tests.gateway.helpers import CHAT, PLAIN, body, until_true
from tests.predictors.guesses import Guess

pytestmark = pytest.mark.anyio


@contextmanager
def shadow(engine: str, path: Path, predictor: str = "none", **options: Any) -> Iterator[str]:
    with (
        ShadowLog(path, Header(engine, predictor, 0.0)) as log,
        served(create_shadow(engine, log, predictor, scrape_every_s=0.05, **options)) as url,
    ):
        yield url


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "shadow.jsonl"


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guess]:
    """Replace `fast` by a predictor that reads the number at the end of a prompt and can hang."""
    made = Guess()
    monkeypatch.setattr("lengthwise.gateway.shadow.prediction_service", lambda _: PredictionService(lambda: made))
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
    with shadow(engine_url, log) as url:
        calls = []
        for n, name in enumerate(names):
            calls.append(asyncio.create_task(streamed(http, url, body(name, 3 + n % 5))))
            await until_true(lambda n=n: len(engine.bodies) == n + 1)  # type: ignore[misc]
        assert engine.names() == names
        assert engine.running == len(names), "all run in the engine before the first answer"
        engine.gate.set()
        answers = await asyncio.gather(*calls)
    assert all("[DONE]" in answer for answer in answers)
    entries = read_log(log).entries
    assert [entry.output_tokens for entry in entries] == [3 + n % 5 for n in range(40)]
    assert all(a.arrival_s <= b.arrival_s for a, b in itertools.pairwise(entries))


async def test_a_body_and_its_answer_pass_byte_for_byte(
    http: aiohttp.ClientSession, engine: StandIn, log: Path
) -> None:
    sent = '{ "prompt":"h\\u00e9llo \U0001f600",  "max_tokens": 1, "made_up": {"deep": [1.50, null]} }'.encode()
    with served(engine.app()) as engine_url, shadow(engine_url, log) as url:
        headers = {"content-type": "application/json; charset=utf-8", "x-request-id": "mine", "authorization": "no"}
        async with http.post(url + PLAIN, data=sent, headers=headers) as response:
            through = await response.read()
        async with http.post(engine_url + PLAIN, data=sent, headers=headers) as response:
            assert through == await response.read()
    assert engine.raw == [sent, sent]
    assert headers.items() <= engine.headers[0].items()


async def test_a_stream_passes_byte_for_byte_with_the_engines_headers(http: aiohttp.ClientSession, log: Path) -> None:
    events = b"".join(b'data: {"n":%d}\r\n\r\n' % n for n in range(300)) + b": a comment\n\ndata: [DONE]\n\nno end"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: its\r\nconnection: close\r\n\r\n"
    with RawEngine(head + events) as engine, shadow(engine.url, log) as url:
        async with http.post(url + PLAIN, json=body(stream=True)) as response:
            assert await response.read() == events
            assert response.headers["x-request-id"] == "its"
    assert [entry.end for entry in read_log(log).entries] == ["unmeasured"]


@pytest.mark.parametrize("data", [b"not json", b'{"max_tokens": "many"}', b"[1]"])
async def test_an_invalid_body_is_passed_to_the_engine(http: aiohttp.ClientSession, log: Path, data: bytes) -> None:
    reply = (
        b'HTTP/1.1 400 No\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n{"a": 1}'
    )
    with RawEngine(reply) as engine, shadow(engine.url, log) as url:
        async with http.post(url + PLAIN, data=data) as response:
            assert (response.status, await response.read()) == (400, b'{"a": 1}')
    assert [entry.end for entry in read_log(log).entries] == ["refused"]


async def test_other_paths_and_methods_pass_unlogged(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, log: Path
) -> None:
    with shadow(engine_url, log) as url:
        async with http.get(url + "/v1/models?a=b%20c") as response:
            assert (await response.json())["data"][0]["id"] == engine.model
        async with http.put(url + "/v1/models") as response:
            assert response.status == 405
        async with http.get(url + "/v1/responses/unknown") as response:
            assert response.status == 404
    assert read_log(log).entries == ()


async def test_each_line_has_the_times_the_length_and_the_prediction(
    http: aiohttp.ClientSession, log: Path, guess: Guess
) -> None:
    engine = StandIn(token_s=0.005, lengths={"whole": 20})
    with served(engine.app()) as engine_url, shadow(engine_url, log, "fast") as url:
        text = await streamed(http, url, body("whole", 90, prompt="about 25"))
        assert "usage" not in text, "the client did not ask for it"
        await streamed(http, url, body("cut", 4, prompt="about 300"))
        async with http.post(url + PLAIN, json=body("plain", 7, prompt="about 9")) as response:
            assert response.status == 200
        async with http.post(url + PLAIN, json=body("hinted", 7, nvext={"agent_hints": {"osl": 7}})) as response:
            assert response.status == 200
    assert engine.bodies[0]["stream_options"] == {"include_usage": True}
    whole, cut, plain, hinted = read_log(log).entries
    assert (whole.end, whole.output_tokens, whole.prompt_tokens, whole.max_tokens) == ("whole", 20, 7, 90)
    assert whole.first_token_s is not None
    assert whole.arrival_s < whole.first_token_s < whole.finished_s
    assert whole.finished_s - whole.arrival_s >= 20 * 0.005
    assert whole.source == "predictor"
    assert whole.prediction_mu == pytest.approx(math.log(25))
    assert (cut.end, cut.output_tokens, cut.exact) == ("cut", 4, True)
    assert (plain.end, plain.streamed, plain.first_token_s, plain.output_tokens) == ("cut", False, None, 7)
    assert (hinted.source, hinted.prediction_sigma) == ("hint", 0.0)
    assert hinted.prediction_mu == pytest.approx(math.log(7))
    account = read_log(log).account
    assert account is not None
    assert (account.asked, account.answered, account.failed) == (3, 3, 0)
    del guess


async def test_a_predictor_that_hangs_or_raises_delays_no_request(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, log: Path, guess: Guess
) -> None:
    guess.gate.clear()
    with shadow(engine_url, log, "fast") as url:
        for name in "abc":
            await streamed(http, url, body(name, 3, prompt="no number"))
        assert engine.finished == 3, "all were answered while the predictor hung"
        guess.gate.set()
        async with http.post(url + CHAT, json={"messages": ["no object"], "max_tokens": 2}) as response:
            assert response.status == 200
    assert [entry.source for entry in read_log(log).entries] == ["prior", "history", "history", "history"]


async def test_a_request_whose_client_disconnects_is_aborted_and_logged(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, log: Path
) -> None:
    engine.token_s = 0.01
    with shadow(engine_url, log) as url:
        async with http.post(url + PLAIN, json=body("a", 900, stream=True)) as response:
            await response.content.readany()
            response.close()
        await until_true(lambda: engine.aborted == 1)
    (entry,) = read_log(log).entries
    assert (entry.end, entry.exact) == ("left", False)
    assert entry.output_tokens is None or 1 <= entry.output_tokens < 900


async def test_an_answer_is_complete_where_its_client_disconnects_after_the_last_event(
    http: aiohttp.ClientSession, log: Path
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    choice, usage = (
        b'{"choices":[{"text":"x","finish_reason":"stop"}]}',
        b'{"choices":[],"usage":{"completion_tokens":7}}',
    )
    events = b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\n" % (choice, usage)
    with RawEngine(head + events, swallow=True) as engine, shadow(engine.url, log) as url:
        async with http.post(url + PLAIN, json=body(stream=True)) as response:
            while b"[DONE]" not in await response.content.readany():
                pass
            response.close()
        await until_true(lambda: bool(engine.swallowed))  # the shadow has closed its connection
    (entry,) = read_log(log).entries
    assert (entry.end, entry.output_tokens, entry.exact) == ("whole", 7, True)


async def test_a_request_to_a_dead_engine_gets_502_and_is_logged_as_broken(
    http: aiohttp.ClientSession, log: Path
) -> None:
    with shadow(f"http://127.0.0.1:{free_port()}", log) as url:
        async with http.post(url + PLAIN, json=body()) as response:
            assert response.status == 502
    assert [entry.end for entry in read_log(log).entries] == ["broken"]


async def test_a_full_disk_stops_the_log_but_no_request(
    http: aiohttp.ClientSession, engine_url: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> str:
        raise OSError(28, "No space left on device")

    with shadow(engine_url, log) as url:
        monkeypatch.setattr("lengthwise.traffic.shadow_log.asdict", full)
        assert "[DONE]" in await streamed(http, url, body())
        monkeypatch.undo()
        assert "[DONE]" in await streamed(http, url, body())
    assert len(read_log(log).entries) == 1


def test_a_log_is_read_back_and_an_incomplete_last_line_is_ignored(log: Path) -> None:
    header = Header("http://e", "fast", 5.0)
    first, second = (Entry(at, at + 1, "whole", "m", True, at + 0.5, 3, 10, 4) for at in (2.0, 1.0))
    rest = (Gauges(0.5, 1, 0), EngineMemory(64, 16), PredictorAccount(2, 2, 0, 0, 0.1, 0.01))
    with ShadowLog(log, header) as writing:
        for record in (first, second, *rest):
            writing.add(record)
    with log.open("a") as stream:
        stream.write('{"kind": "requ')
    assert read_log(log) == Logged(header, (second, first), rest[:1], rest[1], rest[2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a log of `lengthwise shadow`"),
        ("{}\n", "is not a record"),
        ('{"kind": "request"}\n', "is not a record"),
        ("\x00\n", "is not a record"),
        (json.dumps({"kind": "shadow", "engine": "e", "predictor": "p", "began": 0, "format": 9}) + "\n", "format 9"),
    ],
)
def test_a_file_that_is_not_a_log_is_refused(log: Path, content: str, message: str) -> None:
    log.write_text(content)
    with pytest.raises(InputError, match=message):
        read_log(log)


def test_an_existing_log_is_not_overwritten(log: Path) -> None:
    log.write_text("precious")
    with pytest.raises(InputError, match="exists already"), ShadowLog(log, Header("e", "p", 0.0)):
        pass
    with pytest.raises(InputError, match="its folder does not exist"), ShadowLog(log / "x" / "y", Header("e", "p", 0)):
        pass
