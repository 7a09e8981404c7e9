"""`lengthwise serve` in front of the embedded engine, with a real LLM."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
from typing import Any

import aiohttp
import pytest

from tests.vllm.need import need_vllm

need_vllm()

from collections.abc import Iterator

from lengthwise.vllm.embedded import EmbeddedEngine
from lengthwise.vllm.smollm2 import MODEL_NAME
from tests.gateway.helpers import metric, until

pytestmark = [pytest.mark.anyio, pytest.mark.engine]
SLOTS = 4


@pytest.fixture
def engine(embedded_engine: EmbeddedEngine) -> EmbeddedEngine:
    return embedded_engine


@pytest.fixture
def gateway(engine: EmbeddedEngine, request: pytest.FixtureRequest) -> Iterator[str]:
    """Run `lengthwise serve` in a process, with the policy of the parameter."""
    policy = getattr(request, "param", "sjf")
    flags = ["--engine", engine.url, "--policy", policy, "--in-flight", str(SLOTS), "--port", "0"]
    command = [sys.executable, "-m", "lengthwise", "serve", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://[\d.]+:\d+", line)
    assert found is not None, line
    yield found[0]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)


def chat(**more: Any) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 8,
        "temperature": 0,
        **more,
    }


async def test_a_chat_is_answered(gateway: str, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{gateway}/v1/chat/completions", json=chat()) as answer:
        body = await answer.json()
    assert answer.status == 200
    assert body["choices"][0]["message"]["content"]
    assert body["usage"]["completion_tokens"] <= 8


async def test_our_scheduler_is_recognised_in_the_engine(gateway: str, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{gateway}/lengthwise/v1/engines") as answer:
        found = (await answer.json())["engines"][0]
    assert found["kind"] == "lengthwise"
    assert "with our scheduler" in found["description"]


async def test_a_stream_has_the_same_text(gateway: str, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{gateway}/v1/chat/completions", json=chat()) as answer:
        whole = (await answer.json())["choices"][0]["message"]["content"]
    async with http.post(f"{gateway}/v1/chat/completions", json=chat(stream=True)) as answer:
        events = [line.decode().removeprefix("data: ").strip() async for line in answer.content]
    *pieces, end = [event for event in events if event]
    texts = [json.loads(piece)["choices"][0]["delta"].get("content") or "" for piece in pieces]
    assert "".join(texts) == whole
    assert end == "[DONE]"


async def test_lengths_of_streams_without_usage_are_predicted_and_learned(
    gateway: str, http: aiohttp.ClientSession
) -> None:
    async with http.post(f"{gateway}/v1/chat/completions", json=chat(stream=True)) as answer:
        assert '"usage":{' not in await answer.text()
    for _ in range(100):
        learned = await metric(http, gateway, 'lengthwise_predictor_events_total{event="observed"}')
        if learned == 1:
            break
        await asyncio.sleep(0.1)
    assert learned == 1
    assert await metric(http, gateway, 'lengthwise_predictor_events_total{event="answered"}') == 1


async def test_a_request_for_several_answers_gets_them(gateway: str, http: aiohttp.ClientSession) -> None:
    body = chat(n=3, temperature=1.0, nvext={"agent_hints": {"osl": 8}})
    async with http.post(f"{gateway}/v1/chat/completions", json=body) as answer:
        assert len((await answer.json())["choices"]) == 3


async def test_a_refusal_of_the_engine_is_passed_on(gateway: str, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{gateway}/v1/chat/completions", json=chat(max_tokens=100_000)) as answer:
        assert answer.status == 400
        assert "error" in await answer.json()


async def test_a_request_whose_client_disconnects_is_aborted(engine: EmbeddedEngine, gateway: str) -> None:
    body = chat(max_tokens=400, ignore_eos=True, stream=True)
    async with aiohttp.ClientSession() as leaving:
        answer = await leaving.post(f"{gateway}/v1/chat/completions", json=body)
        await answer.content.readany()
        answer.close()
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{engine.url}/metrics") as metrics:
                text = await metrics.text()
            if re.search(r"^vllm:num_requests_running\{.*\} 0\.0$", text, re.MULTILINE):
                return
            await asyncio.sleep(0.1)
    pytest.fail("the engine still runs a request whose client has disconnected")


async def latency_in_tokens(gateway: str, lengths: list[int]) -> float:
    """Return the mean over requests of the tokens of all answers that had finished with it.

    A clock that does not depend on the load of the machine.
    """
    done_tokens = 0
    latencies = []

    async def one(session: aiohttp.ClientSession, number: int, length: int) -> None:
        nonlocal done_tokens
        body = chat(
            messages=[{"role": "user", "content": f"Tell me about {number}."}],
            max_tokens=length,
            ignore_eos=True,
            nvext={"agent_hints": {"osl": length}},
        )
        async with session.post(f"{gateway}/v1/chat/completions", json=body) as answer:
            assert (await answer.json())["usage"]["completion_tokens"] == length
        done_tokens += length
        latencies.append(done_tokens)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(one(session, number, length) for number, length in enumerate(lengths)))
    return sum(latencies) / len(latencies)


LATENCY: dict[str, float] = {}


@pytest.mark.parametrize("gateway", ["fcfs", "sjf"], indirect=True)
async def test_thirty_requests_are_served_under_each_policy(gateway: str, request: pytest.FixtureRequest) -> None:
    rng = random.Random(11)
    lengths = [rng.randrange(20, 40) if rng.random() < 0.12 else rng.randrange(1, 6) for _ in range(30)]
    LATENCY[request.node.callspec.params["gateway"]] = await latency_in_tokens(gateway, lengths)


def test_sjf_lowers_mean_latency_at_the_gateway() -> None:
    assert LATENCY["sjf"] < 0.75 * LATENCY["fcfs"]


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_and_messages_of_vllm_pass_and_are_measured(
    gateway: str, http: aiohttp.ClientSession, stream: bool
) -> None:
    turns = [{"role": "user", "content": "Say hello."}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"input": "Say hello.", "max_output_tokens": 6},
        "/v1/messages": {"messages": turns, "max_tokens": 6, "system": "Be brief."},
    }
    last = {"/v1/responses": "response.completed", "/v1/messages": "message_stop"}
    for path, fields in bodies.items():
        sent = {"model": MODEL_NAME, "temperature": 0, "stream": stream, **fields}
        async with http.post(gateway + path, json=sent) as response:
            answer = await response.text()
            assert response.status == 200, answer
        if stream:
            events = re.findall(r"^event: (\S+)", answer, re.MULTILINE)
            assert events[-1] == last[path]
        else:
            assert 0 < json.loads(answer)["usage"]["output_tokens"] <= 6
        assert await metric(http, gateway, f'lengthwise_requests_total{{endpoint="{path}",outcome="ok"}}') == 1

    async def learned() -> bool:
        return await metric(http, gateway, 'lengthwise_predictor_events_total{event="observed"}') == 2

    await until(learned, 30.0)
