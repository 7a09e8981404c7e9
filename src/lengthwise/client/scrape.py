"""What an engine reports about itself, as vLLM and SGLang do.

/metrics gives the running and waiting requests and the KV memory in use; /v1/models gives the context length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from lengthwise.client.client import ASK_S, EngineClient, EngineError, served_model
from lengthwise.errors import InputError
from lengthwise.simulator.step_log import EngineFacts

_RUNNING: Final = "vllm:num_requests_running", "sglang:num_running_reqs"
_WAITING: Final = "vllm:num_requests_waiting", "sglang:num_queue_reqs"
_KV: Final = "vllm:kv_cache_usage_perc", "sglang:token_usage"
_PREFIX_QUERIES: Final = "vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total"
_PREFIX_HITS: Final = "vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"
_LOAD: Final = _RUNNING + _WAITING + _KV + _PREFIX_QUERIES + _PREFIX_HITS
_CACHE: Final = ("vllm:cache_config_info",)
_COUNT: Final = re.compile(r"[0-9]{1,12}")
_MAX_VALUE: Final = 1e20  # no count of an engine is that large
_MAX_LINE: Final = 1 << 14  # characters; the parser takes some 0.3 us for each


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """An engine's load. `kv_use`: share of its KV memory in use, if reported.

    `prefix_tokens`: tokens of prompts that were in its prefix cache, and of all prompts, since its start.
    """

    running: int
    waiting: int
    kv_use: float | None = None
    prefix_tokens: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """An engine's KV memory."""

    kv_tokens: int
    block_size: int


async def fetch_metrics(client: EngineClient) -> str | None:
    """Return the text of /metrics; empty if the engine does not answer now, None if it has no metrics."""
    try:
        status, body = await client.fetch("/metrics", timeout_s=ASK_S)
        return body.decode("utf-8", "replace") if status == 200 else None
    except EngineError:
        return ""


def read_gauges(metrics: str) -> EngineGauges | None:
    """Return the load; None if running or waiting requests are not reported."""
    samples = [sample for sample in _samples(metrics, _LOAD) if 0 <= sample.value < _MAX_VALUE]

    def values(names: tuple[str, ...]) -> list[float]:
        return [sample.value for sample in samples if sample.name in names]

    running, waiting, kv = values(_RUNNING), values(_WAITING), values(_KV)
    if not running or not waiting:
        return None
    # One line per engine core behind the server: their sum is the engine's.
    hits, queries = int(sum(values(_PREFIX_HITS))), int(sum(values(_PREFIX_QUERIES)))
    return EngineGauges(
        int(sum(running)), int(sum(waiting)), float(kv[0]) if kv else None, (hits, queries) if queries else None
    )


def read_memory(metrics: str) -> EngineMemory | None:
    """Return the KV memory; None if it is not reported."""
    labels = _cache_labels(metrics)
    blocks, block_size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    if not (_COUNT.fullmatch(blocks) and _COUNT.fullmatch(block_size)):
        return None
    return EngineMemory(max(1, int(blocks) - 1) * int(block_size), int(block_size))  # one block is vLLM's null block


def _cache_labels(metrics: str) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info`, empty without such a metric."""
    return next((dict(sample.labels) for sample in _samples(metrics, _CACHE)), {})


def _samples(metrics: str, names: tuple[str, ...]) -> Iterator[Sample]:
    """Yield the samples of these names; a line that cannot be read is left out.

    Prometheus's parser gets only the lines that begin with a name. One scrape of a vLLM then takes 0.7 ms, and
    one a second 0.1 % of the gateway's CPU time; all of its 485 lines would take 13 ms.
    """
    for line in metrics.split("\n"):
        if line.startswith(names) and len(line) < _MAX_LINE:
            try:
                families = list(text_string_to_metric_families(line))
            except (ValueError, IndexError):
                continue
            yield from (sample for family in families for sample in family.samples if sample.name in names)


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
        metrics = await fetch_metrics(client) or ""
    labels, memory = _cache_labels(metrics), read_memory(metrics)
    if kv_tokens is None:
        if memory is None:
            raise InputError("does not report its KV memory in /metrics", source=client.url, hint="give --kv-tokens")
        kv_tokens = memory.kv_tokens
    return EngineFacts(
        engine=client.url,
        model=name,
        kv_tokens=kv_tokens,
        block_size=int(labels.get("block_size", 16)),
        max_model_len=int(context or _CONTEXT),
        max_num_seqs=max_num_seqs or _SEQS,
        max_num_batched_tokens=max(max_num_batched_tokens or _BATCHED_TOKENS, max_num_seqs or _SEQS),
        prefix_caching=labels.get("enable_prefix_caching", "True") == "True",
        chunked_prefill=True,
    )
