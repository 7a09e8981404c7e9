"""`lengthwise serve` before a real stock vLLM with `--scheduling-policy priority`: requests run in the policy's order.

SGLang has no build for this platform: `test_engine_kinds.py` has a stand-in with its paths, metrics and polarity.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from lengthwise.client.scrape import read_gauges
from lengthwise.vllm.embedded import EmbeddedEngine
from lengthwise.vllm.smollm2 import MODEL_NAME
from tests.gateway.helpers import CHAT, gateway, until

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

SHORT, USUAL, LONG, BLOCKS = 2, 5, 24, 1500
EACH = 5


async def answer(http: aiohttp.ClientSession, url: str, tokens: int, ended: list[int]) -> None:
    """Request `tokens` tokens, with a hint, and append them to `ended` when the answer ends."""
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "nvext": {"agent_hints": {"osl": tokens}},
    }
    async with http.post(url + CHAT, json=body) as response:
        assert response.status == 200, await response.text()
        assert (await response.json())["usage"]["completion_tokens"] == tokens
    ended.append(tokens)


async def test_requests_that_wait_inside_vllm_run_in_the_policys_order(
    http: aiohttp.ClientSession, stock_engine: EmbeddedEngine
) -> None:
    slots, ended = stock_engine.options.max_num_seqs, list[int]()
    with gateway(stock_engine.url, policy="sjf", in_flight=64) as url:
        async with http.get(url + "/lengthwise/v1/engines") as response:
            assert (await response.json())["engines"][0]["kind"] == "vllm"

        async def until_waiting(n: int) -> None:
            async def wait_in_vllm() -> bool:
                async with http.get(stock_engine.url + "/metrics") as response:
                    gauges = read_gauges(await response.text())
                return gauges is not None and (gauges.running, gauges.waiting) == (slots, n)

            await until(wait_in_vllm, 60.0)

        # A request is ranked among those before it.
        await asyncio.gather(*(answer(http, url, USUAL, []) for _ in range(8)))
        blocks = [asyncio.create_task(answer(http, url, BLOCKS, [])) for _ in range(slots)]
        await until_waiting(0)
        calls = [asyncio.create_task(answer(http, url, LONG, ended)) for _ in range(EACH)]
        await until_waiting(EACH)
        calls += [asyncio.create_task(answer(http, url, SHORT, ended)) for _ in range(EACH)]
        await until_waiting(2 * EACH)
        for each in blocks:
            each.cancel()
        await asyncio.gather(*calls)
    assert ended == [SHORT] * EACH + [LONG] * EACH
