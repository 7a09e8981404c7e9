"""`lengthwise shadow` before a stock vLLM: answers are unchanged, and every request is logged."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.traffic.shadow_log import read_log
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
    return 8 + 5 * number % 23


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
    """The answers, the output of the command, and its log."""
    log = tmp_path_factory.mktemp("shadow") / "log.jsonl"
    engine = ["--url", stock_engine.url]
    command = [sys.executable, "-m", "lengthwise", "shadow", *engine, "--port", "0", "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found is not None, line
        answers = asyncio.run(ask(found[0]))
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return answers, printed, log


def test_every_answer_is_complete_and_without_usage(run: tuple[list[str], str, Path]) -> None:
    answers, _, _ = run
    assert all(answer.endswith("data: [DONE]\n\n") and '"usage":{' not in answer for answer in answers)


def test_every_request_is_in_the_log_once_with_its_true_length(run: tuple[list[str], str, Path]) -> None:
    log = read_log(run[2])
    assert sorted(entry.output_tokens or 0 for entry in log.entries) == sorted(map(length, range(REQUESTS)))
    assert {entry.end for entry in log.entries} == {"cut"}
    assert all(entry.prompt_tokens and entry.prompt_tokens > 10 for entry in log.entries)
    assert log.account is not None
    assert log.account.answered == REQUESTS
    assert {entry.source for entry in log.entries} <= {"predictor", "history", "prior"}


def test_requests_run_in_the_order_of_the_engine(run: tuple[list[str], str, Path]) -> None:
    firsts = [entry.first_token_s for entry in read_log(run[2]).entries]
    # The engine may read two requests that arrive almost together in either order; the order of distant ones holds.
    late = [a - b for a, b in pairwise([first for first in firsts if first is not None]) if a > b]
    assert len(late) < REQUESTS / 3
    halves = [first for first in firsts if first is not None]
    assert max(halves[: REQUESTS // 4]) < min(halves[3 * REQUESTS // 4 :])


def test_the_limits_of_the_engine_are_found_and_the_replay_is_printed(run: tuple[list[str], str, Path]) -> None:
    _, printed, path = run
    log = read_log(path)
    assert max(each.running for each in log.gauges if each.waiting) == SLOTS
    assert log.memory is not None
    assert f"{SLOTS} at once (the most that ran while others waited)" in printed
    assert "What would have been gained" in printed
