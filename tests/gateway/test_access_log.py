from __future__ import annotations

import asyncio
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.errors import InputError
from lengthwise.gateway.access_log import AccessLog
from lengthwise.gateway.keys import add_key
from tests.gateway.engine import StandIn, wait_for
from tests.gateway.helpers import CHAT, PLAIN, body, gateway, post, until_true

pytestmark = pytest.mark.anyio


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_a_line_has_request_engine_lengths_and_times(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, file: Path
) -> None:
    engine.lengths["a"] = 5
    hint: dict[str, Any] = {"nvext": {"agent_hints": {"osl": 7}}}
    with gateway({"url": engine_url, "name": "gpu-1"}, access_log=str(file)) as url:
        headers = {"x-request-id": "r-1"}
        async with http.post(url + PLAIN, json=body(tokens=9, **hint), headers=headers) as response:
            assert response.status == 200
    (line,) = lines(file)
    known = {key: line[key] for key in line if not key.endswith("_s")}
    assert known == {
        "request_id": "r-1",
        "tenant": "default",
        "method": "POST",
        "path": PLAIN,
        "status": 200,
        "llm": "stand-in",
        "engine": "gpu-1",
        "input_tokens": 1,
        "output_tokens": 5,
        "source": "hint",
        "mu": round(math.log(7), 4),
        "sigma": 0.0,
        "resubmissions": 0,
        "outcome": "ok",
    }
    assert line["arrival_s"] <= line["started_s"] <= line["finished_s"]
    assert line["first_token_s"] is None, "the answer came in one piece"
    assert abs(line["finished_s"] - time.time()) < 60


async def test_prompts_answers_and_keys_are_in_no_line(
    engine_url: str, http: aiohttp.ClientSession, file: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    key = add_key(keys, "team-a", {})
    secret = {"messages": [{"role": "user", "content": "secret words"}], "stream": True, "model": "stand-in"}
    with gateway(engine_url, access_log=str(file), keys=keys) as url:
        for presented in (key, "lw-wrong"):
            async with http.post(url + CHAT, json=secret, headers={"authorization": f"Bearer {presented}"}) as response:
                await response.read()
    good, bad = lines(file)
    assert (good["tenant"], good["status"], good["output_tokens"]) == ("team-a", 200, 3)
    assert (bad["tenant"], bad["status"]) == (None, 401)
    for hidden in ("secret words", "t0 ", key, "lw-wrong"):
        assert hidden not in file.read_text()


async def test_client_input_cannot_forge_a_line(engine_url: str, http: aiohttp.ClientSession, file: Path) -> None:
    forged = 'x\n{"status": 200}\r\u2028'
    with gateway(engine_url, access_log=str(file)) as url:
        await post(http, url, body(model=forged * 100))
        async with http.get(url + "/v1/x%0Ay") as response:
            assert response.status == 404
        async with http.get(url + "/health") as response:
            assert response.status == 200
    written = lines(file)
    assert [line["status"] for line in written] == [404, 404], "/health is not logged"
    assert all(len(str(value)) <= 200 for line in written for value in line.values())


async def test_a_cancelled_request_has_a_line_without_a_status(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, file: Path
) -> None:
    engine.gate.clear()
    with gateway(engine_url, access_log=str(file)) as url:
        call = asyncio.create_task(post(http, url, body()))
        await until_true(lambda: engine.running == 1)
        call.cancel()
        await until_true(lambda: file.exists() and bool(file.read_text()))
    (line,) = lines(file)
    assert (line["status"], line["outcome"], line["engine"]) == (None, "cancelled", "engine-0")


async def test_a_forwarded_request_has_a_line_with_its_engine(
    engine_url: str, http: aiohttp.ClientSession, file: Path
) -> None:
    with gateway(engine_url, access_log=str(file)) as url:
        async with http.post(url + "/v1/embeddings", json={"model": "stand-in", "input": "x"}) as response:
            status = response.status
    (line,) = lines(file)
    assert (line["status"], line["engine"], line["llm"]) == (status, "engine-0", "stand-in")


def test_a_reload_reopens_a_moved_file(file: Path) -> None:
    scope = {"method": "GET", "path": "/", "type": "http"}
    with AccessLog(str(file)) as log:
        with log.record(scope):
            pass
        wait_for(file.read_text)
        file.rename(file.with_suffix(".1"))
        log.use(None)  # type: ignore[arg-type]
        with log.record(scope):
            pass
    assert len(lines(file)) == len(lines(file.with_suffix(".1"))) == 1


def test_a_full_disk_drops_lines_and_is_counted() -> None:
    with AccessLog("/dev/full") as log, log.record({"method": "GET", "path": "/", "type": "http"}):
        pass
    (metric,) = log.collect()
    assert metric.samples[0].value == 1


def test_a_file_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the access log cannot be written: No such file or directory"):
        AccessLog(str(tmp_path / "none" / "access.log"))


def test_a_pipe_that_nothing_reads_does_not_keep_the_gateway_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthwise.gateway.access_log._END_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with AccessLog(str(pipe)) as log:
        for _ in range(2000):  # more than a pipe holds
            with log.record({"method": "GET", "path": "/" * 200, "type": "http"}):
                pass
    os.close(reader)  # now the thread's write fails, and it ends
    log._thread.join(10)
    os.close(log._file)
