"""`TrailStudy` as tables, as one HTML page and for programs."""

from __future__ import annotations

from typing import Any

from experiments.trail import paper
from experiments.trail.plot import figures
from experiments.trail.predictions import EVERY, REMEMBERS
from experiments.trail.study import AGE, ENGINE, KINDS, PROBES, SLOTS, Run, TrailStudy
from lengthwise.reports.interactive import interactive_page
from lengthwise.reports.simulation import multiple, seconds
from lengthwise.reports.tables import Table, share

__all__ = ["html_report", "plain", "tables", "verdict"]


def tables(found: TrailStudy) -> list[Table]:
    """How far off predictions are, latency over c, where preemption pays, the paper beside ours, and what follows."""
    return [
        _errors(found),
        *(_over_c(found, caching) for caching in (False, True)),
        _where(found),
        _beside(found),
        Table("Does preemption pay?", ("setting", "verdict"), [[name, said] for name, said in verdict(found).items()]),
    ]


def html_report(found: TrailStudy) -> str:
    """Figures, then the tables."""
    return interactive_page("TRAIL: limited preemption", figures(found), tables(found))


def plain(found: TrailStudy) -> dict[str, Any]:
    """Ready for `to_json`."""
    return {
        "origin": found.origin,
        "corpus": found.corpus,
        "predictor": found.predictor,
        "tau": found.tau,
        "mean_error_tokens": found.errors,
        "stand_ins": list(PROBES),
        "effort": found.effort,
        "paper": {"rate": paper.RATE, "c": paper.C, "e2e_gain": paper.LATENCY_GAIN, "ttft_gain": paper.TTFT_GAIN},
        "over_c": [_facts(run) for run in found.over_c],
        "where": [_facts(run) for run in found.where],
        "verdict": verdict(found),
    }


def verdict(found: TrailStudy) -> dict[str, str]:
    """Of each kind of prediction, at the poster's rate: the c with the least mean E2E, and whether it beats c = 0."""
    said = {}
    for caching in (False, True):
        for kind in KINDS:
            runs = [run for run in found.over_c if run.predictions == kind and run.setting.caching == caching]
            best = max(runs, key=lambda run: run.e2e.ratio)
            said[f"{_cache(caching)}, {kind}"] = _judged(best)
    return said


def _judged(best: Run) -> str:
    if best.c == 0:
        return "no: c = 0 has the least mean E2E"
    pays = best.over_none.low > 1
    change = f"{100 * (best.over_none.ratio - 1):+.1f} % against c = 0, {multiple(best.over_none)}"
    return f"{'yes' if pays else 'not beyond chance'}: c = {best.c:g}, {change}"


def _facts(run: Run) -> dict[str, Any]:
    return {**vars(run), "setting": {**vars(run.setting), "load": run.setting.load}}


def _cache(caching: bool) -> str:
    return "prefix cache" if caching else "no prefix cache"


def _errors(found: TrailStudy) -> Table:
    base = found.errors[KINDS[0]]
    rows = [[kind, f"{error:.1f}", f"{base / error:.2f}" if error else "–"] for kind, error in found.errors.items()]
    notes = [
        (
            f"Mean absolute error over all tokens of all requests (first seed); {found.predictor} has tau "
            f"{found.tau:.3f} here. The paper's BERT has {paper.ERROR_RATIO:g} times its probe's error."
        ),
        (
            "A stand-in is no probe: it is the true remaining length with log-normal noise of that error, read every "
            f"{EVERY} tokens, errors fading over {REMEMBERS}. The shipped probe's error is the one on its card, of "
            "another LLM's answers: it is taken as a share of the prompt's."
        ),
    ]
    return Table("Remaining length: how far off", ("predictions", "tokens", "prompt only / this"), rows, notes)


