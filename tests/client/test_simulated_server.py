"""Simulated engines: the simulator's steps for requests that arrive one by one, and vLLM's API over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.client.client import EngineClient
from lengthwise.client.scrape import fetch_metrics, read_gauges, read_memory
from lengthwise.client.simulated_server import SimulatedEngines
from lengthwise.errors import InputError
from lengthwise.policies import Job, make_policy
from lengthwise.simulator import Fleet, simulate
from lengthwise.simulator.live import ClientEngine, SimulatedFleet
from tests.simulator.builders import UNEVEN, engine, requests

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=25)
CHAT = "/v1/chat/completions"


def drained(host: ClientEngine) -> None:
    while host.busy:
        host.catch_up(host.now + 1.0)


@given(LENGTHS, st.integers(1, 5), st.integers(20, 60), st.floats(0.0, 0.05))
def test_requests_added_one_by_one_run_as_a_workload_does(
    lengths: list[tuple[int, int]], seqs: int, blocks: int, gap_s: float
) -> None:
    spec = engine(UNEVEN, seqs=seqs, blocks=blocks)
    arrivals = [number * gap_s for number in range(len(lengths))]
    expected = simulate(requests(lengths, arrivals), Fleet((spec,)), "fcfs", predictor="oracle", accelerate=False)
    host = ClientEngine(spec, make_policy("fcfs"))
    added = [
        host.add(Job("", at, prompt_tokens=prompt), answer)
        for at, (prompt, answer) in zip(arrivals, lengths, strict=True)
    ]
    drained(host)
    assert [each.finish for each in added] == expected.finished_s.tolist()


@given(LENGTHS, st.data())
def test_an_aborted_request_leaves_no_memory_behind_and_others_are_complete(
    lengths: list[tuple[int, int]], data: st.DataObject
) -> None:
    host = ClientEngine(engine(UNEVEN, seqs=3, blocks=20), make_policy("lengthwise"))
    added = [host.add(Job("", 0.0, prompt_tokens=prompt), answer) for prompt, answer in lengths]
    aborted = []
    for number in data.draw(st.lists(st.integers(0, len(lengths) - 1), unique=True)):
        host.catch_up(host.now + 0.02)
        request = added[number]
        host.abort(request)
        aborted.append(request)
    drained(host)
    assert host.pool.used == 0
    assert host.settled == len(added)
    assert all(each.job.generated == each.output_tokens for each in added if each not in aborted)


def test_the_fleet_and_its_options_are_parsed() -> None:
    fleet = SimulatedFleet.parse("simulated:2*llama-3-8b@a100?speed=10&max_num_seqs=8&kv_tokens=4096")
    assert [spec.max_num_seqs for spec in fleet.engines] == [8, 8]
    assert fleet.engines[0].kv_tokens == 4096
    assert fleet.options.speed == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("simulated:4*llama-9", "no engine is called 'llama-9'"),
        ("1*llama-3-8b@a100?pace=2", "there is no field 'pace'.*known are speed, policy"),
        ("1*llama-3-8b@a100?speed=0", "greater than 0"),
        ("1*llama-3-8b@a100?speed", "write options as name=value"),
        ("1*llama-3-8b@a100?policy=fastest", "fastest"),
    ],
)
def test_a_bad_fleet_or_option_is_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SimulatedFleet.parse(text)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def engines() -> Iterator[SimulatedEngines]:
    with SimulatedEngines("2*llama-3-8b@a100?speed=100&max_num_seqs=4&chunk_s=0.01") as running:
        yield running


@pytest.fixture(scope="module")
def client(engines: SimulatedEngines) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=engines.urls[0] + "/v1", api_key="none") as made:
        yield made


def test_the_openai_client_gets_the_same_text_streamed_or_not(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Why is the sky blue?"}]
    whole = client.chat.completions.create(model="llama-3-8b", messages=messages)
    assert whole.usage is not None
    assert whole.choices[0].finish_reason == "stop"
    text, usage = "", None
    for chunk in client.chat.completions.create(
        model="llama-3-8b", messages=messages, stream=True, stream_options={"include_usage": True}
    ):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == len(text.split())


def test_a_length_is_forced_by_ignore_eos_or_declared_and_cut_by_max_tokens(client: openai.OpenAI) -> None:
    def length_and_reason(extra: dict[str, Any], max_tokens: int) -> tuple[int, str]:
        answer = client.completions.create(model="llama-3-8b", prompt="x", max_tokens=max_tokens, extra_body=extra)
        assert answer.usage is not None
        return answer.usage.completion_tokens, answer.choices[0].finish_reason

    assert length_and_reason({"ignore_eos": True}, 7) == (7, "length")
    assert length_and_reason({"vllm_xargs": {"simulated_tokens": 5}}, 7) == (5, "stop")
    assert length_and_reason({"vllm_xargs": {"simulated_tokens": 50}}, 7) == (7, "length")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"messages": 3}', 400),
        (b'{"messages": [], "max_tokens": 0}', 400),
        (b'{"messages": [], "max_tokens": "x"}', 400),
        (b'{"messages": [], "max_tokens": 999999999}', 400),
        (b'{"messages": [], "n": 2}', 400),
        (b'{"messages": [], "vllm_xargs": 1}', 400),
        (b'{"messages": [], "model": "other"}', 404),
    ],
)
async def test_a_bad_request_is_refused_as_openai_would(engines: SimulatedEngines, body: bytes, status: int) -> None:
    async with aiohttp.ClientSession() as http, http.post(engines.urls[0] + CHAT, data=body) as answer:
        assert answer.status == status
        assert (await answer.json())["error"]["message"]


@pytest.mark.anyio
async def test_a_client_that_disconnects_frees_its_slot_and_memory(engines: SimulatedEngines) -> None:
    async with aiohttp.ClientSession() as http, EngineClient(engines.urls[1]) as client:
        body = {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
        answer = await http.post(engines.urls[1] + "/v1/completions", json=body)
        await answer.content.readany()
        gauges = read_gauges(await fetch_metrics(client) or "")
        assert gauges is not None
        assert gauges.running == 1
        answer.close()
        while (gauges := read_gauges(await fetch_metrics(client) or "")) is not None and gauges.running:
            await asyncio.sleep(0.01)
        metrics = await fetch_metrics(client) or ""
        assert gauges is not None
        assert gauges.kv_use == 0.0
        assert 'finished_reason="abort"} 1' in metrics
        memory = read_memory(metrics)
        assert memory is not None
        assert memory.kv_tokens == engines.fleet.engines[1].kv_blocks * 16


@pytest.mark.anyio
async def test_many_streams_at_once_are_complete(engines: SimulatedEngines) -> None:
    async def stream(http: aiohttp.ClientSession, number: int) -> int:
        body = {
            "prompt": f"{number}", "max_tokens": 20 + number % 7, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "priority": number % 3,
        }  # fmt: skip
        async with http.post(engines.urls[number % 2] + "/v1/completions", json=body) as answer:
            events = (await answer.text()).strip().split("\n\n")
        assert events[-1] == "data: [DONE]"
        return int(json.loads(events[-2].removeprefix("data: "))["usage"]["completion_tokens"])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        lengths = await asyncio.gather(*(stream(http, number) for number in range(200)))
    assert lengths == [20 + number % 7 for number in range(200)]
