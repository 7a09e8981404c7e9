"""CPU time that hidden states and the probe add to a real engine: `python -m benchmarks.probe [--batch 1,8]`.

Three engines with the embedded LLM, each in its own process, alternate: unmodified vLLM (`stock`), the plug-in
(`srpt:c=0.8`, no predictor), and the plug-in with the probe (`probe`). All answer the same prompts with equally many
tokens (`ignore_eos`), a batch at once, in short blocks; the order of the three changes from block to block. The figure
is the CPU time of the whole process, all threads, per generated token. Ratios are of the means of the fastest half of
the blocks, because other processes on the machine only make blocks slower, with 95 % intervals (paired bootstrap over
blocks). In addition, inside the engine with the probe: the CPU time of transfer and reading over all other CPU
time, which a busy machine disturbs less; and that of reading 1 to 64 states in one step. vLLM's CPU build has no async
scheduling.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks import options
from lengthwise.intervals import Ratio, draw_rows, interval
from lengthwise.lengths import LogT
from lengthwise.predictors.probe import load_probe
from lengthwise.vllm.refine import Due, Refiner, State
from tests.vllm.host import ENVIRONMENT

TARGET: Final = 1.03
STOCK, PLUGIN, PROBE = "stock", "plug-in", "probe"
KINDS: Final = (STOCK, PLUGIN, PROBE)
PROMPT_TOKENS: Final = 64
READ_TOGETHER: Final = (1, 8, 64)
CAP: Final = 1024


@dataclass
class Clock:
    """CPU seconds of this thread inside timed calls; nested calls count once."""

    spent_s: float = 0.0
    inside: bool = False

    def timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and counts its time."""

        def counting(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return work(*args, **kwargs)
            self.inside, start = True, time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                self.inside, self.spent_s = False, self.spent_s + time.thread_time() - start

        return counting


def host(kind: str, probe: str, pipe: Connection) -> None:
    """Run an engine: for each (block, batch, tokens) send its CPU seconds, those of the probe, and the readings."""
    probe_clock = Clock()
    engine = start(kind, probe, probe_clock)
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        block, batch, tokens = message
        add(engine, block, batch, tokens)
        began, before = time.process_time(), probe_clock.spent_s
        while engine.has_unfinished_requests():
            engine.step()
        took = time.process_time() - began
        refiner = getattr(engine.engine_core.engine_core.scheduler, "refiner", None)
        pipe.send((took, probe_clock.spent_s - before, 0 if refiner is None else refiner.counts.readings))


def start(kind: str, probe: str, probe_clock: Clock) -> Any:
    """Start the engine in this process, with the options of `lengthwise engine`."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.update(ENVIRONMENT, LENGTHWISE_STATE="off")
    from vllm import LLM

    from lengthwise.vllm.embedded import SCHEDULER, _has_bfloat16
    from lengthwise.vllm.refine import WORKER
    from lengthwise.vllm.smollm2 import MODEL_NAME, model_folder

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
            time_probe(probe_clock)
    return LLM(str(model_folder()), **options).llm_engine


def time_probe(clock: Clock) -> None:
    """Time what the probe adds outside the LLM: selecting the states of the step, and their use in the scheduler."""
    from lengthwise.vllm.scheduler import LengthwiseSyncScheduler
    from lengthwise.vllm.worker import PendingStates, StatesWorker

    for owner, name, work in (
        (StatesWorker, "_pending", StatesWorker._pending),  # noqa: SLF001
        (PendingStates, "result", PendingStates.result),
        (LengthwiseSyncScheduler, "_refine", LengthwiseSyncScheduler._refine),  # noqa: SLF001
    ):
        setattr(owner, name, clock.timed(work))


def add(engine: Any, block: int, batch: int, tokens: int) -> None:
    """Add a batch of requests, the same for every engine."""
    from vllm import SamplingParams

    for number in range(batch):
        prompt = np.random.default_rng((block, number)).integers(100, 20_000, PROMPT_TOKENS).tolist()
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        engine.add_request(f"{block}.{number}", {"prompt_token_ids": prompt}, params)


@dataclass
class Engine:
    """One of the three engines, in its process."""

    pipe: Connection
    process: Any
    ms_per_token: list[float] = field(default_factory=list)
    probe_s: float = 0.0
    other_s: float = 0.0
    readings: int = 0

    def run(self, block: int, batch: int, tokens: int) -> None:
        """Run one block."""
        self.pipe.send((block, batch, tokens))
        took, probe_s, self.readings = self.pipe.recv()
        self.probe_s, self.other_s = self.probe_s + probe_s, self.other_s + took - probe_s
        self.ms_per_token.append(1e3 * took / (batch * tokens))


def engines(probe: str) -> dict[str, Engine]:
    """Start the three, one after the other."""
    context, found = multiprocessing.get_context("spawn"), {}
    for kind in KINDS:
        here, there = context.Pipe()
        process = context.Process(target=host, args=(kind, probe, there), daemon=True)
        process.start()
        there.close()  # so that an engine that dies ends this process too
        assert here.recv() == "ready"
        found[kind] = Engine(here, process)
    return found


def measure(all_three: dict[str, Engine], batch: int, tokens: int, blocks: int) -> dict[str, Any]:
    """Measure the three engines in turns, after one block to warm up."""
    for block in range(blocks + 1):
        order = KINDS[block % 3 :] + KINDS[: block % 3]
        for kind in order:
            all_three[kind].run(1000 * batch + block, batch, tokens)
        if block == 0:
            for engine in all_three.values():
                engine.ms_per_token.clear()
                engine.probe_s = engine.other_s = 0.0
    costs = {kind: np.array(engine.ms_per_token) for kind, engine in all_three.items()}
    probed = all_three[PROBE]
    found = {
        "batch": batch,
        "ms_per_token": {kind: fastest(cost) for kind, cost in costs.items()},
        "over_plugin": ratio(costs[PROBE], costs[PLUGIN]),
        "over_stock": ratio(costs[PROBE], costs[STOCK]),
        "probe_share": probed.probe_s / probed.other_s,
        "readings": probed.readings,
    }
    for engine in all_three.values():
        engine.ms_per_token.clear()
    return found


def fastest(costs: NDArray[np.float64]) -> float:
    """Return the mean of the fastest half."""
    return float(np.sort(costs)[: max(1, len(costs) // 2)].mean())


def ratio(ours: NDArray[np.float64], base: NDArray[np.float64]) -> Ratio:
    """Return the ratio of the fastest halves with its 95 % interval by a paired bootstrap over blocks."""
    resamples = draw_rows(len(ours), seed=0, resamples=2000)
    drawn = [fastest(ours[rows]) / fastest(base[rows]) for rows in resamples]
    return Ratio(fastest(ours) / fastest(base), *interval(drawn))


def change(ratio: Ratio) -> str:
    return f"{100 * (ratio.ratio - 1):+.1f} % [{100 * (ratio.low - 1):+.1f}, {100 * (ratio.high - 1):+.1f}]"


def reading_ms(probe: str, requests: int) -> float:
    """Return the CPU time of reading this many states in a step, in ms: the fastest of twelve times twenty steps."""
    loaded = load_probe(probe)
    states = np.random.default_rng(0).normal(size=(requests, loaded.network.width)).astype(np.float32)
    took = []
    for _ in range(12):
        refiner, began = Refiner(loaded), time.thread_time()
        for generated in range(0, 20 * loaded.every, loaded.every):
            refiner.read(
                [
                    Due(str(row), generated, State(0, {loaded.layer: state}, 1.0), LogT(5.0, 0.8, CAP), CAP)
                    for row, state in enumerate(states)
                ]
            )
        took.append((time.thread_time() - began) / 20)
    return 1e3 * min(took)


def main() -> None:
    asked = options(__doc__, batch=(1, 8, 16), tokens=32, blocks=40, probe="default")
    with threadpool_limits(1):
        for requests in READ_TOGETHER:
            print(f"{requests} states read in one step: {reading_ms(asked.probe, requests):.2f} ms", flush=True)
    all_three = engines(asked.probe)
    for batch in asked.batch:
        found = measure(all_three, batch, asked.tokens, asked.blocks)
        costs = ", ".join(f"{kind} {cost:.2f}" for kind, cost in found["ms_per_token"].items())
        print(f"batch {batch}: CPU ms per token: {costs}; {found['readings']:,} readings so far")
        over_plugin, over_stock = change(found["over_plugin"]), change(found["over_stock"])
        print(f"  the probe adds {over_plugin} to the plug-in, {over_stock} to stock vLLM")
        print(f"  CPU time of the probe: {100 * found['probe_share']:.2f} % of the engine's other CPU time")
        print(f"  at most {100 * (TARGET - 1):.0f} % is the target; {asked.blocks} blocks", flush=True)
    for engine in all_three.values():
        engine.pipe.send(None)
        engine.process.join()


if __name__ == "__main__":
    main()
