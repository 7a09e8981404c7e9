"""The embedded engine restarts after a crash, and avoids known crashes of vLLM's CPU build."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest

from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions
from lengthwise.vllm.smollm2 import MODEL_NAME
from tests.conftest import live_process_groups

WORDS = "one two three four five six seven eight nine ten " * 60


async def answers(url: str, n: int) -> list[int]:
    """Send `n` seeded requests at once, whose prompts together exceed the token budget of a step."""

    async def one(session: aiohttp.ClientSession, number: int) -> int:
        body = {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": f"{number} {WORDS}"}],
            "max_tokens": 3,
            "seed": number,
        }
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            return answer.status

    async with aiohttp.ClientSession() as session:
        return list(await asyncio.gather(*(one(session, number) for number in range(n))))


@pytest.mark.engine
def test_seeded_requests_with_more_prompt_tokens_than_a_step_holds_do_not_kill_it(
    embedded_engine: EmbeddedEngine,
) -> None:
    before = embedded_engine.restarts
    assert asyncio.run(answers(embedded_engine.url, 4)) == [200] * 4
    assert embedded_engine.restarts == before


@pytest.mark.engine
def test_an_engine_that_dies_is_restarted_and_leaves_no_process_behind(embedded_engine: EmbeddedEngine) -> None:
    first, before = embedded_engine.pid, embedded_engine.restarts
    assert first is not None
    embedded_engine.kill()
    deadline = time.monotonic() + 180
    while not (embedded_engine.restarts == before + 1 and embedded_engine.healthy):
        assert time.monotonic() < deadline, "the engine did not restart"
        time.sleep(0.1)
    assert embedded_engine.pid != first
    assert str(first) not in live_process_groups()


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("avx2", "float32"), ("avx512f avx512_vnni", "float32"), ("avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16")],
)
def test_it_computes_in_bfloat16_if_the_cpu_supports_it(
    flags: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : fpu {flags}\n")
    monkeypatch.setattr("lengthwise.vllm.embedded._CPU", tmp_path / "cpuinfo")
    monkeypatch.setattr("lengthwise.vllm.embedded._has_gpu", lambda: False)
    command = EmbeddedEngine(EngineOptions(model="some-llm")).command()
    assert command[command.index("--dtype") + 1] == dtype
