"""What other policies would have gained on observed traffic: a traffic log, replayed under FCFS and under each policy.

The replay under the policy that served the traffic is compared with the measurement: without a match, a simulated gain
is meaningless. The engine of the replay is given, or fitted to the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.intervals import gain_captured
from lengthwise.lengths import LogTColumns
from lengthwise.policies import make_policy
from lengthwise.simulator.cluster import measure_capacity, simulate
from lengthwise.simulator.fleet import Fleet, find_engine
from lengthwise.simulator.gains import Gain
from lengthwise.simulator.grid import Metric
from lengthwise.simulator.metrics import LatencyLimits, Summary, summarise
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.predictions import RequestPredictions, predict_workload
from lengthwise.simulator.replay import FittedEngine, Replay, fit_engine
from lengthwise.traffic.reader import LoggedTraffic
from lengthwise.traffic.rows import RequestRow
from lengthwise.traffic.scores import Forecast, PredictionScores, score_predictions

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

FCFS: Final = "fcfs"
_MIN_REQUESTS: Final = 20


@dataclass(frozen=True, eq=False)
class ObservedTraffic:
    """The requests of a log that can be replayed, in order of arrival."""

    replay: Replay
    settled: Mask
    """The engine reported the length, and the answer ended by itself or at max_tokens, which also caps predictions."""
    predicted: Mask
    """The prediction is the predictor's, not a hint or the history's."""
    policy: str
    """The policy that served most of them; `fcfs` where it is not logged, or not known here."""
    left_out: Mapping[str, int]
    """Other requests, by the reason to leave them out."""
    counted_answers: int

    @classmethod
    def of(cls, logged: LoggedTraffic, name: str) -> ObservedTraffic:
        """Return the requests of a log; InputError if too few can be replayed."""
        left_out = Counter(why for row in logged.rows if (why := _unfit(row)))
        kept = [row for row in logged.rows if not _unfit(row)]
        if len(kept) < _MIN_REQUESTS:
            raise InputError(
                f"{len(kept)} answers of known length are too few for a report",
                source=name,
                hint=f"log at least {_MIN_REQUESTS}, better some hundreds under the usual load",
            )
        return cls(
            Replay.of_rows(kept, name=name),
            settled=np.array([_settled(row) for row in kept]),
            predicted=np.array([row.predictor_mu is not None and row.source != "hint" for row in kept]),
            policy=_policy(kept),
            left_out=dict(left_out),
            counted_answers=sum(row.counted for row in kept),
        )


def _policy(rows: Sequence[RequestRow]) -> str:
    ((name, _),) = Counter(row.policy or FCFS for row in rows).most_common(1)
    try:
        return make_policy(name).name
    except InputError:
        return FCFS


def _unfit(row: RequestRow) -> str | None:
    if row.outcome in ("refused", "client_error", "engine_error", "bug"):
        return "refused by the engine"
    if not row.one_answer:
        return "several answers or prompts in one request, or a body that could not be read"
    if row.output_tokens is None:
        return "length not known: the client left or the engine was lost before the end"
    return None


def _settled(row: RequestRow) -> bool:
    # An answer that the end of the context cut below its max_tokens does not count: its cap is not known here.
    at_limit = row.max_tokens is not None and (row.output_tokens or 0) >= row.max_tokens
    return row.outcome == "ok" and not row.counted and (at_limit or not row.censored)


def _score(traffic: ObservedTraffic) -> dict[str, PredictionScores]:
    """Score the predictor, the history of each LLM, and each LLM's best constant in hindsight on the same answers.

    These are answers that ended by themselves or at max_tokens, which also caps predictions.
    """
    predictions = traffic.replay.predictions
    scored = traffic.settled & traffic.predicted
    if not scored.any():
        return {}
    history = predict_workload(traffic.replay.workload, "history")
    true, llms = predictions.truth[scored], predictions.llms[scored]
    forecasts = {
        predictions.predictor: _forecast(predictions, scored),
        "history of the LLM": _forecast(history, scored),
        "constant, known afterwards": _constant(true, llms),
    }
    return {name: score_predictions(each, true, llms=llms) for name, each in forecasts.items()}


def _forecast(predictions: RequestPredictions, rows: Mask) -> Forecast:
    columns = LogTColumns.of(predictions.mu[rows], predictions.sigma[rows], predictions.cap[rows])
    return Forecast.of(columns, crps=False)


def _constant(true: Floats, llms: NDArray[np.object_]) -> Forecast:
    """Return the median of each LLM's lengths, and their central intervals."""
    levels = (0.5, 0.25, 0.75, 0.05, 0.95)
    found = np.empty((len(levels), len(true)))
    for llm in set(llms.tolist()):
        found[:, llms == llm] = np.quantile(true[llms == llm], levels)[:, None]
    return Forecast.of_intervals(found[0], {0.5: (found[1], found[2]), 0.9: (found[3], found[4])})


