"""Estimate the gain of a policy: a shadow's log is replayed in the simulator under FCFS and under the policy.

The report first compares the FCFS replay with the measurement: without a match, a simulated gain is meaningless.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.bench.shadow_traffic import FittedEngine, ShadowTraffic, fit_engine, shadow_traffic
from lengthwise.engines.shadow_log import Logged
from lengthwise.lengths import TIE_NU, student
from lengthwise.policies import make_policy
from lengthwise.predictors.scores import mae, tau_within
from lengthwise.reports.tables import Table, share
from lengthwise.simulator import (
    Fleet,
    Outcome,
    RequestPredictions,
    Summary,
    find_engine,
    measure_capacity,
    predict_workload,
    simulate,
    summarise,
)
from lengthwise.simulator.grid_result import latencies
from lengthwise.simulator.paired import Ratio, over_requests

if TYPE_CHECKING:
    from lengthwise.simulator import Spread


_LEVELS: Final = (0.5, 0.9)


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of predictions on answers that ended by themselves or at max_tokens, which also caps predictions."""

    predictor: str
    """The predictor or baseline."""
    answers: int
    tau: float
    """Kendall's tau-b of medians with true lengths, within one LLM, averaged; NaN for a constant."""
    mae: float
    covered_50: float
    covered_90: float


def score_predictions(traffic: ShadowTraffic) -> tuple[Accuracy, ...]:
    """Score the predictor, the history of each LLM, and each LLM's best constant in hindsight on the same answers."""
    predictions = traffic.predictions
    scored = traffic.settled & traffic.predicted
    if not scored.any():
        return ()
    history = predict_workload(traffic.workload, "history")
    return (
        _score(predictions.predictor, predictions, scored),
        _score("history of the LLM", history, scored),
        _constant(predictions, scored),
    )


def _score(label: str, predictions: RequestPredictions, rows: NDArray[np.bool_]) -> Accuracy:
    mu, sigma, cap = predictions.mu[rows], predictions.sigma[rows], predictions.cap[rows]
    true = predictions.truth[rows]
    covered = []
    for level in _LEVELS:
        half_width = student.isf((1 - level) / 2, TIE_NU) * sigma
        low, high = (np.minimum(np.exp(mu + sign * half_width), cap) for sign in (-1, 1))
        covered.append(float(((low <= true) & (true <= high)).mean()))
    medians = np.minimum(np.exp(mu), cap)
    tau = tau_within(predictions.llms[rows], medians, true)
    return Accuracy(label, int(rows.sum()), tau, mae(medians, true), *covered)


def _constant(predictions: RequestPredictions, rows: NDArray[np.bool_]) -> Accuracy:
    true, llms = predictions.truth[rows], predictions.llms[rows]
    medians, covered = np.empty(len(true)), np.empty((len(_LEVELS), len(true)))
    for llm in set(llms.tolist()):
        of_llm = llms == llm
        lengths = true[of_llm]
        medians[of_llm] = np.median(lengths)
        for row, level in enumerate(_LEVELS):
            low, high = np.quantile(lengths, [(1 - level) / 2, (1 + level) / 2])
            covered[row, of_llm] = (low <= lengths) & (lengths <= high)
    shares = (float(row.mean()) for row in covered)
    return Accuracy("constant, known afterwards", len(true), math.nan, mae(medians, true), *shares)


LOGGED: Final = "as logged"
TRUE: Final = "true lengths"
_LEAST_GAIN: Final = 0.01  # of FCFS's mean, with true lengths: below it the captured share is not defined


@dataclass(frozen=True)
class Replayed:
    """One policy on the logged arrivals and lengths; ratios are to FCFS, below 1 is better."""

    policy: str
    predictions: str
    summary: Summary
    mean_e2e: Ratio
    p99_e2e: Ratio
    per_token: Ratio
    captured_e2e: float
    """(FCFS - this) / (FCFS - the same with true lengths), of means; NaN if true lengths gain nothing."""
    captured_per_token: float


@dataclass(frozen=True)
class ShadowGain:
    """The results of a replayed log."""

    source: str
    engine_url: str
    predictor: str
    requests: int
    replayed: int
    left_out: Mapping[str, int]
    guessed_prompts: int
    counted_answers: int
    unsettled: int
    """Replayed answers whose full length is not known: no predictor is scored on them."""
    duration_s: float
    engine: FittedEngine
    load: float
    """Arrival rate over the capacity of the replayed engine under backlog."""
    prediction_delay_s: float
    measured: Summary
    fcfs: Summary
    """The replay under FCFS; TTFT and TPOT of streamed answers only, as in the measurement."""
    runs: tuple[Replayed, ...]
    accuracy: tuple[Accuracy, ...]

    @property
    def mismatch(self) -> float:
        """Mean E2E of the FCFS replay / measured mean E2E - 1."""
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
    """Replay a log. `engine` is a name or a file; without one an engine is fitted to the log."""
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
    numerator, denominator = ({str(k): v for k, v in latencies(run).items()}[measure] for run in (ours, base))
    return over_requests(numerator, denominator, q, seed=0)


def _captured(ours: Outcome, true: Outcome, base: Outcome, measure: str) -> float:
    policy, best, fcfs = (getattr(run.summary, measure).mean for run in (ours, true, base))
    return (fcfs - policy) / (fcfs - best) if fcfs - best > _LEAST_GAIN * fcfs else math.nan


def _as_measured(outcome: Outcome, traffic: ShadowTraffic) -> Summary:
    """Summarise the replay like the measurement, which knows the first token of streamed answers only."""
    first = np.where(np.isnan(traffic.first_token), np.nan, outcome.first_token)
    return summarise(
        sent=outcome.arrival, first_token=first, finish=outcome.finish, output_tokens=outcome.output_tokens
    )