def _over_c(found: TrailStudy, caching: bool) -> Table:
    runs = [run for run in found.over_c if run.setting.caching == caching]
    setting = runs[0].setting
    rows = [
        [
            run.predictions,
            f"{run.c:g}",
            seconds(run.e2e_s),
            multiple(run.e2e),
            seconds(run.ttft_s),
            multiple(run.ttft),
            multiple(run.over_none),
            f"{run.e2e_p99.ratio:.3f}",
            f"{run.preemptions:.2f}",
            str(run.most),
            share(run.recomputed),
        ]
        for run in runs
    ]
    begins = frozenset(i for i, run in enumerate(runs) if i and run.predictions != runs[i - 1].predictions)
    columns = (
        "predictions", "c", "E2E", "gain over FCFS", "TTFT", "gain over FCFS", "E2E, c = 0 / this", "p99 gain",
        "preempted", "most", "recomputed",
    )  # fmt: skip
    effort = found.effort
    notes = [
        (
            f"{ENGINE}, {SLOTS} slots, {_cache(caching)}; answers of Llama-3.1-8B to {found.corpus} ({found.origin}) "
            f"cut at {paper.MOST_TOKENS}; n {effort.requests:,} to drain, Poisson, {setting.rate:g} requests/s, load "
            f"{setting.load:.2f} of {setting.capacity_per_s:.3g}/s (FCFS, under backlog), {effort.seeds} seeds."
        ),
        "Gains: FCFS's mean over this one's, paired, with 95 % intervals over seeds; above 1 is better.",
        (
            "preempted: times per request; most: of one request; recomputed: tokens computed again, over all tokens. "
            "Their time is part of every figure."
        ),
    ]
    return Table(f"Over c at {setting.rate:g} requests/s, {_cache(caching)}", columns, rows, notes, begins)


def _where(found: TrailStudy) -> Table:
    rows = [
        [
            str(run.setting.slots),
            f"{run.setting.load:.1f}",
            "yes" if run.setting.caching else "no",
            multiple(none.e2e),
            multiple(run.e2e),
            multiple(run.over_none),
            f"{none.ttft.ratio:.2f}",
            f"{run.ttft.ratio:.2f}",
            share(run.recomputed),
        ]
        for none, run in zip(found.where[::2], found.where[1::2], strict=True)
    ]
    columns = (
        "slots", "load", "prefix cache", "E2E gain, c = 0", f"E2E gain, c = {paper.C:g}",
        f"E2E, c = 0 / c = {paper.C:g}", "TTFT gain, c = 0", f"TTFT gain, c = {paper.C:g}", "recomputed",
    )  # fmt: skip
    begins = frozenset(i for i, row in enumerate(rows) if i and row[0] != rows[i - 1][0])
    notes = [f"Predictions: {found.predictor}, {AGE}. Loads are shares of each engine's own capacity under backlog."]
    return Table("Where preemption pays", columns, rows, notes, begins)


def _beside(found: TrailStudy) -> Table:
    rows = [["paper, over its rates", _span(*paper.LATENCY_GAIN), _span(*paper.TTFT_GAIN)]]
    for caching in (False, True):
        for kind in KINDS:
            runs = [run for run in found.over_c if run.predictions == kind and run.setting.caching == caching]
            gains = [[measure(run) for run in runs] for measure in (_e2e, _ttft)]
            rows.append([f"ours, {_cache(caching)}, {kind}", *(_span(min(gain), max(gain)) for gain in gains)])
    notes = [
        f"Ours: the least and the most over c, at {paper.RATE:g} requests/s.",
        "The paper's engine, load and lengths are not known well enough to set the two side by side number by number.",
    ]
    columns = ("", "mean E2E, FCFS / srpt", "mean TTFT, FCFS / srpt")
    return Table("Beside the paper", columns, rows, notes, frozenset({1, 1 + len(KINDS)}))


def _e2e(run: Run) -> float:
    return run.e2e.ratio


def _ttft(run: Run) -> float:
    return run.ttft.ratio


def _span(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"
