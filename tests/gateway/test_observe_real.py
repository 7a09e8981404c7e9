"""`lengthwise serve --observe` in front of a stock vLLM: answers are unchanged, and every request is logged."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.traffic.reader import read_traffic
from lengthwise.vllm.embedded import EmbeddedEngine
from lengthwise.vllm.smollm2 import MODEL_NAME

pytestmark = pytest.mark.engine

SLOTS, REQUESTS = 3, 24
APART_S = 0.02
"""Time between two requests: requests that arrive at the same moment have no order to check."""


def chat(number: int, **more: Any) -> dict[str, Any]:
    content = f"Say something about the number {number}."
    common = {"model": MODEL_NAME, "messages": [{"role": "user", "content": content}], "temperature": 0.0}
    return {**common, "max_tokens": length(number), "ignore_eos": True, **more}


def length(number: int) -> int:
    return 30 + 5 * number % 23


def wait_for_predictor(url: str) -> None:
    """Ask for a prediction until the predictor has started."""
    asked = urllib.request.Request(f"{url}/lengthwise/v1/predict", json.dumps(chat(0)).encode())  # noqa: S310  (ours)
    for _ in range(600):
        with urllib.request.urlopen(asked) as response:  # noqa: S310
            if json.load(response)["source"] == "predictor":
                return
        time.sleep(0.1)
    raise AssertionError("the predictor has not started")


async def ask(url: str) -> list[str]:
    """Send streamed requests far faster than they are answered, and return the answers."""

    async def one(session: aiohttp.ClientSession, number: int) -> str:
        await asyncio.sleep(number * APART_S)
        async with session.post(f"{url}/v1/chat/completions", json=chat(number, stream=True)) as answer:
            assert answer.status == 200
            return await answer.text()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return list(await asyncio.gather(*(one(session, number) for number in range(REQUESTS))))


@pytest.fixture(scope="module")
def run(stock_engine: EmbeddedEngine, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str, Path]:
    """The answers, the report of the log, and the log."""
    log = tmp_path_factory.mktemp("observe") / "traffic"
    lengthwise = [sys.executable, "-m", "lengthwise"]
    command = [*lengthwise, "serve", "--engine", stock_engine.url, "--port", "0", "--observe", "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, "the gateway has ended"
            found = re.search(r"serving on (http://[\d.]+:\d+)", line)
        wait_for_predictor(found[1])
        answers = asyncio.run(ask(found[1]))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 0
    report = subprocess.run([*lengthwise, "report", str(log)], capture_output=True, text=True, check=True)
    return answers, report.stdout, log


def test_every_answer_is_complete_and_without_usage(run: tuple[list[str], str, Path]) -> None:
    answers, _, _ = run
    assert all(answer.endswith("data: [DONE]\n\n") and '"usage":{' not in answer for answer in answers)


def test_every_request_is_in_the_log_once_with_its_true_length(run: tuple[list[str], str, Path]) -> None:
    log = read_traffic(run[2])
    assert sorted(row.output_tokens or 0 for row in log.rows) == sorted(map(length, range(REQUESTS)))
    assert {(row.outcome, row.finish_reason, row.censored) for row in log.rows} == {("ok", "length", True)}
    assert all(row.input_tokens and row.input_tokens > 10 for row in log.rows)
    assert [counts.answered for counts in log.predictors] == [REQUESTS]
    assert {row.source for row in log.rows} <= {"history", "prior"}


def test_requests_run_in_the_order_of_the_engine(run: tuple[list[str], str, Path]) -> None:
    firsts = [row.first_token_s for row in read_traffic(run[2]).rows]
    # The engine may read two requests that arrive almost together in either order; the order of distant ones holds.
    late = [a - b for a, b in pairwise([first for first in firsts if first is not None]) if a > b]
    assert len(late) < REQUESTS / 3
    halves = [first for first in firsts if first is not None]
    assert max(halves[: REQUESTS // 4]) < min(halves[3 * REQUESTS // 4 :])


def test_the_limits_of_the_engine_are_found_and_the_replay_is_printed(run: tuple[list[str], str, Path]) -> None:
    _, printed, path = run
    readings = read_traffic(path).engines
    assert max(each.running or 0 for each in readings if each.waiting) == SLOTS
    assert readings[-1].kv_tokens is not None
    assert f"{SLOTS} at once (the most that ran while others waited)" in printed
    assert "What would have been gained" in printed
