"""The whole loop on a real vLLM with a real LLM: states are read, predictions refined, and no answer changes."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any

import aiohttp
import pytest

from lengthwise.predictors.probe import load_probe
from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions
from lengthwise.vllm.smollm2 import MODEL_NAME
from tests.vllm.need import need_vllm

pytestmark = pytest.mark.engine

MAX_TOKENS = 48
PROMPTS = [
    "Name a colour.",
    "Write a long story about a dragon who learns to cook.",
    "What is 7 times 8?",
    "List the months of the year.",
    "Explain how rain forms.",
    "Say hello in French.",
]


async def answers(url: str) -> list[dict[str, Any]]:
    """Send all prompts at once, with greedy decoding."""

    async def one(session: aiohttp.ClientSession, text: str) -> dict[str, Any]:
        chat = [{"role": "user", "content": text}]
        body = {"model": MODEL_NAME, "messages": chat, "max_tokens": MAX_TOKENS, "temperature": 0.0}
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())

    async with aiohttp.ClientSession() as session:
        return list(await asyncio.gather(*(one(session, text) for text in PROMPTS)))


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The answers of an engine with a probe and fewer slots than requests, and its counts."""
    need_vllm()
    account = tmp_path_factory.mktemp("accounts") / "account.json"
    options = EngineOptions(
        policy="srpt:c=0.8",
        probe="default",
        max_num_seqs=3,
        plugin_options={"account": str(account)},
        extra=("--dtype", "float32"),
    )
    with EmbeddedEngine(options) as engine:
        answered = asyncio.run(answers(engine.url))
        assert engine.restarts == 0
    deadline = time.monotonic() + 60
    while not account.is_file():
        assert time.monotonic() < deadline, "no account was written"
        time.sleep(0.1)
    return answered, dict(json.loads(account.read_text()))


def test_every_request_is_read_at_the_end_of_prefill_and_then_at_every_interval(probed: Any) -> None:
    answered, account = probed
    lengths = [answer["usage"]["completion_tokens"] for answer in answered]
    every = load_probe("default").every
    assert account["probe"]["requests"] == len(PROMPTS)
    assert account["probe"]["failed"] == 0
    assert account["probe"]["readings"] == sum(math.ceil(length / every) for length in lengths)
    assert account["probe"]["readings"] > len(PROMPTS), "some were read more than once"


def test_answers_are_the_same_with_and_without_a_probe(probed: Any, embedded_engine: EmbeddedEngine) -> None:
    plain = asyncio.run(answers(embedded_engine.url))
    with_probe, without = ([each["choices"][0]["message"]["content"] for each in one] for one in (probed[0], plain))
    assert with_probe == without
    assert len(set(without)) == len(PROMPTS)
