"""What other policies would have gained on observed traffic, as tables, figures and one HTML page."""

from __future__ import annotations

import math
from dataclasses import asdict

from lengthwise.intervals import Ratio
from lengthwise.reports.latency_figures import figures
from lengthwise.reports.page import Document, Origin
from lengthwise.reports.runs import NAMES, ReportedRun
from lengthwise.reports.tables import Table, multiple, number, share
from lengthwise.reports.verdict import on_replay, replay_match
from lengthwise.simulator import Spread, StepCost, Summary
from lengthwise.simulator.gains import GAIN_FIGURES, Gain
from lengthwise.simulator.grid import figure_name
from lengthwise.simulator.metrics import TRUTH, LatencyLimits
from lengthwise.simulator.observed import FCFS, TRUE, ObservedGain


def observed_document(found: ObservedGain, origin: Origin | None = None) -> Document:
    """Return the document of a replayed log: what a policy would have gained, and whether the replay matches."""
    title = f"{found.source}: what reordering would have gained"
    runs = _runs(found)
    verdict = on_replay(runs, measured_s=found.measured.e2e_s.mean, replayed_s=found.as_served.e2e_s.mean)
    return Document(title, tables(found), found, verdict, lambda: figures(runs), origin)


def tables(found: ObservedGain) -> list[Table]:
    """Return the tables of a report: match of the replay, gain, and accuracy of the predictions."""
    gain = [_match(found), _gain(found)]
    return [*gain, _accuracy(found)] if found.accuracy else gain


def _runs(found: ObservedGain) -> list[ReportedRun]:
    """Return the replays of a log as a report shows them."""
    base = {figure_name(*what): Ratio(1.0, 1.0, 1.0) for what in GAIN_FIGURES}
    replays: list[tuple[str, str | None, Summary, Gain]] = [("fcfs", None, found.fcfs, Gain("fcfs", base))]
    replays += [
        (run.policy, TRUTH if run.predictions == TRUE else found.predictor, run.summary, run.gain) for run in found.runs
    ]
    return [
        ReportedRun(
            policy,
            predictor,
            offered=f"load {found.load:.2f}",
            load=found.load,
            latency={measure: asdict(getattr(summary, measure)) for measure in NAMES},
            over_fcfs=gain.over,
            profile=summary.profile,
            within=gain.within,
            slo=str(LatencyLimits()),
        )
        for policy, predictor, summary, gain in replays
    ]


def _match(found: ObservedGain) -> Table:
    rows = []
    for measure, name in NAMES.items():
        seen, replayed = (getattr(summary, measure) for summary in (found.measured, found.as_served))
        off = _off(seen.mean, replayed.mean), _off(seen.p99, replayed.p99)
        rows.append([name, *_figures(seen), *_figures(replayed), *off])
    columns = ["seconds", *(f"{what} {each}" for what in ("measured", "replayed") for each in ("mean", "p50", "p99"))]
    columns += ["mean off by", "p99 off by"]
    title = f"Does the replay match? {_served(found)} in the simulator against the measurement"
    return Table(title, columns, rows, _notes(found), together=3)


def _notes(found: ObservedGain) -> list[str]:
    spec, cost = found.engine.spec, found.engine.spec.cost
    seen = f"{found.replayed:,} of {found.requests:,} requests replayed, {found.duration_s:,.0f} s, {found.engine_name}"
    notes = [seen, f"verdict: {replay_match(found.measured.e2e_s.mean, found.as_served.e2e_s.mean)}"]
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


def _gain(found: ObservedGain) -> Table:
    rows = [["fcfs", "–", _seconds(found.fcfs.e2e_s.mean), _seconds(found.fcfs.e2e_s.p99), "1", "1", "1", "–", "–"]]
    for run in found.runs:
        e2e = run.summary.e2e_s
        ratios = [multiple(each, 2) for each in map(run.gain.ratio, ("e2e_mean", "e2e_p99", "per_token_mean"))]
        captured = [share(each) for each in (run.captured_e2e, run.captured_per_token)]
        rows.append([run.policy, run.predictions, _seconds(e2e.mean), _seconds(e2e.p99), *ratios, *captured])
    columns = ["policy", "predictions", "mean E2E s", "p99 E2E s"]
    columns += ["mean over FCFS", "p99 over FCFS", "per token over FCFS"]
    columns += ["gain captured, mean", "gain captured, per token"]
    notes = [
        "ratios below 1 are better; in brackets the 95 % interval of a paired bootstrap over blocks of requests",
        "gain captured: the share of the gain of the same policy on true lengths",
        "assumed: arrivals do not depend on latency (no retries, no early aborts), and lengths are the same",
        f"assumed: {_served(found)} served the requests, without prefix cache hits, and all traffic is logged",
        f"predictions arrive {1000 * found.prediction_delay_s:.1f} ms after their requests, as measured",
    ]
    return Table("What would have been gained", columns, rows, notes)


def _accuracy(found: ObservedGain) -> Table:
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


def _served(found: ObservedGain) -> str:
    return "FCFS" if found.policy == FCFS else found.policy


def _figures(spread: Spread) -> list[str]:
    return [_seconds(value) for value in (spread.mean, spread.p50, spread.p99)]


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


def _off(measured: float, replayed: float) -> str:
    return "–" if math.isnan(measured + replayed) or measured <= 0 else f"{100 * (replayed / measured - 1):+.0f} %"
