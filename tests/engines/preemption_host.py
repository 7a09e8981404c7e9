"""A real vLLM engine with a real LLM, in a process of its own, in which running requests yield to waiting ones.

    python -m tests.engines.preemption_host OUT.json POLICY...

Long requests fill the slots; short ones come while they run. Under each policy: what each request says, in which order
they finish, and how often each was preempted. On a CPU vLLM schedules no step ahead, whatever it is told.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.engines.vllm_host import SLOTS, start  # sets the environment that an engine on a CPU needs

LONG, SHORT = 40, 4


def serve(engine: Any, policy: str) -> dict[str, Any]:
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


def main() -> None:
    engine = start()
    out, *policies = sys.argv[1:]
    Path(out).write_text(json.dumps({policy: serve(engine, policy) for policy in policies}))


if __name__ == "__main__":
    main()
