"""The last hour's traffic in the simulator, under other policies and numbers of engines.

Runs as `python -m lengthwise.gateway.what_if`: a question and rows of `RecentRequests` on standard input, one JSON line
for each answer on standard output, so that an answer that takes too long can be ended without the others.

The simulated engine's clock is scaled until the median time from a request's slot to its end, under what runs now,
equals the measured one. So only ratios are reported: they depend on the load, which is then right, and little on the
named hardware. The simulator gives each engine its own queue, the gateway has one for all engines of a model.
"""

from __future__ import annotations

import io
import json
import math
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from lengthwise.errors import InputError
from lengthwise.gateway.dashboard import LiveFleet, WhatIf
from lengthwise.gateway.recent_requests import Rows
from lengthwise.simulator import EngineSpec, Fleet, Outcome, RequestPredictions, find_engine, simulate
from lengthwise.workloads import Workload

_MAX_REQUESTS: Final = 20_000
_FEW: Final = 300  # requests: the readable engine is faster than loading the compiled one
_ROUNDS: Final = 4  # of fitting the clock
_SAME: Final = 0.03  # ratios closer to 1 are called the same
_NICE: Final = 10
_MAX_CPU_S: Final = 60


@dataclass(frozen=True)
class Replay:
    """Recorded requests as a workload for the simulator; times in seconds of its clock, which runs `scale` times."""

    workload: Workload
    predictions: RequestPredictions
    spec: EngineSpec
    router: str
    scale: float = 1.0

    @classmethod
    def of(cls, rows: Rows, running: LiveFleet, engine: str) -> Self:
        """Return the replay of recorded rows on engines like those that run."""
        rows = rows[np.argsort(rows["arrival_s"], kind="stable")]
        n = len(rows)
        tokens = np.maximum(1, rows["tokens"]).astype(np.int64)
        columns = {
            "arrival_s": rows["arrival_s"] - rows["arrival_s"][0],
            "input_tokens": np.maximum(1, rows["prompt_tokens"]).astype(np.int64),
            "output_tokens": tokens,
            "tenant": [str(tenant) for tenant in rows["tenant"]],
        }
        workload = Workload.from_table(columns, name="last hour")
        cap = np.maximum(rows["cap"], tokens).astype(np.float64)
        predictions = RequestPredictions(
            "recorded",
            rows["mu"].astype(np.float64),
            rows["sigma"].astype(np.float64),
            cap,
            np.full(n, "", object),
            tokens.astype(np.float64),
        )
        spec = find_engine(engine)
        slots = min(running.slots, spec.max_num_batched_tokens)
        spec = replace(spec, max_num_seqs=slots, kv_tokens=running.kv_tokens or spec.kv_tokens)
        return cls(workload, predictions, spec, running.router)

    def run(self, policy: str, engines: int) -> Outcome:
        """Simulate."""
        workload = self.workload.replace(arrival_s=self.workload.arrival_s * self.scale)
        router = "round_robin" if engines == 1 else self.router
        accelerate = None if len(workload) > _FEW else False
        fleet = Fleet((self.spec,) * engines)
        return simulate(workload, fleet, policy, router=router, predictor=self.predictions, accelerate=accelerate)

    def fitted(self, rows: Rows, running: LiveFleet) -> tuple[Self, Outcome]:
        """Return the replay with the clock's scale fitted to the measured times, and the simulation of what runs."""
        service = np.median(rows["ended_s"] - rows["arrival_s"] - rows["queue_s"])
        fitted, outcome = self, self.run(running.policy, running.engines)
        for _ in range(_ROUNDS):
            simulated = np.nanmedian(outcome.finished_s - outcome.started_s)
            scale = float(simulated / max(service, 1e-6))
            done = abs(scale / fitted.scale - 1.0) < _SAME
            fitted = replace(fitted, scale=scale)
            outcome = fitted.run(running.policy, running.engines)
            if done:
                break
        return fitted, outcome


def answers(question: WhatIf, running: LiveFleet, rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield what runs now, then each combination beside it: ratios of E2E latency, and the same in words."""
    rows = rows[-_MAX_REQUESTS:]
    replay, now = Replay.of(rows, running, question.engine).fitted(rows, running)
    measured = float(np.mean(rows["ended_s"] - rows["arrival_s"]))
    simulated = _mean_and_p99(now)[0] / replay.scale
    yield {
        "policy": running.policy,
        "engines": running.engines,
        "requests": len(rows),
        "seconds": round(float(rows["arrival_s"].max() - rows["arrival_s"].min()), 1),
        "simulated_over_measured": round(simulated / measured, 3),
    }
    for engines in question.engines:
        for policy in question.policies:
            yield _compared(policy, engines, now, replay.run(policy, engines))


def _compared(policy: str, engines: int, now: Outcome, other: Outcome) -> dict[str, Any]:
    ratios = [before / after for before, after in zip(_mean_and_p99(now), _mean_and_p99(other), strict=True)]
    count = "1 engine" if engines == 1 else f"{engines} engines"
    words = f"`{policy}` on {count}: mean {in_words(ratios[0])}, p99 {in_words(ratios[1])}"
    mean, p99 = (round(ratio, 3) for ratio in ratios)
    return {"policy": policy, "engines": engines, "mean": mean, "p99": p99, "words": words}


def _mean_and_p99(outcome: Outcome) -> tuple[float, float]:
    e2e = outcome.finished_s - outcome.arrival_s
    return float(np.nanmean(e2e)), float(np.nanpercentile(e2e, 99))


def in_words(speedup: float) -> str:
    """Return a ratio of latencies, before over after, in words."""
    if not math.isfinite(speedup) or speedup <= 0:
        return "unknown"
    if abs(math.log(speedup)) < _SAME:
        return "the same"
    factor, word = (speedup, "faster") if speedup > 1 else (1 / speedup, "slower")
    return (
        f"{factor:.2f}x {word}" if factor < 1.1 else f"{factor:.1f}x {word}" if factor < 10 else f"{factor:.0f}x {word}"
    )


def main() -> None:
    """Answer the question on standard input."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_CPU_S, _MAX_CPU_S))  # also if the gateway dies before
    stream = io.BytesIO(sys.stdin.buffer.read())
    head = json.loads(stream.readline())
    rows = np.load(stream, allow_pickle=False)
    try:
        for answer in answers(WhatIf(**head["question"]), LiveFleet(**head["running"]), rows):
            print(json.dumps(answer), flush=True)  # noqa: T201
    except InputError as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
