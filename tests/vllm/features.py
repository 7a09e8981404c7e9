"""vLLM's features with the plug-in and without it, in a process of its own: `python -m tests.vllm.features OUT.json [NAME ...]`.

A tiny Llama with random weights answers greedily in float32. Per feature, stock vLLM and the plug-in get the same
requests, whose declared lengths make the plug-in run them in another order; the answers must be the same tokens.
"""  # noqa: E501

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNT = 12
SCHEDULER = "lengthwise.vllm.LengthwiseScheduler"
LIMITS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 256, "max_num_seqs": 3, "max_num_batched_tokens": 256, "enforce_eager": True,
    "disable_log_stats": True, "enable_prefix_caching": False, "seed": 0,
}  # fmt: skip
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix caching": {"enable_prefix_caching": True},
    "chunked prefill": {"enable_chunked_prefill": True, "max_num_batched_tokens": 48},
    "chunked prefill off": {"enable_chunked_prefill": False},
    "n-gram speculation": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    },
    "structured output": {},
    "LoRA": {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8, "max_cpu_loras": 2},
    "KV connector": {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
    "embedding": {"runner": "pooling"},
    "priority": {"scheduling_policy": "priority"},
}


def tiny_llama(folder: Path) -> Path:
    """Write a Llama of two layers with random weights large enough that its answers differ, and a real tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from lengthwise.vllm.smollm2 import model_folder

    torch.manual_seed(5)
    tokenizer = AutoTokenizer.from_pretrained(str(model_folder()))
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adapter(folder: Path, seed: int) -> Path:
    """Write a LoRA adapter with random weights."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    folder.mkdir()
    weights = {}
    for layer in range(2):
        for name, out in (("q_proj", 256), ("v_proj", 128)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = torch.randn(8, 256, generator=generator)
            weights[f"{at}.lora_B.weight"] = torch.randn(out, 8, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def requests(feature: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield prompts of many lengths, a third of which repeat, and what is asked of each."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    for number in range(COUNT):
        start = 300 + 17 * (number % 4)
        prompt = {"prompt_token_ids": [start + place % 7 for place in range(12 + 9 * (number % 5))]}
        length = 4 + (COUNT - number) * 2
        options: dict[str, Any] = {"max_tokens": length, "temperature": 0.0, "ignore_eos": True}
        if feature == "structured output":
            choice = ["yes", "no, never", "perhaps"] if number % 2 else ["a queue", "a stack"]
            options = {
                "max_tokens": 12,
                "temperature": 0.0,
                "structured_outputs": StructuredOutputsParams(choice=choice),
            }
        yield prompt, SamplingParams(**options, extra_args={"expected_tokens": length})


def run(feature: str, model: Path, work: Path, plugin: bool) -> tuple[list[Any], str]:
    """Return the answers to the requests, and the class of the scheduler."""
    from vllm import LLM
    from vllm.lora.request import LoRARequest

    options = {**LIMITS, **FEATURES[feature]}
    if plugin:
        options |= {"scheduler_cls": SCHEDULER, "additional_config": {"lengthwise": {"policy": "srpt:c=0.8"}}}
    if feature == "KV connector":
        stored = {"shared_storage_path": str(work / f"kv-{plugin}")}
        options["kv_transfer_config"] = {**options["kv_transfer_config"], "kv_connector_extra_config": stored}
    llm = LLM(str(model), **options)
    core = llm.llm_engine.engine_core.engine_core
    kind = type(core.scheduler).__name__
    prompts, params = zip(*requests(feature), strict=True)
    if feature == "embedding":
        answers = [list(map(float, one.outputs.embedding)) for one in llm.embed(list(prompts), use_tqdm=False)]
    else:
        more: dict[str, Any] = {}
        if feature == "LoRA":
            more["lora_request"] = [
                LoRARequest(f"adapter{number % 2}", 1 + number % 2, str(work / f"adapter{number % 2}"))
                for number in range(COUNT)
            ]
        if feature == "priority":
            more["priority"] = [number % 3 for number in range(COUNT)]
        done = llm.generate(list(prompts), list(params), use_tqdm=False, **more)
        answers = [list(one.outputs[0].token_ids) for one in done]
    return answers, kind


def run_into(out: Path, *arguments: Any) -> None:
    """Write what `run` returns, or the error: a feature that this build of vLLM lacks is an outcome too."""
    try:
        answers, kind = run(*arguments)
        out.write_text(json.dumps({"scheduler": kind, "answers": answers}))
    except Exception as error:
        traceback.print_exc()
        out.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}))
    sys.stdout.flush()
    os._exit(0)  # threads of the engine may keep a forked process


def main() -> None:
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", LENGTHWISE_STATE="off",
        LENGTHWISE_PREDICTOR="none",
    )  # fmt: skip
    outcome: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model = tiny_llama(work / "model")
        for seed in range(2):
            adapter(work / f"adapter{seed}", seed)
        for module in ("vllm", "vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker"):
            importlib.import_module(module)
        for feature in sys.argv[2:] or FEATURES:
            found: dict[str, Any] = {}
            for plugin in (False, True):
                # An engine a process, since vLLM's CPU build starts once in each; forked, so that it is imported once.
                out = work / "out.json"
                out.unlink(missing_ok=True)
                child = multiprocessing.get_context("fork").Process(
                    target=run_into, args=(out, feature, model, work, plugin)
                )
                child.start()
                child.join()
                found["plug-in" if plugin else "stock"] = (
                    json.loads(out.read_text()) if out.exists() else {"error": "died"}
                )
            outcome[feature] = found
            Path(sys.argv[1]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