_GOOD: Final = 0.1  # mismatch up to which ratios are quantitative
_POOR: Final = 0.25  # and up to which they show a direction


def tables(found: ShadowGain) -> list[Table]:
    """Return the tables of a report: match of the replay, gain, and accuracy of the predictions."""
    gain = [_match(found), _gain(found)]
    return [*gain, _accuracy(found)] if found.accuracy else gain


def _match(found: ShadowGain) -> Table:
    rows = []
    measured, fcfs = found.measured, found.fcfs
    for name, seen, replayed in (
        ("TTFT", measured.ttft_s, fcfs.ttft_s),
        ("TPOT", measured.tpot_s, fcfs.tpot_s),
        ("E2E", measured.e2e_s, fcfs.e2e_s),
        ("per token", measured.per_token_s, fcfs.per_token_s),
    ):
        rows.append(
            [name, *_figures(seen), *_figures(replayed), _off(seen.mean, replayed.mean), _off(seen.p99, replayed.p99)]
        )
    columns = ["seconds", "measured mean", "p50", "p99", "replayed mean", "p50", "p99", "mean off by", "p99 off by"]
    return Table("Does the replay match? FCFS in the simulator against the measurement", columns, rows, _notes(found))


def _notes(found: ShadowGain) -> list[str]:
    spec, cost = found.engine.spec, found.engine.spec.cost
    seen = f"{found.replayed:,} of {found.requests:,} requests replayed, {found.duration_s:,.0f} s, {found.engine_url}"
    notes = [seen, f"verdict: {_verdict(found)}"]
    if found.engine.answers:
        notes.append(f"engine fitted to {found.engine.answers:,} streamed answers: {cost}")
    else:
        notes.append(f"engine as given: {spec.name}")
    notes.append(
        f"{spec.max_num_seqs} at once ({found.engine.slots_from}), {spec.kv_tokens:,} tokens of KV memory "
        f"({found.engine.memory_from}), {spec.max_num_batched_tokens:,} tokens a step; load {found.load:.2f}"
    )
    notes += [f"left out: {rows:,} requests, {why}" for why, rows in found.left_out.items()]
    if found.guessed_prompts:
        notes.append(f"{found.guessed_prompts:,} prompts: tokens estimated from their size, not reported by the engine")
    if found.counted_answers:
        notes.append(f"{found.counted_answers:,} answers: tokens counted by events, not reported by the engine")
    return notes


def _verdict(found: ShadowGain) -> str:
    off = abs(found.mismatch)
    mismatch = f"the replayed mean E2E is {_off(found.measured.e2e_s.mean, found.fcfs.e2e_s.mean)} off"
    if off <= _GOOD:
        return f"{mismatch}: the ratios below can be read as they are"
    if off <= _POOR:
        return f"{mismatch}: read the ratios below as a direction, not as figures"
    return f"{mismatch}: the ratios below say little; give an engine of `lengthwise engine fit` with --engine"


def _gain(found: ShadowGain) -> Table:
    rows = [["fcfs", "–", _seconds(found.fcfs.e2e_s.mean), _seconds(found.fcfs.e2e_s.p99), "1", "1", "1", "–", "–"]]
    for run in found.runs:
        e2e = run.summary.e2e_s
        ratios = [_interval(each) for each in (run.mean_e2e, run.p99_e2e, run.per_token)]
        captured = [share(each) for each in (run.captured_e2e, run.captured_per_token)]
        rows.append([run.policy, run.predictions, _seconds(e2e.mean), _seconds(e2e.p99), *ratios, *captured])
    columns = [
        "policy",
        "predictions",
        "mean E2E s",
        "p99 E2E s",
        "mean over FCFS",
        "p99 over FCFS",
        "per token over FCFS",
    ]
    columns += ["of the true lengths' gain: mean", "per token"]
    notes = [
        "ratios below 1 are better; in brackets the 95 % interval of a paired bootstrap over blocks of requests",
        "assumed: arrivals do not depend on latency (no retries, no early aborts), and lengths are the same",
        "assumed: the engine served FCFS, without prefix cache hits, and all its traffic passed this proxy",
        f"predictions arrive {1000 * found.prediction_delay_s:.1f} ms after their requests, as measured",
    ]
    return Table("What would have been gained", columns, rows, notes)


def _accuracy(found: ShadowGain) -> Table:
    rows = [
        [
            each.predictor,
            "–" if math.isnan(each.tau) else f"{each.tau:.3f}",
            f"{each.mae:.1f}",
            share(each.covered_50),
            share(each.covered_90),
        ]
        for each in found.accuracy
    ]
    notes = [
        f"{found.accuracy[0].answers:,} answers; those that ended at max_tokens count with it, as do their predictions"
    ]
    if found.unsettled:
        notes.append(f"{found.unsettled:,} others were aborted or broken off, or their length is not known")
    columns = ["predictions", "tau", "MAE (tokens)", "in the 50 % interval", "in the 90 % interval"]
    return Table("How good the predictions were on this traffic", columns, rows, notes)


def _figures(spread: Spread) -> list[str]:
    return [_seconds(value) for value in (spread.mean, spread.p50, spread.p99)]


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


def _off(measured: float, replayed: float) -> str:
    return "–" if math.isnan(measured + replayed) or measured <= 0 else f"{100 * (replayed / measured - 1):+.0f} %"


def _interval(ratio: Ratio) -> str:
    return "–" if math.isnan(ratio.ratio) else f"{ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
