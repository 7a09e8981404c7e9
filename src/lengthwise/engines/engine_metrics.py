"""What an engine reports about itself, as vLLM and SGLang do.

/metrics gives the running and waiting requests and the KV memory in use; /v1/models gives the context length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lengthwise.engines.client import EngineClient, EngineError, served_model
from lengthwise.engines.steps import EngineFacts
from lengthwise.errors import InputError

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
    """An engine's load. `kv_use`: share of its KV memory in use, if reported."""

    running: int
    waiting: int
    kv_use: float | None = None


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """An engine's KV memory."""

    kv_tokens: int
    block_size: int


async def fetch_metrics(client: EngineClient) -> str | None:
    """Return the text of /metrics; empty if the engine does not answer now, None if it has no metrics."""
    try:
        answer = await client.get("/metrics")
        try:
            return (await answer.read()).decode("utf-8", "replace") if answer.status == 200 else None
        finally:
            answer.close()
    except EngineError:
        return ""


def read_gauges(metrics: str) -> EngineGauges | None:
    """Return the load; None if running or waiting requests are not reported."""
    running, waiting, kv = (pattern.findall(metrics) for pattern in (_RUNNING, _WAITING, _KV))
    if not running or not waiting:
        return None
    # One line per engine core behind the server: their sum is the engine's.
    ran, waited = (int(sum(map(float, values))) for values in (running, waiting))
    return EngineGauges(ran, waited, float(kv[0]) if kv else None)


def read_memory(metrics: str) -> EngineMemory | None:
    """Return the KV memory; None if it is not reported."""
    found = _CACHE.search(metrics)
    labels = {} if found is None else {name: int(value) for name, value in _LABEL.findall(found[1])}
    if set(labels) != {"block_size", "num_gpu_blocks"}:
        return None
    # One block is vLLM's null block.
    return EngineMemory(max(1, labels["num_gpu_blocks"] - 1) * labels["block_size"], labels["block_size"])


# vLLM's defaults, where it does not report them.
_CONTEXT: Final = 131_072
_BATCHED_TOKENS: Final = 2048
_SEQS: Final = 256


async def fetch_engine_facts(
    url: str,
    *,
    model: str | None = None,
    kv_tokens: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> EngineFacts:
    """Return the endpoint's limits; arguments override what it reports. InputError if KV memory is unknown."""
    async with EngineClient(url) as client:
        name = await served_model(client, model)
        context = next((one.get("max_model_len") for one in await client.models() if one["id"] == name), None)
        cache = await _cache(client)
    block_size = int(cache.get("block_size", 16))
    if kv_tokens is None:
        if not cache.get("num_gpu_blocks", "").isdigit():
            raise InputError("does not report its KV memory in /metrics", source=url, hint="give --kv-tokens")
        kv_tokens = (int(cache["num_gpu_blocks"]) - 1) * block_size  # one of vLLM's is the null block
    return EngineFacts(
        engine=url,
        model=name,
        kv_tokens=kv_tokens,
        block_size=block_size,
        max_model_len=int(context or _CONTEXT),
        max_num_seqs=max_num_seqs or _SEQS,
        max_num_batched_tokens=max(max_num_batched_tokens or _BATCHED_TOKENS, max_num_seqs or _SEQS),
        prefix_caching=cache.get("enable_prefix_caching", "True") == "True",
        chunked_prefill=True,
    )


async def _cache(client: EngineClient) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info`, empty without such a metric."""
    found = _CACHE.search(await fetch_metrics(client) or "")
    return {} if found is None else dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
