"""The traffic log has a row for every request, and by default neither prompts nor keys."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig
from lengthwise.gateway.keys import add_key
from lengthwise.gateway.traffic_log import TrafficLog
from lengthwise.predictors.prefix_memory import levels_of
from lengthwise.predictors.resolve import predictor_label
from lengthwise.traffic.reader import HEADER, TrafficRow, read_traffic, row_json
from tests.gateway.engine import StandIn
from tests.gateway.helpers import CHAT, body, gateway, metric, post, until_true
from tests.traffic.traffic_rows import PLAIN

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "learn"


def rows(folder: Path) -> tuple[TrafficRow, ...]:
    return read_traffic(folder).rows


def row(number: int, **fields: Any) -> TrafficRow:
    return PLAIN._replace(time=1e9 + number, request_id=f"r-{number}", **fields)


async def test_a_row_has_length_predictions_and_times(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, folder: Path
) -> None:
    engine.lengths = {"short": 5}
    with gateway({"url": engine_url, "name": "gpu-1"}, learn=folder, predictor="fast", memory="on") as url:
        for name in ("short", "cut"):
            sent = body(name, 9, prompt="Name three colours.", model="stand-in")
            async with http.post(url + "/v1/completions", json=sent, headers={"x-request-id": name}) as response:
                assert response.status == 200
            await asyncio.sleep(0)
        await until_predicted(http, url, 2)
        sent = body("short", 9, prompt="Name three colours.")
        assert (await post(http, url, sent))[0] == 200
    short, cut, again = rows(folder)
    assert (short.request_id, short.tenant, short.model, short.engine) == ("short", "default", "stand-in", "gpu-1")
    assert (short.output_tokens, short.censored, short.finish_reason, short.max_tokens) == (5, False, "stop", 9)
    assert (cut.output_tokens, cut.censored, cut.finish_reason) == (9, True, "length")
    assert short.predictor == predictor_label("fast")
    assert again.history != short.history, "two lengths were learned from"
    assert short.wait_s is not None
    assert 0 <= short.wait_s <= (short.first_byte_s or 0) <= short.total_s
    assert short.text is None
    assert (again.names, again.blocks) == (short.names, short.blocks)


async def until_predicted(http: aiohttp.ClientSession, url: str, n: int) -> None:
    line = 'lengthwise_predictor_events_total{event="answered"}'
    while await metric(http, url, line) < n:
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
        with gateway(engine_url, learn=folder, keep_prompts=keep, keys=keys) as url:
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


async def test_equal_prompts_have_equal_hashes_within_one_folder_only(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    found = []
    for name in ("a", "b"):
        with gateway(engine_url, learn=tmp_path / name) as url:
            for _ in range(2):
                await post(http, url, body(prompt="the same words " * 100))
        first, second = rows(tmp_path / name)
        assert first.blocks == second.blocks
        found.append(first)
    assert len(found[0].blocks) == len(found[1].blocks) > 16
    assert found[0].blocks != found[1].blocks
    assert found[0].names != found[1].names


async def test_cancelled_and_failed_requests_have_rows_without_a_length(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, folder: Path
) -> None:
    with gateway(engine_url, learn=folder, retries=0) as url:
        engine.mode = "error"
        assert (await post(http, url, body()))[0] == 500
        engine.mode = "ok"
        engine.gate.clear()
        call = asyncio.create_task(post(http, url, body()))
        await until_true(lambda: engine.running == 1)
        call.cancel()
        await until_true(lambda: engine.aborted == 1)
    failed, left = rows(folder)
    assert (failed.output_tokens, failed.finish_reason) == (None, "error")
    assert (left.output_tokens, left.finish_reason) == (None, "cancelled")


def test_the_complete_rows_of_a_truncated_part_are_read(folder: Path) -> None:
    folder.mkdir()
    whole = json.dumps(HEADER) + "\n" + "".join(row_json(row(n)) for n in range(3))
    lines = whole.encode()
    for size in range(lines.index(b"\n") + 1, len(lines)):
        (folder / "traffic-1-1.jsonl").write_bytes(lines[:size])
        expected = lines[:size].count(b"\n") - 1
        if expected:
            assert rows(folder) == tuple(row(n) for n in range(expected))
        else:
            with pytest.raises(InputError, match="holds no requests"):
                rows(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json\n", "is not a traffic log"),
        ('{"kind": "lengthwise traffic", "format": 99}\n', "has format 99, newer than 1"),
        (json.dumps(HEADER) + '\n{"time": 3}\n', "row 2: is not a row of a traffic log"),
        (json.dumps(HEADER) + "\n" + row_json(row(1, history=(float("nan"), 1.0))), "is not a row"),
    ],
)
def test_a_file_that_is_not_a_traffic_log_is_refused(folder: Path, content: str, message: str) -> None:
    folder.mkdir()
    (folder / "traffic-1-1.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        rows(folder)


def test_the_folder_stays_within_its_limit_and_keeps_the_newest(folder: Path) -> None:
    limit = 1 << 20
    with TrafficLog(folder, keep_prompts=True, max_bytes=limit) as log:
        for number in range(100):
            log.put(row(number, text="x" * 30_000))
    kept = [int(each.request_id[2:]) for each in rows(folder)]
    assert sum(path.stat().st_size for path in folder.glob("*.jsonl")) <= limit
    assert kept[-1] == 99
    assert kept == list(range(kept[0], 100))
    assert kept[0] > 0


def test_a_full_disk_drops_rows_and_is_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    log = TrafficLog(folder, keep_prompts=False, max_bytes=1 << 20)
    monkeypatch.setattr("lengthwise.gateway.traffic_log.write_all", full)
    with log:
        log.put(row(1))
    values = {metric.name: metric.samples[0].value for metric in log.collect()}
    assert values == {"lengthwise_traffic_log_rows": 0, "lengthwise_traffic_log_dropped": 1}


def test_the_hash_key_is_made_once_and_an_invalid_one_is_refused(folder: Path) -> None:
    levels = levels_of("m", [1, 2], tenant="t")
    first, second = (TrafficLog(folder, keep_prompts=False, max_bytes=1 << 20).keyed(levels) for _ in range(2))
    assert first.blocks.tolist() == second.blocks.tolist()
    assert first.blocks.tolist() != levels.blocks.tolist()
    assert first.names.tolist()[1:3] == [0, 0], "no template, no session"
    (folder / "key").write_bytes(b"short")
    with pytest.raises(InputError, match="is not the key of a traffic log"):
        TrafficLog(folder, keep_prompts=False, max_bytes=1 << 20)


def test_an_unusable_folder_and_kept_prompts_without_one_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the traffic log cannot be written"):
        TrafficLog(tmp_path / "file", keep_prompts=False, max_bytes=1 << 20)
    with pytest.raises(ValueError, match="keep_prompts is given without learn"):
        GatewayConfig.model_validate({"engines": ["http://x"], "keep_prompts": True})


def test_a_gateway_without_the_log_does_not_load_numba() -> None:
    script = "import sys, lengthwise.gateway; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
