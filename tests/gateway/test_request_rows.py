"""A request that the gateway serves has a row, in the traffic log and by default without prompts and keys."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.gateway import GatewayConfig
from lengthwise.gateway.keys import add_key
from lengthwise.predictors.resolve import predictor_label
from lengthwise.traffic.reader import read_traffic
from lengthwise.traffic.rows import RequestRow
from tests.gateway.engine import StandIn
from tests.gateway.helpers import CHAT, body, gateway, metric, post, until_true

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "learn"


def rows(folder: Path) -> tuple[RequestRow, ...]:
    return read_traffic(folder).rows


async def test_a_row_has_length_predictions_and_times(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, folder: Path
) -> None:
    engine.lengths = {"short": 5}
    with gateway({"url": engine_url, "name": "gpu-1"}, log=folder, predictor="fast") as url:
        for name in ("short", "cut"):
            sent = body(name, 9, prompt="Name three colours.", model="stand-in")
            async with http.post(url + "/v1/completions", json=sent, headers={"x-request-id": name}) as response:
                assert response.status == 200
            await asyncio.sleep(0)
        await until_predicted(http, url, 2)
        sent = body("short", 9, prompt="Name three colours.", reasoning_effort="low")
        assert (await post(http, url, sent))[0] == 200
    short, cut, again = rows(folder)
    assert (short.thinking, again.thinking) == (None, "low")
    assert (short.request_id, short.tenant, short.llm, short.engine) == ("short", "default", "stand-in", "gpu-1")
    assert (short.output_tokens, short.censored, short.finish_reason, short.max_tokens) == (5, False, "stop", 9)
    assert (cut.output_tokens, cut.censored, cut.finish_reason) == (9, True, "length")
    assert short.predictor == predictor_label("fast")
    assert again.history_mu != short.history_mu, "two lengths were learned from"
    assert short.started_s is not None
    assert short.finished_s is not None
    assert abs(short.finished_s - time.time()) < 60
    assert short.arrival_s <= short.started_s <= short.finished_s
    assert (short.outcome, short.first_token_s, short.counted) == ("ok", None, False)
    assert short.text is None
    assert (again.names, again.blocks) == (short.names, short.blocks)


async def until_predicted(http: aiohttp.ClientSession, url: str, n: int) -> None:
    counter = 'lengthwise_predictor_events_total{{event="{}"}}'
    while await metric(http, url, counter.format("answered")) < n:
        assert not await metric(http, url, counter.format("failed"))
        await asyncio.sleep(0.01)


async def test_prompts_and_keys_are_not_in_the_folder_unless_prompts_are_kept(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    key = add_key(keys, "team-a", {})
    chat = {
        "model": "stand-in",
        "messages": [{"role": "user", "content": "secret words " * 100}],
        "user": "ann@example.org",
        "metadata": {"template": "hidden-template"},
    }
    headers = {"authorization": f"Bearer {key}", "x-session-id": "hidden-session"}
    for keep in (False, True):
        folder = tmp_path / f"learn-{keep}"
        with gateway(engine_url, log=folder, keep_prompts=keep, keys=keys) as url:
            async with http.post(url + CHAT, json=chat, headers=headers) as response:
                assert response.status == 200
        everything = b"".join(path.read_bytes() for path in folder.iterdir())
        for hidden in (key, "ann@example.org", "hidden-template", "hidden-session"):
            assert hidden.encode() not in everything
        (one,) = rows(folder)
        assert one.tenant == "team-a"
        assert (b"secret words" in everything) is keep
        assert one.text == (chat["messages"][0]["content"] if keep else None)  # type: ignore[index]
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("sent", [{"messages": [1]}, {"messages": [{"content": 3}], "tools": 5}])
async def test_a_body_that_no_predictor_can_read_has_a_row_without_its_text(
    engine_url: str, http: aiohttp.ClientSession, folder: Path, sent: dict[str, Any]
) -> None:
    with gateway(engine_url, log=folder, keep_prompts=True, predictor="fast") as url:
        async with http.post(url + CHAT, json={"model": "stand-in", **sent}) as response:
            assert response.status == 200
        assert await metric(http, url, f'lengthwise_requests_total{{endpoint="{CHAT}",outcome="ok"}}') == 1
    (row,) = rows(folder)
    assert (row.outcome, row.text) == ("ok", None)


async def test_equal_prompts_have_equal_hashes_within_one_folder_only(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    found = []
    for name in ("a", "b"):
        with gateway(engine_url, log=tmp_path / name) as url:
            for _ in range(2):
                await post(http, url, body(prompt="the same words " * 100))
        first, second = rows(tmp_path / name)
        assert first.blocks == second.blocks
        found.append(first)
    assert len(found[0].blocks or "") == len(found[1].blocks or "") > 16
    assert found[0].blocks != found[1].blocks
    assert found[0].names != found[1].names


async def test_cancelled_and_failed_requests_have_rows_without_a_length(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, folder: Path
) -> None:
    with gateway(engine_url, log=folder, retries=0) as url:
        engine.mode = "error"
        assert (await post(http, url, body()))[0] == 500
        engine.mode = "ok"
        engine.gate.clear()
        call = asyncio.create_task(post(http, url, body()))
        await until_true(lambda: engine.running == 1)
        call.cancel()
        await until_true(lambda: engine.aborted == 1)
    failed, left = rows(folder)
    assert (failed.output_tokens, failed.finish_reason, failed.outcome) == (None, None, "engine_error")
    assert (left.output_tokens, left.finish_reason, left.outcome) == (None, None, "cancelled")


def test_kept_prompts_without_a_folder_are_an_error() -> None:
    with pytest.raises(ValueError, match="keep_prompts is given without log"):
        GatewayConfig.model_validate({"engines": ["http://x"], "keep_prompts": True})


def test_a_gateway_without_the_log_does_not_load_numba() -> None:
    script = "import sys, lengthwise.gateway; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
