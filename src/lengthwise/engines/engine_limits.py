"""What an endpoint tells of its own limits, as vLLM does: its context in /v1/models, its KV memory in /metrics."""

from __future__ import annotations

import re
from typing import Final

from lengthwise.engines.client import EngineAnswer, EngineClient, EngineError
from lengthwise.engines.served import served_model
from lengthwise.engines.steps import EngineFacts
from lengthwise.errors import InputError

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
