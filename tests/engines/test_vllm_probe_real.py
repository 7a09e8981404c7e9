"""The whole loop on a real vLLM with a real LLM: states are read, predictions refined, and no answer changes."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.engines.smollm2 import MODEL_NAME
from lengthwise.predictors.probe import load_probe
from tests.engines.need import need_vllm

MOST = 48
ASKED = [
    "Name a colour.",
    "Write a long story about a dragon who learns to cook.",
    "What is 7 times 8?",
    "List the months of the year.",
    "Explain how rain forms.",
    "Say hello in French.",
]


async def answers(url: str) -> list[dict[str, Any]]:
    """All at once, each the LLM's likeliest words."""

    async def one(session: aiohttp.ClientSession, text: str) -> dict[str, Any]:
        chat = [{"role": "user", "content": text}]
        body = {"model": MODEL_NAME, "messages": chat, "max_tokens": MOST, "temperature": 0.0}
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())

    async with aiohttp.ClientSession() as session:
        return list(await asyncio.gather(*(one(session, text) for text in ASKED)))


def serve(account: Path, probe: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """In float32, so that an answer does not depend on who else is in the batch; with fewer slots than requests."""
    options = EngineOptions(
        "srpt:c=0.8",
        probe=probe,
        max_num_seqs=3,
        plugin_options={"account": str(account)},
        extra=("--dtype", "float32"),
    )
    with EmbeddedEngine(options) as engine:
        said = asyncio.run(answers(engine.url))
        assert engine.restarts == 0
    deadline = time.monotonic() + 30
    while not account.is_file():
        assert time.monotonic() < deadline, "no account was written"
        time.sleep(0.1)
    return said, dict(json.loads(account.read_text()))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]:
    need_vllm()
    folder = tmp_path_factory.mktemp("accounts")
    return {name: serve(folder / f"{name}.json", probe) for name, probe in (("probe", "default"), ("none", None))}


def test_every_request_is_read_at_the_end_of_prefill_and_then_every_so_many_tokens(served: dict[str, Any]) -> None:
    said, account = served["probe"]
    lengths = [answer["usage"]["completion_tokens"] for answer in said]
    every = load_probe("default").every
    assert account["probe"]["requests"] == len(ASKED)
    assert account["probe"]["failed"] == 0
    assert account["probe"]["readings"] == sum(math.ceil(length / every) for length in lengths)
    assert account["probe"]["readings"] > len(ASKED), "some were read more than once"
    assert "probe" not in served["none"][1]


def test_answers_are_word_for_word_what_they_are_without_a_probe(served: dict[str, Any]) -> None:
    probed, plain = ([answer["choices"][0]["message"]["content"] for answer in served[name][0]] for name in served)
    assert probed == plain
    assert len(set(probed)) == len(ASKED)
