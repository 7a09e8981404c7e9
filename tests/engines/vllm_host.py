"""A real vLLM engine with a real LLM, in a process of its own: what it admits, when it finishes, what it says.

    python -m tests.engines.vllm_host REQUESTS.json OUT.json POLICY...

All requests of the file are queued before the first step; once per policy, on the same engine.
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
    return {"admitted": admitted, "finished": finished}


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
    requests = json.loads(Path(sys.argv[1]).read_text())
    engine = start()
    scheduler = engine.engine_core.engine_core.scheduler
    outcome = {"budget": scheduler.max_num_scheduled_tokens, "block_size": scheduler.block_size}
    for policy in sys.argv[3:]:
        scheduler.use_policy(policy)
        outcome[policy] = serve(engine, requests)
    Path(sys.argv[2]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
