"""Estimate the gain of a policy: a traffic log is replayed in the simulator under FCFS and under the policy.

The report first compares the FCFS replay with the measurement: without a match, a simulated gain is meaningless.

The engine of the replay is given, or fitted to the log. While answer i is generated, one step is taken for each of its
n_i - 1 further tokens, so that

    finish_i - first_i = base * (n_i - 1) + decode * T_i + prefill_token * P_i

with T_i the tokens that all answers together received in that time (each spread evenly over its duration), and P_i
the prompt tokens of the requests that started in it. Non-negative least squares, each answer weighted by 1/sqrt(n_i).
Coarser than `lengthwise engine fit`, which reads the engine's steps: attention over long contexts, cached prefixes
and chunked prefill are not modelled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import optimize

from lengthwise.errors import InputError
from lengthwise.intervals import Ratio, gain_captured
from lengthwise.lengths import DEFAULT_CAP, LogTColumns
from lengthwise.policies import make_policy
from lengthwise.reports.latency_figures import figures
from lengthwise.reports.page import Document, Origin
from lengthwise.reports.runs import NAMES, ReportedRun
from lengthwise.reports.tables import Table, multiple, number, share
from lengthwise.reports.verdict import Verdict, on_replay, replay_match
from lengthwise.simulator import (
    EngineSpec,
    Fleet,
    Outcome,
    RequestPredictions,
    Spread,
    StepCost,
    Summary,
    find_engine,
    measure_capacity,
    predict_workload,
    simulate,
    summarise,
)
from lengthwise.simulator.grid import Metric, paired_ratio
from lengthwise.simulator.metrics import TRUTH
from lengthwise.traffic.log import EngineReading
from lengthwise.traffic.reader import LoggedTraffic, column
from lengthwise.traffic.rows import RequestRow
from lengthwise.traffic.scores import Forecast, PredictionScores, score_predictions
from lengthwise.workloads import Workload

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_MIN_REQUESTS: Final = 20  # requests that a report needs, and streamed answers that the fit needs
_BYTES_PER_TOKEN: Final = 4.0  # of English text, if the engine reports no prompt tokens


@dataclass(frozen=True, eq=False)
class ShadowTraffic:
    """Requests in order of arrival; times are seconds after the first arrival, NaN if unknown."""

    workload: Workload
    predictions: RequestPredictions
    first_token: Floats
    finish: Floats
    settled: Mask
    """The engine reported the length, and the answer ended by itself or at max_tokens, which also caps predictions."""
    predicted: Mask
    """The prediction is the predictor's, not a hint or the history's."""
    left_out: Mapping[str, int]
    guessed_prompts: int
    counted_answers: int

    @property
    def streamed(self) -> Mask:
        """Whether the first token of an answer is known."""
        return ~np.isnan(self.first_token)

    @property
    def begin(self) -> Floats:
        """The first token, or the arrival where it is not known: those tokens are spread over the whole time."""
        return np.where(self.streamed, self.first_token, self.workload.arrival_s)


def shadow_traffic(logged: LoggedTraffic, name: str) -> ShadowTraffic:
    """Return the requests of a log that can be replayed; the others are counted by the reason to leave them out."""
    left_out = Counter(why for row in logged.rows if (why := _unfit(row)))
    kept = [row for row in logged.rows if not _unfit(row)]
    if len(kept) < _MIN_REQUESTS:
        raise InputError(
            f"{len(kept)} answers of known length are too few for a report",
            source=name,
            hint=f"log at least {_MIN_REQUESTS}, better some hundreds under the usual load",
        )
    began = kept[0].arrival_s
    prompts, guessed = _prompt_tokens(kept)
    workload = Workload.from_table(
        {
            "arrival_s": column(kept, "arrival_s") - began,
            "input_tokens": prompts,
            "output_tokens": pa.array([max(1, row.output_tokens or 1) for row in kept], pa.int64()),
            "llm": [row.llm for row in kept],
            "max_tokens": pa.array([row.max_tokens for row in kept], pa.int64()),
        },
        name=name,
    )
    return ShadowTraffic(
        workload,
        _predictions(kept, workload),
        column(kept, "first_token_s") - began,
        column(kept, "finished_s") - began,
        settled=np.array([_settled(row) for row in kept]),
        predicted=np.array([row.predictor_mu is not None and row.source != "hint" for row in kept]),
        left_out=dict(left_out),
        guessed_prompts=guessed,
        counted_answers=sum(row.counted for row in kept),
    )


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


def _prompt_tokens(rows: Sequence[RequestRow]) -> tuple[NDArray[np.int64], int]:
    """Return prompt tokens, estimated from the size of the body if not reported, and the number of estimates."""
    tokens, size = column(rows, "input_tokens"), np.nan_to_num(column(rows, "input_bytes"))
    known = ~np.isnan(tokens) & (size > 0)
    per_byte = float(np.median(tokens[known] / size[known])) if known.any() else 1.0 / _BYTES_PER_TOKEN
    filled = np.where(np.isnan(tokens), np.rint(size * per_byte), tokens)
    return np.maximum(filled, 1).astype(np.int64), int(np.isnan(tokens).sum())


def _predictions(rows: Sequence[RequestRow], workload: Workload) -> RequestPredictions:
    caps = [row.max_tokens or DEFAULT_CAP for row in rows]
    llms = np.array([row.llm or "" for row in rows], dtype=object)
    truth = workload.output_tokens.astype(np.float64)
    mu, sigma = (
        np.where(np.isnan(column(rows, "mu")), column(rows, f"history_{name}"), column(rows, name))
        for name in ("mu", "sigma")
    )
    return RequestPredictions(_predictor(rows), mu, sigma, np.array(caps, np.float64), llms, truth)


def _predictor(rows: Sequence[RequestRow]) -> str:
    """Return the predictors of the requests, the most frequent first."""
    return ", ".join(str(name) for name, _ in Counter(row.predictor or "none" for row in rows).most_common())


_MIN_TOKENS: Final = 8  # the duration of shorter answers is mostly network latency
_MIN_BASE_S: Final = 1e-6
_BATCHED_TOKENS: Final = 2048  # vLLM's default
_BLOCK: Final = 16


@dataclass(frozen=True)
class FittedEngine:
    """An engine, and the sources of its limits."""

    spec: EngineSpec
    answers: int
    """The number of answers that the step time was fitted to; 0 if the engine was given."""
    slots_from: str
    memory_from: str


def fit_engine(
    traffic: ShadowTraffic, readings: Sequence[EngineReading], *, max_num_seqs: int | None = None
) -> FittedEngine:
    """Fit step time and limits; `max_num_seqs` is used as it is if given."""
    cost, answers = fit_cost(traffic)
    slots, slots_from = (max_num_seqs, "given") if max_num_seqs is not None else _slots(traffic, readings)
    longest = int((traffic.workload.input_tokens + traffic.workload.output_tokens).max())
    reported = [(each.kv_tokens, each.block_size or _BLOCK) for each in readings if each.kv_tokens is not None]
    kv_tokens, block_size = reported[-1] if reported else ((slots + 1) * (longest + _BLOCK), _BLOCK)
    memory_from = "reported by the engine" if reported else "not known: assumed sufficient"
    spec = EngineSpec(
        "fitted to the log",
        cost,
        kv_tokens,
        max_model_len=max(longest, kv_tokens),
        max_num_seqs=slots,
        max_num_batched_tokens=max(_BATCHED_TOKENS, slots),
        block_size=min(block_size, kv_tokens),
        prefix_caching=False,
    )
    return FittedEngine(spec, answers, slots_from, memory_from)


def fit_cost(traffic: ShadowTraffic) -> tuple[StepCost, int]:
    """Fit the step time; return it and the number of streamed answers used."""
    n = traffic.workload.output_tokens.astype(np.float64)
    used = traffic.streamed & (n >= _MIN_TOKENS) & (traffic.finish > traffic.first_token)
    if used.sum() < _MIN_REQUESTS:
        raise InputError(
            f"{int(used.sum())} streamed answers of {_MIN_TOKENS} or more tokens are too few to fit an engine",
            source=traffic.workload.name,
            hint="give one with --engine (a name, or a file of `lengthwise engine fit`)",
        )
    first, finish = traffic.first_token[used], traffic.finish[used]
    # Cumulative totals over time, linear between their points: tokens of all answers, and prompt tokens started.
    tokens = _spread(traffic.begin, traffic.finish, n)
    order = np.argsort(traffic.begin, kind="stable")
    prompts = traffic.begin[order], np.cumsum(traffic.workload.input_tokens[order].astype(np.float64))
    during = [np.interp(finish, *curve) - np.interp(first, *curve) for curve in (tokens, prompts)]
    columns, seconds = np.column_stack([n[used] - 1, *during]), finish - first
    # Weighted by tokens, not by seconds: slow answers would count less.
    weight = 1.0 / np.sqrt(n[used])
    base, decode, prefill = optimize.nnls(columns * weight[:, None], seconds * weight)[0]
    base = max(float(base), _MIN_BASE_S)
    return StepCost(base, base, float(prefill), 0.0, float(decode), 0.0), int(used.sum())


def _spread(begin: Floats, end: Floats, amount: Floats) -> tuple[Floats, Floats]:
    """Return times and the cumulative totals of amounts that each arrive evenly between begin and end."""
    rate = amount / np.maximum(end - begin, 1e-9)
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    rates = np.cumsum(np.concatenate([rate, -rate])[order])
    return times, np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))])


def _slots(traffic: ShadowTraffic, readings: Sequence[EngineReading]) -> tuple[int, str]:
    """Return the slots: the most requests running while others waited, else the most answers generated at once."""
    full = [each.running for each in readings if each.running and each.waiting]
    if full:
        return max(full), "the most that ran while others waited"
    changes = np.repeat([1.0, -1.0], len(traffic.finish))
    order = np.lexsort((changes, np.concatenate([traffic.begin, traffic.finish])))
    most = max(1, int(np.cumsum(changes[order]).max()))
    return most, "the most that were answered at once; the engine was never seen with a queue"


def score_traffic(traffic: ShadowTraffic) -> dict[str, PredictionScores]:
    """Score the predictor, the history of each LLM, and each LLM's best constant in hindsight on the same answers.

    These are answers that ended by themselves or at max_tokens, which also caps predictions.
    """
    predictions = traffic.predictions
    scored = traffic.settled & traffic.predicted
    if not scored.any():
        return {}
    history = predict_workload(traffic.workload, "history")
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
    fcfs: Summary
    """The replay under FCFS; TTFT and TPOT of streamed answers only, as in the measurement."""
    runs: tuple[Replayed, ...]
    accuracy: Mapping[str, PredictionScores]
    """Of the predictor and of baselines, by name."""

    @property
    def mismatch(self) -> float:
        """Mean E2E of the FCFS replay / measured mean E2E - 1."""
        return self.fcfs.e2e_s.mean / self.measured.e2e_s.mean - 1.0


def study_shadow(
    logged: LoggedTraffic,
    source: str,
    *,
    engine: str | None = None,
    policies: Sequence[str] = ("lengthwise",),
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    kv_tokens: int | None = None,
    on_progress: Callable[[str, float], None] = lambda _what, _done: None,
) -> ShadowGain:
    """Replay a log. `engine` is a name or a file; without one an engine is fitted to the log."""
    for name in policies:
        make_policy(name)
    given = None if engine is None else find_engine(engine)
    traffic = shadow_traffic(logged, source)
    fitted = (
        fit_engine(traffic, logged.engines, max_num_seqs=max_num_seqs)
        if given is None
        else FittedEngine(given, 0, "given with the engine", "given with the engine")
    )
    fleet = Fleet((fitted.spec,)).limited_to(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, kv_tokens=kv_tokens
    )
    fitted = replace(fitted, spec=fleet.engines[0])
    answered = sum(each.answered for each in logged.predictors)
    delay = sum(each.answered * each.mean_age_s for each in logged.predictors) / max(1, answered)
    on_progress("fcfs", 0.0)
    base = simulate(traffic.workload, fleet, "fcfs")
    capacity = measure_capacity(traffic.workload, fleet)
    runs: list[Replayed] = []
    for place, name in enumerate(policies):
        on_progress(name, (1 + place) / (1 + len(policies)))
        runs += _replay(name, traffic, fleet, base, delay)
    return ShadowGain(
        source=source,
        engine_name=", ".join(sorted({row.engine for row in logged.rows if row.engine is not None})),
        predictor=traffic.predictions.predictor,
        requests=len(logged),
        replayed=len(traffic.workload),
        left_out=traffic.left_out,
        guessed_prompts=traffic.guessed_prompts,
        counted_answers=traffic.counted_answers,
        unsettled=int((~traffic.settled).sum()),
        duration_s=float(np.nanmax(traffic.finish)),
        engine=fitted,
        load=capacity.load(traffic.workload.rate),
        prediction_delay_s=delay,
        measured=_summary(traffic, traffic.first_token, traffic.finish),
        # As in the measurement, which knows the first token of streamed answers only.
        fcfs=_summary(traffic, np.where(traffic.streamed, base.first_token_s, np.nan), base.finished_s),
        runs=tuple(runs),
        accuracy=score_traffic(traffic),
    )


def _replay(policy: str, traffic: ShadowTraffic, fleet: Fleet, base: Outcome, delay_s: float) -> list[Replayed]:
    logged = simulate(traffic.workload, fleet, policy, predictor=traffic.predictions, prediction_delay_s=delay_s)
    true = simulate(traffic.workload, fleet, policy, predictor="oracle")
    return [
        Replayed(
            policy,
            name,
            outcome.summary,
            paired_ratio(outcome, base, "e2e_s", "mean"),
            paired_ratio(outcome, base, "e2e_s", "p99"),
            paired_ratio(outcome, base, "per_token_s", "mean"),
            _captured(outcome, true, base, "e2e_s"),
            _captured(outcome, true, base, "per_token_s"),
        )
        for name, outcome in ((LOGGED, logged), (TRUE, true))
    ]


def _captured(ours: Outcome, true: Outcome, base: Outcome, measure: Metric) -> float:
    return gain_captured(*(getattr(run.summary, measure).mean for run in (ours, base, true)))


def _summary(traffic: ShadowTraffic, first_token: Floats, finish: Floats) -> Summary:
    workload = traffic.workload
    return summarise(
        arrival_s=workload.arrival_s, first_token_s=first_token, finished_s=finish, output_tokens=workload.output_tokens
    )


def tables(found: ShadowGain) -> list[Table]:
    """Return the tables of a report: match of the replay, gain, and accuracy of the predictions."""
    gain = [_match(found), _gain(found)]
    return [*gain, _accuracy(found)] if found.accuracy else gain


def shadow_runs(found: ShadowGain) -> list[ReportedRun]:
    """Return the replays of a log as a report shows them."""
    base = {name: Ratio(1.0, 1.0, 1.0) for name in ("e2e_mean", "e2e_p99", "per_token_mean")}
    replays: list[tuple[str, str | None, Summary, dict[str, Ratio]]] = [("fcfs", None, found.fcfs, base)]
    for run in found.runs:
        ratios = dict(zip(base, (run.mean_e2e, run.p99_e2e, run.per_token), strict=True))
        replays.append((run.policy, TRUTH if run.predictions == TRUE else found.predictor, run.summary, ratios))
    return [
        ReportedRun(
            policy,
            predictor,
            level=f"load {found.load:.2f}",
            load=found.load,
            latency={measure: asdict(getattr(summary, measure)) for measure in NAMES},
            over_fcfs=ratios,
            profile=summary.profile,
        )
        for policy, predictor, summary, ratios in replays
    ]


def shadow_document(found: ShadowGain, origin: Origin | None = None) -> Document:
    """Return the document of a replayed log."""
    title = f"{found.source}: what reordering would have gained"
    return Document(title, tables(found), found, shadow_verdict(found), lambda: figures(shadow_runs(found)), origin)


def shadow_verdict(found: ShadowGain) -> Verdict:
    """Return in words what a policy would have gained, and whether the replay matches the measurement."""
    return on_replay(shadow_runs(found), measured_s=found.measured.e2e_s.mean, replayed_s=found.fcfs.e2e_s.mean)


def _match(found: ShadowGain) -> Table:
    rows = []
    for measure, name in NAMES.items():
        seen, replayed = (getattr(summary, measure) for summary in (found.measured, found.fcfs))
        off = _off(seen.mean, replayed.mean), _off(seen.p99, replayed.p99)
        rows.append([name, *_figures(seen), *_figures(replayed), *off])
    columns = ["seconds", *(f"{what} {each}" for what in ("measured", "replayed") for each in ("mean", "p50", "p99"))]
    columns += ["mean off by", "p99 off by"]
    title = "Does the replay match? FCFS in the simulator against the measurement"
    return Table(title, columns, rows, _notes(found), together=3)


def _notes(found: ShadowGain) -> list[str]:
    spec, cost = found.engine.spec, found.engine.spec.cost
    seen = f"{found.replayed:,} of {found.requests:,} requests replayed, {found.duration_s:,.0f} s, {found.engine_name}"
    notes = [seen, f"verdict: {replay_match(found.measured.e2e_s.mean, found.fcfs.e2e_s.mean)}"]
    if found.engine.answers and isinstance(cost, StepCost):
        notes.append(
            f"engine fitted to {found.engine.answers:,} streamed answers: {1e3 * cost.decode_base:.3g} ms per step, "
            f"{1e6 * cost.decode:.3g} us per running request and {1e6 * cost.prefill_token:.3g} us per prompt token"
        )
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


def _gain(found: ShadowGain) -> Table:
    rows = [["fcfs", "–", _seconds(found.fcfs.e2e_s.mean), _seconds(found.fcfs.e2e_s.p99), "1", "1", "1", "–", "–"]]
    for run in found.runs:
        e2e = run.summary.e2e_s
        ratios = [multiple(each, 2) for each in (run.mean_e2e, run.p99_e2e, run.per_token)]
        captured = [share(each) for each in (run.captured_e2e, run.captured_per_token)]
        rows.append([run.policy, run.predictions, _seconds(e2e.mean), _seconds(e2e.p99), *ratios, *captured])
    columns = ["policy", "predictions", "mean E2E s", "p99 E2E s"]
    columns += ["mean over FCFS", "p99 over FCFS", "per token over FCFS"]
    columns += ["gain captured, mean", "gain captured, per token"]
    notes = [
        "ratios below 1 are better; in brackets the 95 % interval of a paired bootstrap over blocks of requests",
        "gain captured: the share of the gain of the same policy on true lengths",
        "assumed: arrivals do not depend on latency (no retries, no early aborts), and lengths are the same",
        "assumed: the engine served FCFS, without prefix cache hits, and all its traffic passed this proxy",
        f"predictions arrive {1000 * found.prediction_delay_s:.1f} ms after their requests, as measured",
    ]
    return Table("What would have been gained", columns, rows, notes)


def _accuracy(found: ShadowGain) -> Table:
    rows = [
        [name, number(each.tau, 3), number(each.mae, 1), share(each.coverage_50), share(each.coverage_90)]
        for name, each in found.accuracy.items()
    ]
    answers = next(iter(found.accuracy.values())).rows
    notes = [f"{answers:,} answers; those that ended at max_tokens count with it, as do their predictions"]
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
