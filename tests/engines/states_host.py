"""A real vLLM engine with a real LLM and our worker, in a process of its own: states beside those of transformers.

    python -m tests.engines.states_host OUT.json

Prompts of many lengths come while others are being answered, some longer than a step computes at once, so that steps
mix pieces of prompts with decoding; one is preempted by hand and computed again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tests.engines.vllm_host  # noqa: F401  (sets the environment that an engine on a CPU needs)

LAYERS = (10, 20)
ANSWER = 12
BUDGET = 64


def start() -> Any:
    from vllm import LLM

    from lengthwise.engines.embedded import SCHEDULER
    from lengthwise.engines.smollm2 import model_folder

    return LLM(
        str(model_folder()), scheduler_cls=SCHEDULER, worker_cls="lengthwise.engines.vllm_worker.StatesWorker",
        additional_config={"lengthwise": {"policy": "fcfs", "layers": list(LAYERS), "entropy": True}}, dtype="float32",
        max_model_len=512, max_num_seqs=6, max_num_batched_tokens=BUDGET, enable_chunked_prefill=True,
        enforce_eager=True, disable_log_stats=True, enable_prefix_caching=False,
    ).llm_engine  # fmt: skip


def serve(engine: Any) -> tuple[list[Any], dict[str, list[int]], dict[str, Any]]:
    """Run to drain; return the states heard, the token ids of every request, and what the steps were like."""
    from vllm import SamplingParams

    scheduler = engine.engine_core.engine_core.scheduler
    heard: list[Any] = []
    steps: list[tuple[int, int]] = []  # prompts and decodes in each
    preempted: list[str] = []
    scheduler.on_state = lambda request, generated, state: heard.append(
        (request.request_id.rsplit("-", 1)[0], generated, state)
    )
    update = scheduler.update_from_output

    def noting(step: Any, output: Any) -> Any:
        counts = list(step.num_scheduled_tokens.values())
        steps.append((sum(count > 1 for count in counts), sum(count == 1 for count in counts)))
        return update(step, output)

    scheduler.update_from_output = noting
    sizes = [5, 90, 17, 140, 3, 41, 8, 70]
    tokens: dict[str, list[int]] = {}
    for number in range(400):
        if number % 2 == 0 and number // 2 < len(sizes):
            name = f"r{number // 2}"
            rng = np.random.default_rng(number)
            tokens[name] = rng.integers(100, 20_000, sizes[number // 2]).tolist()
            params = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
            engine.add_request(name, {"prompt_token_ids": tokens[name]}, params)
        if number == 9:
            victim = max(scheduler.running, key=lambda request: request.num_output_tokens)
            scheduler._preempt(victim)
            preempted.append(victim.request_id.rsplit("-", 1)[0])
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = tokens[output.request_id] + list(output.outputs[0].token_ids)
        if number // 2 >= len(sizes) and not engine.has_unfinished_requests():
            break
    return heard, tokens, {"steps": steps, "preempted": preempted}


def beside_transformers(heard: list[Any], tokens: dict[str, list[int]]) -> list[dict[str, Any]]:
    """How far each state is from what transformers computes of the same tokens, and of the nearest other request's."""
    import torch
    from transformers import AutoModelForCausalLM

    from lengthwise.engines.smollm2 import model_folder

    llm = AutoModelForCausalLM.from_pretrained(str(model_folder()), dtype=torch.float32).eval()
    with torch.inference_mode():
        said = {name: llm(torch.tensor([ids]), output_hidden_states=True) for name, ids in tokens.items()}
    true = {name: one.hidden_states for name, one in said.items()}
    rows = []
    for name, generated, state in heard:
        log_share = torch.log_softmax(said[name].logits[0, len(tokens[name]) - ANSWER + generated - 1], dim=-1)
        entropy = float(-(log_share.exp() * log_share).sum())
        prompt = len(tokens[name]) - ANSWER
        for layer in LAYERS:
            right = true[name][layer][0, prompt + generated - 1].numpy()
            others = [
                true[other][layer][0, len(ids) - ANSWER + generated - 1].numpy()
                for other, ids in tokens.items()
                if other != name
            ]
            off, *from_others = (_off(state.layers[layer], one) for one in (right, *others))
            found = {"name": name, "generated": generated, "layer": layer, "off": off, "others": min(from_others)}
            rows.append({**found, "entropy": entropy, "entropy_told": state.entropy})
    return rows


def _off(state: Any, true: Any) -> float:
    return float(np.linalg.norm(state - true) / np.linalg.norm(true))


def main() -> None:
    engine = start()
    heard, tokens, seen = serve(engine)
    requests = {name: len(ids) for name, ids in tokens.items()}
    found = {"rows": beside_transformers(heard, tokens), "requests": requests, **seen}
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
