"""vLLM's scheduler without a model: real schedulers, real KV blocks, made-up tokens.

A model would only choose the next token, which a scheduler does not read.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_SIZE = 16


def tiny_model(folder: Path) -> Path:
    """Write the configuration of a tiny Llama, all that a scheduler reads of a model."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_scheduler(
    cls: type[Any],
    model: Path,
    *,
    slots: int = 4,
    blocks: int = 1000,
    budget: int = 256,
    context: int = 4096,
    chunked: bool = True,
    vllm_policy: str = "fcfs",
    prefix_caching: bool = False,
    policy: str | None = None,
    predictor: str | None = None,
    tokenizer: Path | None = None,
    steps: Path | None = None,
    measuring: dict[str, Any] | None = None,
    worker: str = "auto",
) -> Any:
    """Build a scheduler of the given class as vLLM's engine core does; without a tokenizer unless one is given."""
    model_config = ModelConfig(
        model=str(model),
        tokenizer=str(tokenizer or model),
        skip_tokenizer_init=tokenizer is None,
        served_model_name="SmolLM2-135M-Instruct",
        dtype="float32",
        max_model_len=context,
    )
    scheduler_config = SchedulerConfig(
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        max_model_len=context,
        enable_chunked_prefill=chunked,
        is_encoder_decoder=False,
        policy=vllm_policy,
    )
    cache_config = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=prefix_caching)
    chosen = {"policy": policy, "predictor": predictor, **({} if steps is None else {"steps": str(steps)})}
    chosen |= measuring or {}
    config = VllmConfig(
        scheduler_config=scheduler_config,
        model_config=model_config,
        cache_config=cache_config,
        parallel_config=ParallelConfig(worker_cls=worker),
        additional_config={"lengthwise": chosen} if policy or predictor else {},
    )
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    cache_config.num_gpu_blocks = blocks
    register_all_kvcache_specs(config)
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        block_size=BLOCK_SIZE,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


def make_request(
    name: str,
    prompt_tokens: int,
    output_tokens: int,
    *,
    arrival: float = 0.0,
    priority: int = 0,
    extra_args: dict[str, Any] | None = None,
    prompt: list[int] | None = None,
    **sampling: Any,
) -> Request:
    init_none_hash(sha256)
    params = SamplingParams(**{"max_tokens": output_tokens, "ignore_eos": True, "extra_args": extra_args, **sampling})
    tokens = prompt or [random.Random(name).randrange(1000) for _ in range(prompt_tokens)]
    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrival,
        priority=priority,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
    )


@dataclass
class Run:
    """What a scheduler did in each step."""

    steps: list[tuple[dict[str, int], frozenset[str]]] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    finished_at: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0


def model_output(names: list[str], tokens: list[list[int]]) -> ModelRunnerOutput:
    """Return the output of a step: the sampled tokens of each request, maybe none."""
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: number for number, name in enumerate(names)},
        sampled_token_ids=tokens,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def step(scheduler: Any, run: Run) -> None:
    """Run one step: schedule, and sample a token for every request whose prompt is computed."""
    output = scheduler.schedule()
    new = [data.req_id for data in output.scheduled_new_reqs]
    run.admitted += [name for name in new if name not in run.admitted]
    run.preemptions += len(output.preempted_req_ids or ())
    run.steps.append((dict(output.num_scheduled_tokens), frozenset(output.preempted_req_ids or ())))
    names = list(output.num_scheduled_tokens)
    sampled = []
    for name in names:
        request = scheduler.requests[name]
        done = request.num_computed_tokens >= request.num_prompt_tokens + request.num_output_tokens
        sampled.append([7] if done else [])
    if names:
        result = model_output(names, sampled)
        for outputs in scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    run.finished_at[one.request_id] = len(run.steps)


def drain(scheduler: Any, requests: dict[int, list[Request]], aborts: dict[int, list[str]] | None = None) -> Run:
    """Add requests (and aborts) at given steps, and run until every request has finished."""
    run = Run()
    last = max([0, *requests, *(aborts or {})])
    while len(run.steps) <= last or scheduler.has_unfinished_requests():
        now = len(run.steps)
        for request in requests.get(now, []):
            scheduler.add_request(request)
        for name in (aborts or {}).get(now, []):
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        step(scheduler, run)
        assert len(run.steps) < 20_000, "the schedule does not drain"
    return run