LOGGED: Final = "as logged"
TRUE: Final = "true lengths"


@dataclass(frozen=True)
class Replayed:
    """One policy on the logged arrivals and lengths, beside FCFS."""

    policy: str
    predictions: str
    summary: Summary
    gain: Gain
    captured_e2e: float
    """(FCFS - this) / (FCFS - the same with true lengths), of means; NaN if true lengths gain nothing."""
    captured_per_token: float


@dataclass(frozen=True)
class ObservedGain:
    """The results of a replayed log."""

    source: str
    engine_name: str
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
    policy: str
    """The policy that served the traffic."""
    as_served: Summary
    """The replay under that policy; TTFT and TPOT of streamed answers only, as in the measurement."""
    fcfs: Summary
    """The replay under FCFS, likewise."""
    runs: tuple[Replayed, ...]
    accuracy: Mapping[str, PredictionScores]
    """Of the predictor and of baselines, by name."""

    @property
    def mismatch(self) -> float:
        """Mean E2E of the replay as served / measured mean E2E - 1."""
        return self.as_served.e2e_s.mean / self.measured.e2e_s.mean - 1.0


def observed_gain(
    logged: LoggedTraffic,
    source: str,
    *,
    engine: str | None = None,
    policies: Sequence[str] = ("lengthwise",),
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    kv_tokens: int | None = None,
    on_progress: Callable[[str, float], None] = lambda _what, _done: None,
) -> ObservedGain:
    """Replay a log. `engine` is a name or a file; without one an engine is fitted to the log."""
    for name in policies:
        make_policy(name)
    given = None if engine is None else find_engine(engine)
    traffic = ObservedTraffic.of(logged, source)
    replay, workload = traffic.replay, traffic.replay.workload
    fitted = (
        fit_engine(replay, logged.engines, max_num_seqs=max_num_seqs)
        if given is None
        else FittedEngine(given, 0, "given with the engine", "given with the engine")
    )
    fleet = Fleet((fitted.spec,)).limited_to(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, kv_tokens=kv_tokens
    )
    fitted = replace(fitted, spec=fleet.engines[0])
    answered = sum(each.answered for each in logged.predictors)
    delay = sum(each.answered * each.mean_age_s for each in logged.predictors) / max(1, answered)
    on_progress(FCFS, 0.0)
    base = as_served = simulate(workload, fleet, FCFS)
    if traffic.policy != FCFS:
        as_served = simulate(workload, fleet, traffic.policy, predictor=replay.predictions, prediction_delay_s=delay)
    capacity = measure_capacity(workload, fleet)
    runs: list[Replayed] = []
    for place, name in enumerate(policies):
        on_progress(name, (1 + place) / (1 + len(policies)))
        runs += _compare(name, replay, fleet, base, delay)
    return ObservedGain(
        source=source,
        engine_name=", ".join(sorted({row.engine for row in logged.rows if row.engine is not None})),
        predictor=replay.predictions.predictor,
        requests=len(logged),
        replayed=len(workload),
        left_out=traffic.left_out,
        guessed_prompts=replay.guessed_prompts,
        counted_answers=traffic.counted_answers,
        unsettled=int((~traffic.settled).sum()),
        duration_s=float(np.nanmax(replay.finished_s)),
        engine=fitted,
        load=capacity.load(workload.rate),
        prediction_delay_s=delay,
        measured=_summary(replay, replay.first_token_s, replay.finished_s),
        policy=traffic.policy,
        as_served=_summary(replay, as_served.first_token_s, as_served.finished_s),
        fcfs=_summary(replay, base.first_token_s, base.finished_s),
        runs=tuple(runs),
        accuracy=_score(traffic),
    )


def _compare(policy: str, replay: Replay, fleet: Fleet, base: Outcome, delay_s: float) -> list[Replayed]:
    logged = simulate(replay.workload, fleet, policy, predictor=replay.predictions, prediction_delay_s=delay_s)
    true = simulate(replay.workload, fleet, policy, predictor="oracle")
    return [
        Replayed(
            policy,
            name,
            outcome.summary,
            Gain.of(policy, [outcome], [base], LatencyLimits()),
            _captured(outcome, true, base, "e2e_s"),
            _captured(outcome, true, base, "per_token_s"),
        )
        for name, outcome in ((LOGGED, logged), (TRUE, true))
    ]


def _captured(ours: Outcome, true: Outcome, base: Outcome, metric: Metric) -> float:
    return gain_captured(*(getattr(run.summary, metric).mean for run in (ours, base, true)))


def _summary(replay: Replay, first_token: Floats, finish: Floats) -> Summary:
    # The first token is known of streamed answers only.
    first_token = np.where(replay.streamed, first_token, np.nan)
    workload = replay.workload
    return summarise(
        arrival_s=workload.arrival_s, first_token_s=first_token, finished_s=finish, output_tokens=workload.output_tokens
    )
