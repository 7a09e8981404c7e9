from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.client.client import EngineClient
from lengthwise.client.scrape import EngineGauges, EngineMemory, fetch_metrics, read_gauges, read_memory


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_vllms_gauges_are_read_and_summed_over_its_engine_cores() -> None:
    text = (
        "# HELP vllm:num_requests_running x\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 4.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 3.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 12.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
        'vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="101",other="auto"} 1.0\n'
    )
    assert read_gauges(text) == EngineGauges(7, 12, 0.25)
    assert read_memory(text) == EngineMemory(12_800, 128)


def test_sglangs_gauges_are_read() -> None:
    text = 'sglang:num_running_reqs{model_name="m"} 2.0\nsglang:num_queue_reqs{model_name="m"} 1.0\n'
    assert read_gauges(text) == EngineGauges(2, 1, None)
    assert read_gauges(text + "sglang:token_usage 0.5\n") == EngineGauges(2, 1, 0.5)


def test_missing_metrics_are_none() -> None:
    assert read_gauges("nothing") is None
    assert read_memory("nothing") is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1.0", "1e999", "9" * 400, "-", "e", "1.2.3", "x", ""])
def test_what_is_no_number_of_requests_is_not_read(value: str) -> None:
    assert read_gauges(f"vllm:num_requests_running {value}\nvllm:num_requests_waiting {value}\n") is None
    assert read_memory(f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{value}"}} 1.0') is None


def test_counters_of_any_size_are_read() -> None:
    text = "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 9.5e-05\n"
    text += "vllm:prefix_cache_queries_total 1.234567e+09\nvllm:prefix_cache_hits_total 12.0\n"
    assert read_gauges(text) == EngineGauges(0, 1, 9.5e-05, (12, 1_234_567_000))


def test_labels_may_hold_any_text() -> None:
    gauges = 'vllm:num_requests_running{model_name="a } b\\" 7"} 4 1700000000\nvllm:num_requests_waiting 1\n'
    assert read_gauges(gauges) == EngineGauges(4, 1)
    assert read_memory('vllm:cache_config_info{a="}",block_size="16",num_gpu_blocks="11"} 1.0') == EngineMemory(160, 16)


NAME = st.sampled_from(["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:cache_config_info"])
PART = st.sampled_from([*'{}=,"\\ #\n\t', "block_size", "num_gpu_blocks", "1", "le"]) | st.text(max_size=3)


@given(st.lists(st.tuples(NAME, st.lists(PART, max_size=12)), max_size=4))
def test_lines_that_cannot_be_read_are_left_out(lines: list[tuple[str, list[str]]]) -> None:
    text = "\n".join(name + "".join(parts) for name, parts in lines)
    gauges, memory = read_gauges(text), read_memory(text)
    assert gauges is None or gauges.running >= 0
    assert memory is None or memory.kv_tokens >= 0
    good = "\nvllm:num_requests_running 1\nvllm:num_requests_waiting 2\n"
    assert read_gauges(text + good) is not None


@pytest.mark.anyio
async def test_an_engine_whose_metrics_hang_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.client.scrape.ASK_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with EngineClient(f"http://127.0.0.1:{silent.getsockname()[1]}") as client:
            assert await fetch_metrics(client) == ""
