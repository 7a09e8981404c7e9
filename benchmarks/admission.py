"""Admission by predicted KV memory: throughput, TPOT and preemptions by rule and quantile, where memory is short.

    LENGTHWISE_DATA=... python -m benchmarks.admission [--seeds 3] [--workloads castillo,long] [--rules RULE:QUANTILE]

A simulation of one Llama-3-8B on an A100 with 64 slots and less KV memory than they need, about two thirds. All
requests wait from the start, which is the hardest case: there is always one more to admit. `slots only` admits whatever
prompt fits, as vLLM does. Throughput and the p99 of TPOT are relative to it; "in 25 ms" is the share of requests whose
further tokens take at most 25 ms each, on average.

castillo    CASTILLO's test prompts and the lengths of Llama-3.1-8B, predicted by `fast`
long        the same with answers eight times as long, as of an LLM that reasons, predicted with tau .55
azure       Azure's conversations: long prompts; predicted by the lengths of earlier answers alone (`history`)
sharegpt    ShareGPT: short prompts, long tail of answers; tau .55
arxiv       summaries of papers: very long prompts, a few answers of thousands of tokens; tau .55
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks import options
from lengthwise.bench.episodes import DEFAULT_LLM, Kind, TrafficPlan, draw, load_prompts
from lengthwise.intervals import over_seeds
from lengthwise.reports.tables import multiple
from lengthwise.simulator import Fleet, Outcome, simulate
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.predictions import predict_workload
from lengthwise.workloads import Workload, load_trace, redraw

ENGINE: Final = "1*llama-3-8b@a100"
WITHIN: Final = LatencyLimits(ttft_s=np.inf, tpot_s=0.025)
LONGER: Final = 8
QUANTILES: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995)


def castillo(requests: int, seed: int) -> Workload:
    """Draw CASTILLO's test prompts, all waiting from the start."""
    plan = TrafficPlan()
    workload = draw(load_prompts(plan), plan, Kind.of("backlog"), seed, n=requests, capacity=1.0).workload
    return workload.replace(llm=pa.array([DEFAULT_LLM] * requests))


def long_answers(requests: int, seed: int) -> Workload:
    """Draw the same prompts with longer answers."""
    workload = castillo(requests, seed)
    return workload.replace(output_tokens=LONGER * workload.output_tokens)


def of_trace(name: str) -> Callable[[int, int], Workload]:
    """Return a function that draws the lengths of a trace, all waiting from the start."""

    def drawn(requests: int, seed: int) -> Workload:
        workload = redraw(load_trace(name), requests=requests, rate=1.0, seed=seed)
        return workload.replace(arrival_s=np.zeros(requests))

    return drawn


@dataclass(frozen=True)
class Case:
    """A workload, the KV tokens of the engine that serves it, and the predictor."""

    draw: Callable[[int, int], Workload]
    kv_tokens: int
    predictor: str = "noisy:0.55"


CASES: Final = {
    "castillo": Case(castillo, 20_000, "fast"),
    "long": Case(long_answers, 80_000),
    "azure": Case(of_trace("azure2023_conv"), 50_000, "history"),
    "sharegpt": Case(of_trace("lengths_sharegpt_10k_llama2"), 18_000),
    "arxiv": Case(of_trace("lengths_arxiv_summarization"), 110_000),
}


@dataclass
class Measured:
    """The figures of one rule, by seed."""

    makespan_s: list[float] = field(default_factory=list)
    tpot_p99_s: list[float] = field(default_factory=list)
    within: list[float] = field(default_factory=list)
    preemptions: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add a simulation."""
        self.makespan_s.append(float(np.nanmax(outcome.finished_s)))
        self.tpot_p99_s.append(outcome.summary.tpot_s.p99)
        self.within.append(float(outcome.within(WITHIN).mean()))
        self.preemptions.append(1000 * float(outcome.preemptions.mean()))

    def over(self, base: Measured) -> str:
        """Return the figures in words, beside those without admission."""
        throughput = multiple(over_seeds(base.makespan_s, self.makespan_s))
        tpot = multiple(over_seeds(self.tpot_p99_s, base.tpot_p99_s))
        return (
            f"throughput {throughput:22} TPOT p99 {tpot:22} {1e3 * np.mean(self.tpot_p99_s):6.1f} ms "
            f"{np.mean(self.within):7.1%} in 25 ms {np.mean(self.preemptions):9.1f} preemptions per 1,000"
        )


def main() -> None:
    given = options(
        __doc__,
        seeds=3,
        requests=500,
        slots=64,
        workloads=tuple(CASES),
        rules=tuple(f"joint:{quantile:g}" for quantile in QUANTILES),
        policy="lengthwise",
    )
    for name in given.workloads:
        case = CASES[name]
        fleet = Fleet.parse(ENGINE).limited_to(max_num_seqs=given.slots, kv_tokens=case.kv_tokens)
        drawn = [case.draw(given.requests, seed) for seed in range(given.seeds)]
        predicted = [predict_workload(workload, case.predictor, seed=seed) for seed, workload in enumerate(drawn)]
        print(f"{name}: {case.kv_tokens:,} KV tokens, predictor {case.predictor}")
        base = Measured()
        for rule in ("", *given.rules):
            kind, _, quantile = rule.partition(":")
            limits = {"admission": kind, "admission_quantile": float(quantile)} if rule else {}
            found = Measured() if rule else base
            for workload, predictions in zip(drawn, predicted, strict=True):
                found.add(simulate(workload, fleet.limited_to(**limits), given.policy, predictor=predictions))
            print(f"  {rule or 'slots only':14} {found.over(base)}", flush=True)


if __name__ == "__main__":
    main()
