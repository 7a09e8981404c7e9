"""Admission by predicted KV memory: preemptions and throughput by rule and quantile, where memory is short.

    python -m benchmarks.admission [--seeds 6] [--kv-tokens 12000,24000,40000] [--rules RULE:QUANTILE,...]

A simulation of one Llama-3-8B on an A100 with 64 slots and little KV memory. All requests (CASTILLO's test prompts and
the lengths of Llama-3.1-8B, predicted by `fast`) wait from the start, which is the hardest case: there is always one
more to admit. `slots only` admits whatever prompt fits, as vLLM does. Throughput is relative to it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks import options
from lengthwise.bench.episodes import DEFAULT_LLM, Kind, TrafficPlan, draw, load_prompts
from lengthwise.intervals import over_seeds
from lengthwise.reports.tables import multiple
from lengthwise.simulator import Fleet, simulate
from lengthwise.simulator.predictions import predict_workload

ENGINE = "1*llama-3-8b@a100"


def main() -> None:
    given = options(
        __doc__,
        seeds=6,
        requests=640,
        slots=64,
        kv_tokens=(12_000, 24_000, 40_000),
        rules=("peak:0.5", "peak:0.85", "peak:0.9", "joint:0.98", "joint:0.99", "joint:0.995", "joint:0.998"),
        policy="lengthwise",
    )
    plan, n = TrafficPlan(), given.requests
    prompts = load_prompts(plan)
    drawn = []
    for seed in range(given.seeds):
        workload = draw(prompts, plan, Kind.of("backlog"), seed, n=n, capacity=1.0).workload
        workload = workload.replace(llm=pa.array([DEFAULT_LLM] * n))
        drawn.append((workload, predict_workload(workload, "fast")))
    for kv_tokens in given.kv_tokens:
        fleet = Fleet.parse(ENGINE).limited_to(max_num_seqs=given.slots, kv_tokens=kv_tokens)
        makespans: dict[str, list[float]] = {}
        for rule in ("", *given.rules):
            kind, _, quantile = rule.partition(":")
            peak: dict[str, float | str] = {}
            if rule:
                peak = {"admission": kind, "admission_quantile": float(quantile)}
            outcomes = [
                simulate(workload, fleet.limited_to(**peak), given.policy, predictor=predictions)
                for workload, predictions in drawn
            ]
            preempted = 1000 * sum(int(outcome.preemptions.sum()) for outcome in outcomes) / (n * given.seeds)
            makespans[rule] = [float(np.nanmax(outcome.finished_s)) for outcome in outcomes]
            shown = f"throughput {multiple(over_seeds(makespans[''], makespans[rule]))}" if rule else ""
            name = f"{kind}, quantile {quantile}" if rule else "slots only"
            print(f"{kv_tokens:6} KV tokens  {name:26} {preempted:8.2f} preemptions per 1,000  {shown}", flush=True)


if __name__ == "__main__":
    main()
