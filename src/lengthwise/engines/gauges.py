"""What an engine says of itself in /metrics, as vLLM and SGLang do: who runs, who waits, how full its KV memory is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lengthwise.engines.client import EngineClient, EngineError

_GAUGE: Final = r"^(?:{})(?:\{{[^}}]*\}})? ([\d.e+-]+)$"
_RUNNING, _WAITING, _KV = (
    re.compile(_GAUGE.format(names), re.MULTILINE)
    for names in (
        "vllm:num_requests_running|sglang:num_running_reqs",
        "vllm:num_requests_waiting|sglang:num_queue_reqs",
        "vllm:kv_cache_usage_perc|sglang:token_usage",
    )
)
_CACHE: Final = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL: Final = re.compile(r'(block_size|num_gpu_blocks)="(\d+)"')


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """How busy an engine is. `kv_use`: share of its KV memory that is held, if it tells."""

    running: int
    waiting: int
    kv_use: float | None = None


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """An engine's KV memory."""

    kv_tokens: int
    block_size: int


async def ask_metrics(client: EngineClient) -> str | None:
    """The engine's own figures; empty where it does not answer just now, None where it has none."""
    try:
        answer = await client.get("/metrics")
        try:
            return (await answer.read()).decode("utf-8", "replace") if answer.status == 200 else None
        finally:
            answer.close()
    except EngineError:
        return ""


def read_gauges(told: str) -> EngineGauges | None:
    """None where it does not say who runs and who waits."""
    running, waiting, kv = (pattern.findall(told) for pattern in (_RUNNING, _WAITING, _KV))
    if not running or not waiting:
        return None
    # One line per engine core behind the server: together they are the engine.
    ran, waited = (int(sum(map(float, values))) for values in (running, waiting))
    return EngineGauges(ran, waited, float(kv[0]) if kv else None)


def read_memory(told: str) -> EngineMemory | None:
    """None where it does not say."""
    found = _CACHE.search(told)
    labels = {} if found is None else {name: int(value) for name, value in _LABEL.findall(found[1])}
    if set(labels) != {"block_size", "num_gpu_blocks"}:
        return None
    # One block is vLLM's null block.
    return EngineMemory(max(1, labels["num_gpu_blocks"] - 1) * labels["block_size"], labels["block_size"])
