"""Messages between workers: answers by worker, and workers that do not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lengthwise.gateway.worker_exchange import WorkerExchange

pytestmark = pytest.mark.anyio


def worker(folder: Path, number: int) -> WorkerExchange:
    exchange = WorkerExchange()
    exchange.join(folder, number)
    exchange.answer("repeat", lambda word: f"{number}: {word}".encode() * 200_000)
    exchange.answer("fail", lambda _: bytes([1000]))
    return exchange


async def test_the_others_answer_and_a_worker_that_does_not_is_left_out(tmp_path: Path) -> None:
    one, two = (worker(tmp_path, number) for number in range(2))
    (tmp_path / "2.sock").touch()  # of a worker that was killed
    async with one.serving(), two.serving():
        answers = {number: f"{number}: a\nline".encode() * 200_000 for number in (0, 1)}
        assert await one.ask("repeat", "a\nline") == await two.ask("repeat", "a\nline") == answers
        reader, writer = await asyncio.open_unix_connection(tmp_path / "0.sock")
        writer.write(b"not a question\n")
        assert await reader.read() == b""
        writer.close()
        one.answer("fail", lambda _: b"no")
        assert await one.ask("fail", None) == {0: b"no"}
        assert sorted(await two.ask("repeat", 1)) == [0, 1]


async def test_a_single_worker_gets_no_answers() -> None:
    exchange = WorkerExchange()
    async with exchange.serving():
        exchange.answer("state", lambda _: b"own")
        assert await exchange.ask("state", None) == {0: b"own"}
