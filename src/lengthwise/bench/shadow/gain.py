"""What would have been gained: a shadow's log replayed in the simulator, first come first served and by a policy.

The replay must first show that it matches what was measured: a gain in a simulation that does not is worth nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lengthwise.bench.shadow.accuracy import Accuracy, score_predictions
from lengthwise.bench.shadow.fit import FittedEngine, fit_engine
from lengthwise.bench.shadow.traffic import ShadowTraffic, shadow_traffic
from lengthwise.engines.shadow_log import Logged
from lengthwise.policies import make_policy
from lengthwise.simulator import Fleet, Outcome, Summary, find_engine, measure_capacity, simulate, summarise
from lengthwise.simulator.grid_result import latencies
from lengthwise.simulator.paired import Ratio, over_requests

LOGGED: Final = "as logged"
TRUE: Final = "true lengths"
_WORTH: Final = 0.01  # of FCFS's mean: a smaller gain of true lengths is none to take a share of


@dataclass(frozen=True)
class Replayed:
    """One policy on the logged arrivals and lengths; ratios are over FCFS's, below 1 is better."""

    policy: str
    predictions: str
    summary: Summary
    mean_e2e: Ratio
    p99_e2e: Ratio
    per_token: Ratio
    captured_e2e: float
    """(FCFS - this) / (FCFS - the same with true lengths), on means; NaN where true lengths gain nothing."""
    captured_per_token: float


@dataclass(frozen=True)
class ShadowGain:
    """All that a log says."""

    source: str
    engine_url: str
    predictor: str
    requests: int
    replayed: int
    left_out: Mapping[str, int]
    guessed_prompts: int
    counted_answers: int
    unsettled: int
    """Replayed answers of which only a part is known: no predictor is scored on them."""
    duration_s: float
    engine: FittedEngine
    load: float
    """Offered requests over what the replayed engine can do under backlog."""
    prediction_delay_s: float
    measured: Summary
    fcfs: Summary
    """The replay under FCFS, TTFT and TPOT of streamed answers only, as measured."""
    runs: tuple[Replayed, ...]
    accuracy: tuple[Accuracy, ...]

    @property
    def mismatch(self) -> float:
        """Replayed FCFS's mean E2E over the measured, less 1."""
        return self.fcfs.e2e_s.mean / self.measured.e2e_s.mean - 1.0


def study_shadow(
    logged: Logged,
    source: str,
    *,
    engine: str | None = None,
    policies: Sequence[str] = ("lengthwise",),
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    kv_tokens: int | None = None,
) -> ShadowGain:
    """Replay a log. `engine` is a name or a file; without one it is fitted to the log."""
    for name in policies:
        make_policy(name)
    given = None if engine is None else find_engine(engine)
    traffic = shadow_traffic(logged, source)
    fitted = (
        fit_engine(traffic, logged.gauges, logged.memory, max_num_seqs=max_num_seqs)
        if given is None
        else FittedEngine(given, 0, "given with the engine", "given with the engine")
    )
    fleet = Fleet((fitted.spec,)).limited_to(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, kv_tokens=kv_tokens
    )
    fitted = replace(fitted, spec=fleet.engines[0])
    delay = 0.0 if logged.account is None else logged.account.mean_age_s
    base = simulate(traffic.workload, fleet, "fcfs")
    capacity = measure_capacity(traffic.workload, fleet)
    return ShadowGain(
        source=source,
        engine_url=logged.header.engine,
        predictor=logged.header.predictor,
        requests=len(logged.entries),
        replayed=len(traffic.workload),
        left_out=traffic.left_out,
        guessed_prompts=traffic.guessed_prompts,
        counted_answers=traffic.counted_answers,
        unsettled=int((~traffic.settled).sum()),
        duration_s=float(np.nanmax(traffic.finish)),
        engine=fitted,
        load=capacity.load(traffic.workload.rate),
        prediction_delay_s=delay,
        measured=traffic.measured,
        fcfs=_as_measured(base, traffic),
        runs=tuple(run for name in policies for run in _replay(name, traffic, fleet, base, delay)),
        accuracy=score_predictions(traffic),
    )


def _replay(policy: str, traffic: ShadowTraffic, fleet: Fleet, base: Outcome, delay_s: float) -> list[Replayed]:
    logged = simulate(traffic.workload, fleet, policy, predictor=traffic.predictions, prediction_delay_s=delay_s)
    true = simulate(traffic.workload, fleet, policy, predictor="oracle")
    return [
        Replayed(
            policy,
            name,
            outcome.summary,
            _ratio(outcome, base, "e2e_s", None),
            _ratio(outcome, base, "e2e_s", 0.99),
            _ratio(outcome, base, "per_token_s", None),
            *(_captured(outcome, true, base, measure) for measure in ("e2e_s", "per_token_s")),
        )
        for name, outcome in ((LOGGED, logged), (TRUE, true))
    ]


def _ratio(ours: Outcome, base: Outcome, measure: str, q: float | None) -> Ratio:
    mine, theirs = ({str(k): v for k, v in latencies(each).items()}[measure] for each in (ours, base))
    return over_requests(mine, theirs, q, seed=0)


def _captured(ours: Outcome, true: Outcome, base: Outcome, measure: str) -> float:
    mine, best, before = (getattr(each.summary, measure).mean for each in (ours, true, base))
    return (before - mine) / (before - best) if before - best > _WORTH * before else math.nan


def _as_measured(outcome: Outcome, traffic: ShadowTraffic) -> Summary:
    """The replay in the same words as the measurement: a first token is known of streamed answers only."""
    first = np.where(np.isnan(traffic.first_token), np.nan, outcome.first_token)
    return summarise(
        sent=outcome.arrival, first_token=first, finish=outcome.finish, output_tokens=outcome.output_tokens
    )
