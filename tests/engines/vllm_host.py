"""A real vLLM engine with a real LLM, in a process of its own: what it admits, when it finishes, what it says.

    python -m tests.engines.vllm_host REQUESTS.json CHATS.json OUT.json POLICY...

All requests of the first file, which tell their lengths, are queued before the first step; once per policy, on the same
engine. Then the chats of the second, which do not: they are ordered under sjf by what the predictor predicts. At
last long requests
fill the slots and short ones arrive while they run, under fcfs and under a policy that preempts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the scheduler in this process, where it can be asked
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

SLOTS = 4
LONG, SHORT = 40, 4
SRPT = "srpt:c=0.8,times=2"
MOST = 400  # tokens of an answer whose length is predicted


def start() -> Any:
    from vllm import LLM

    from lengthwise.engines.embedded import SCHEDULER
    from lengthwise.engines.smollm2 import model_folder

    options = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": SLOTS, "enforce_eager": True}
    return LLM(str(model_folder()), scheduler_cls=SCHEDULER, disable_log_stats=True, **options).llm_engine


def serve(engine: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Queue everything, run to drain, and note what happened."""
    from vllm import SamplingParams

    for request in requests:
        length = request["output_tokens"]
        said = {"expected_tokens": length}
        params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, extra_args=said)
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


def serve_predicted(engine: Any, chats: list[list[dict[str, str]]]) -> dict[str, Any]:
    """Queue everything, and once all predictions are there admit a few at a time; answers are cut after a token."""
    from vllm import SamplingParams

    scheduler = engine.engine_core.engine_core.scheduler
    tokenizer = engine.get_tokenizer()
    for number, chat in enumerate(chats):
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt = {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
        engine.add_request(str(number), prompt, SamplingParams(max_tokens=MOST, temperature=0.0))
    while scheduler.predictions.counts.answered < len(chats):
        time.sleep(0.01)
    admitted = _note_admissions(scheduler)
    while engine.has_unfinished_requests():
        engine.abort_request([output.request_id for output in engine.step()])
    while scheduler.predictions.counts.observed < len(chats):
        time.sleep(0.01)
    return {
        "admitted": list(admitted),
        "llm": scheduler.jobs.llm,
        "most": MOST,
        "late": scheduler.predictions.counts.late,
    }


def serve_preempting(engine: Any, policy: str) -> dict[str, Any]:
    """As many long requests as there are slots, and a short one every third step."""
    from vllm import SamplingParams

    scheduler = engine.engine_core.engine_core.scheduler
    scheduler.use_policy(policy)

    def add(name: str, length: int) -> None:
        said = {"expected_tokens": length}
        params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, extra_args=said)
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
    """Names of the requests in the order in which the scheduler first admits them, filled as it runs."""
    admitted: list[str] = []
    schedule = type(scheduler).schedule

    def noting(*args: Any) -> Any:
        output = schedule(scheduler, *args)
        # vLLM adds eight random signs to the name it was given.
        admitted.extend(data.req_id.rsplit("-", 1)[0] for data in output.scheduled_new_reqs)
        return output

    scheduler.schedule = noting
    return admitted


def main() -> None:
    requests, chats = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
    engine = start()
    scheduler = engine.engine_core.engine_core.scheduler
    outcome = {"budget": scheduler.max_num_scheduled_tokens, "block_size": scheduler.block_size}
    for policy in sys.argv[4:]:
        scheduler.use_policy(policy)
        outcome[policy] = serve(engine, requests)
    scheduler.use_policy("sjf")
    outcome["predicted"] = serve_predicted(engine, chats)
    outcome["preempting"] = {policy: serve_preempting(engine, policy) for policy in ("fcfs", SRPT)}
    Path(sys.argv[3]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
