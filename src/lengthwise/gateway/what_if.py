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
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, Self

import numpy as np

from lengthwise.errors import InputError
from lengthwise.gateway.dashboard import LiveFleet, WhatIf
from lengthwise.gateway.recent_requests import Rows
from lengthwise.simulator import EngineSpec, Fleet, Outcome, find_engine, simulate
from lengthwise.simulator.fit import fit_clock
from lengthwise.simulator.gains import Gain
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.replay import Replay

_TIMES: Final = ("arrival_s", "started_s", "finished_s")
_LENGTHS: Final = ("input_tokens", "output_tokens", "max_tokens", "mu", "sigma")
_MAX_REQUESTS: Final = 20_000
_FEW: Final = 300  # requests: the readable engine is faster than loading the compiled one
_NICE: Final = 10
_MAX_CPU_S: Final = 60


@dataclass(frozen=True, eq=False)
class LastHour:
    """Recorded requests, and engines like those that run."""

    replay: Replay
    spec: EngineSpec
    router: str

    @classmethod
    def of(cls, rows: Rows, running: LiveFleet, engine: str) -> Self:
        """Return recorded rows with the engine of this name and the limits of those that run."""
        columns = {name: rows[name] for name in (*_TIMES, *_LENGTHS)} | {"tenant": rows["tenant"].astype(str)}
        spec = find_engine(engine)
        slots = min(running.slots, spec.max_num_batched_tokens)
        spec = replace(spec, max_num_seqs=slots, kv_tokens=running.kv_tokens or spec.kv_tokens)
        return cls(Replay.of(columns, name="last hour"), spec, running.router)

    def run(self, policy: str, engines: int, speed: float) -> Outcome:
        """Simulate on engines that are `speed` times as fast; times are those of the engine of this name."""
        replay = self.replay
        workload = replay.workload.replace(arrival_s=replay.workload.arrival_s * speed)
        router = "round_robin" if engines == 1 else self.router
        accelerate = None if len(workload) > _FEW else False
        fleet = Fleet((self.spec,) * engines)
        return simulate(workload, fleet, policy, router=router, predictor=replay.predictions, accelerate=accelerate)

    def fitted(self, running: LiveFleet) -> tuple[float, Outcome]:
        """Return the speed at which the simulation of what runs takes the measured times, and that simulation."""
        service_s = float(np.median(self.replay.finished_s - self.replay.started_s))
        return fit_clock(lambda speed: self.run(running.policy, running.engines, speed), service_s)


def answers(question: WhatIf, running: LiveFleet, rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield what runs now, then each combination beside it: ratios of E2E latency, and the same in words."""
    rows = rows[-_MAX_REQUESTS:]
    hour = LastHour.of(rows, running, question.engine)
    speed, now = hour.fitted(running)
    measured = float(np.mean(rows["finished_s"] - rows["arrival_s"]))
    simulated = _mean_and_p99(now)[0] / speed
    yield {
        "policy": running.policy,
        "engines": running.engines,
        "requests": len(rows),
        "seconds": round(float(rows["arrival_s"].max() - rows["arrival_s"].min()), 1),
        "simulated_over_measured": round(simulated / measured, 3),
    }
    for engines in question.engines:
        for policy in question.policies:
            yield _compared(policy, engines, now, hour.run(policy, engines, speed), speed)


def _compared(policy: str, engines: int, now: Outcome, other: Outcome, speed: float) -> dict[str, Any]:
    ratios = [before / after for before, after in zip(_mean_and_p99(now), _mean_and_p99(other), strict=True)]
    count = "1 engine" if engines == 1 else f"{engines} engines"
    slo = LatencyLimits(*(limit * speed for limit in astuple(LatencyLimits())))  # in the time of the simulated engine
    gain = Gain.of(f"`{policy}` on {count}", [other], [now], slo)
    gain = replace(gain, base_s={name: value / speed for name, value in gain.base_s.items()})
    mean, p99 = (round(ratio, 3) for ratio in ratios)
    return {
        "policy": policy,
        "engines": engines,
        "mean": mean,
        "p99": p99,
        "over": {
            name: [round(each, 3) for each in (ratio.ratio, ratio.low, ratio.high)]
            for name, ratio in gain.over.items()
            if math.isfinite(ratio.ratio)
        },
        "within": None if gain.within is None else [round(gain.within.share, 4), round(gain.within.base, 4)],
        "words": gain.sentence("what runs now"),
        "figures": gain.figures(),
    }


def _mean_and_p99(outcome: Outcome) -> tuple[float, float]:
    e2e = outcome.finished_s - outcome.arrival_s
    return float(np.nanmean(e2e)), float(np.nanpercentile(e2e, 99))


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
