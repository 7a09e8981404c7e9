from __future__ import annotations

from lengthwise.engines.engine_metrics import EngineGauges, EngineMemory, read_gauges, read_memory


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
