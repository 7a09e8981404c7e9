"""The embedded engine survives what vLLM's CPU build does not survive by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.engines.smollm2 import MODEL_NAME
from tests.engines.need import need_vllm

WORDS = "one two three four five six seven eight nine ten " * 40


async def answers(url: str, n: int) -> list[int]:
    """As many seeded requests at once, whose prompts together are more than a step computes."""

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


def test_seeded_requests_with_more_prompt_than_a_step_holds_do_not_kill_it() -> None:
    need_vllm()
    with EmbeddedEngine(EngineOptions(max_num_seqs=8)) as engine:
        assert asyncio.run(answers(engine.url, 8)) == [200] * 8
        assert engine.restarts == 0


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("avx2", "float32"), ("avx512f avx512_vnni", "float32"), ("avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16")],
)
def test_it_computes_in_bfloat16_where_the_cpu_does(
    flags: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : fpu {flags}\n")
    monkeypatch.setattr("lengthwise.engines.embedded._CPU", tmp_path / "cpuinfo")
    monkeypatch.setattr("lengthwise.engines.embedded._has_gpu", lambda: False)
    command = EmbeddedEngine(EngineOptions(model="some-llm")).command()
    assert command[command.index("--dtype") + 1] == dtype
