"""What reading hidden states and the probe adds to a real engine: `python -m benchmarks.probe [--json] [--batch 1,8]`.

Three engines with the embedded LLM, each in a process of its own, in turns: vLLM as it is (`stock`), our scheduler
(`srpt:c=0.8`, nothing predicted), and the same with the probe (`probe`). All answer the same prompts with as many
tokens (`ignore_eos`), a batch at once; the order of the three changes from block to block. Counted is the CPU time of
the whole process, all threads, over the tokens generated. Ratios are of blocks side by side, with 95 % intervals over
blocks. vLLM's CPU build schedules no step ahead, whatever it is told, so that this is without async scheduling.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lengthwise.simulator.paired import over_seeds

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from lengthwise.simulator.paired import Ratio

TARGET: Final = 1.03
STOCK, PLUGIN, PROBE = "stock", "plug-in", "probe"
KINDS: Final = (STOCK, PLUGIN, PROBE)
PROMPT_TOKENS: Final = 64


def host(kind: str, probe: str, pipe: Connection) -> None:
    """An engine; answers (block, batch, tokens) with its CPU seconds and what the probe did, until the pipe ends."""
    engine = start(kind, probe)
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        block, batch, tokens = asked
        add(engine, block, batch, tokens)
        began = time.process_time()
        while engine.has_unfinished_requests():
            engine.step()
        took = time.process_time() - began
        refiner = getattr(engine.engine_core.engine_core.scheduler, "refiner", None)
        pipe.send((took, 0 if refiner is None else refiner.counts.readings))


def start(kind: str, probe: str) -> Any:  # noqa: ANN401
    """The engine in this process, one thread, as `lengthwise engine` starts it."""
    import tests.engines.vllm_host  # noqa: F401  (sets the environment that an engine on a CPU needs)
    from vllm import LLM

    from lengthwise.engines.embedded import SCHEDULER, _has_bfloat16
    from lengthwise.engines.smollm2 import MODEL_NAME, model_folder
    from lengthwise.engines.states import WORKER

    options: dict[str, Any] = {
        "dtype": "bfloat16" if _has_bfloat16() else "float32", "max_model_len": 2048, "max_num_seqs": 16,
        "max_num_batched_tokens": 2048, "enforce_eager": True, "disable_log_stats": True,
        "enable_chunked_prefill": False, "served_model_name": MODEL_NAME, "enable_prefix_caching": False,
    }  # fmt: skip
    if kind != STOCK:
        chosen = {"policy": "srpt:c=0.8", "predictor": "none"}
        options |= {"scheduler_cls": SCHEDULER, "additional_config": {"lengthwise": chosen}}
        if kind == PROBE:
            chosen["probe"] = probe
            options["worker_cls"] = WORKER
    return LLM(str(model_folder()), **options).llm_engine


def add(engine: Any, block: int, batch: int, tokens: int) -> None:  # noqa: ANN401
    """Let a batch of requests come, the same for every engine."""
    import numpy as np
    from vllm import SamplingParams

    for number in range(batch):
        prompt = np.random.default_rng((block, number)).integers(100, 20_000, PROMPT_TOKENS).tolist()
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        engine.add_request(f"{block}.{number}", {"prompt_token_ids": prompt}, params)


@dataclass
class Engine:
    """One of the three, in its process."""

    pipe: Connection
    process: Any
    ms_per_token: list[float] = field(default_factory=list)
    readings: int = 0

    def run(self, block: int, batch: int, tokens: int) -> None:
        """One block."""
        self.pipe.send((block, batch, tokens))
        took, self.readings = self.pipe.recv()
        self.ms_per_token.append(1e3 * took / (batch * tokens))


def engines(probe: str) -> dict[str, Engine]:
    """Start the three, one after the other."""
    context, found = multiprocessing.get_context("spawn"), {}
    for kind in KINDS:
        here, there = context.Pipe()
        process = context.Process(target=host, args=(kind, probe, there), daemon=True)
        process.start()
        assert here.recv() == "ready"
        found[kind] = Engine(here, process)
    return found


def measure(all_three: dict[str, Engine], batch: int, tokens: int, blocks: int) -> dict[str, Any]:
    """The three in turns, a block to warm up first."""
    for block in range(blocks + 1):
        order = KINDS[block % 3 :] + KINDS[: block % 3]
        for kind in order:
            all_three[kind].run(1000 * batch + block, batch, tokens)
    costs = {kind: engine.ms_per_token[1:] for kind, engine in all_three.items()}
    for engine in all_three.values():
        engine.ms_per_token.clear()
    return {
        "batch": batch,
        "ms_per_token": {kind: statistics.fmean(some) for kind, some in costs.items()},
        "over_plugin": over_seeds(costs[PROBE], costs[PLUGIN]),
        "over_stock": over_seeds(costs[PROBE], costs[STOCK]),
        "readings": all_three[PROBE].readings,
    }


def said(ratio: Ratio) -> str:
    return f"{100 * (ratio.ratio - 1):+.1f} % [{100 * (ratio.low - 1):+.1f}, {100 * (ratio.high - 1):+.1f}]"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--batch", default="1,8,16")
    arguments.add_argument("--tokens", type=int, default=96)
    arguments.add_argument("--blocks", type=int, default=9)
    arguments.add_argument("--probe", default="default")
    asked = arguments.parse_args()
    all_three = engines(asked.probe)
    for batch in map(int, asked.batch.split(",")):
        found = measure(all_three, batch, asked.tokens, asked.blocks)
        if asked.json:
            print(json.dumps(found, default=asdict), flush=True)
            continue
        costs = ", ".join(f"{kind} {cost:.2f}" for kind, cost in found["ms_per_token"].items())
        print(f"batch {batch}: CPU ms per token: {costs}; {found['readings']:,} readings so far")
        print(
            f"  the probe adds {said(found['over_plugin'])} to the plug-in, {said(found['over_stock'])} to stock vLLM"
        )
        print(f"  at most {100 * (TARGET - 1):.0f} % wanted, {asked.blocks} blocks", flush=True)
    for engine in all_three.values():
        engine.pipe.send(None)
        engine.process.join()


if __name__ == "__main__":
    main()
