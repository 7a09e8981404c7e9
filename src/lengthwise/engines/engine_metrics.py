"""What an engine reports about itself, as vLLM and SGLang do.

/metrics gives the running and waiting requests and the KV memory in use; /v1/models gives the context length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lengthwise.engines.client import EngineAnswer, EngineClient, EngineError, served_model
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


# vLLM's defaults where it does not tell.
_CONTEXT: Final = 131_072
_BATCHED_TOKENS: Final = 2048
_SEQS: Final = 256


async def told_facts(
    url: str,
    *,
    model: str | None = None,
    kv_tokens: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> EngineFacts:
    """Ask the endpoint; what is given goes before what it tells. An InputError where KV memory is neither."""
    async with EngineClient(url) as client:
        name = await served_model(client, model)
        context = next((one.get("max_model_len") for one in await client.models() if one["id"] == name), None)
        cache = await _cache(client)
    block_size = int(cache.get("block_size", 16))
    if kv_tokens is None:
        if not cache.get("num_gpu_blocks", "").isdigit():
            raise InputError("does not tell its KV memory in /metrics", source=url, hint="give --kv-tokens")
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
    """The labels of `vllm:cache_config_info`; nothing where there is no such metric."""
    answer: EngineAnswer | None = None
    try:
        answer = await client.get("/metrics")
        text = (await answer.read()).decode(errors="replace") if answer.status == 200 else ""
    except EngineError:
        return {}
    finally:
        if answer is not None:
            answer.close()
    line = next((line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")), "")
    return dict(re.findall(r'(\w+)="([^"]*)"', line))
