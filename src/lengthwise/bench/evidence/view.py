"""The measurement as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lengthwise.bench.evidence.lines import Drain, Evidence, Line
from lengthwise.bench.evidence.own import sampling_said
from lengthwise.bench.evidence.plan import STOCK
from lengthwise.reports.tables import Table, share
from lengthwise.simulator.paired import Ratio

__all__ = ["TITLES", "captured_said", "tables", "times", "under"]


def tables(evidence: Evidence) -> list[Table]:
    """Latencies by setting and load, what they cost, and batches drained."""
    found: list[Table] = []
    groups = dict.fromkeys((line.setting, line.load) for line in evidence.lines)
    for setting, load in groups:
        lines = [line for line in evidence.lines if (line.setting, line.load) == (setting, load)]
        notes = _NOTES if not found else ()
        found.append(_latencies(f"({setting}) {TITLES[setting]}, load {load:g}", lines, notes))
        if any(line.repeats > 1 for line in lines):
            found.append(_repeats(f"({setting}) load {load:g}, repeat by repeat", lines))
        found.append(_costs(f"({setting}) load {load:g}: what it cost", lines))
    for setting in dict.fromkeys(drain.setting for drain in evidence.drains if drain.policy != STOCK):
        drains = [drain for drain in evidence.drains if drain.setting == setting]
        found.append(_drains(f"({setting}) a batch drained: time until so many answers were there", drains))
    if evidence.ceiling is not None:
        found.append(_ceiling(evidence))
    return found


_NOTES = (
    "Orders of other repeats had other traffic: compare ratios, not seconds.",
    "mean E2E, per token: times better than stock vLLM on the same requests; p99 and throughput: over stock vLLM's.",
    "In brackets 95 %, paired bootstrap over requests and repeats (one repeat: over requests).",
    "gain: share of what the same order gains on true lengths in the same repeats; a dash where that is not sure.",
    "tau: Kendall's tau-b of the prediction's median against the length that came.",
)
TITLES = {"a": "a grown LLM's lengths, played", "b": "the embedded LLM's own answers"}


def times(over: Ratio) -> str:
    """How many times better than stock vLLM, with its interval: the ratio turned round."""
    if math.isnan(over.ratio):
        return "–"
    return f"{1 / over.ratio:.2f}x [{1 / over.high:.2f}, {1 / over.low:.2f}]"


def under(over: Ratio) -> str:
    """A ratio to stock vLLM as it is, with its interval."""
    return "–" if math.isnan(over.ratio) else f"{over.ratio:.2f} [{over.low:.2f}, {over.high:.2f}]"


def captured_said(gain: Ratio) -> str:
    """A share of the true-length gain, with its interval."""
    return "–" if math.isnan(gain.ratio) else f"{share(gain.ratio)} [{100 * gain.low:.0f}, {100 * gain.high:.0f}]"


def _latencies(title: str, lines: Sequence[Line], notes: Sequence[str]) -> Table:
    columns = [
        "order", "n", "E2E s", "p50", "p99", "s/token", "TTFT s",
        "mean E2E", "per token", "p99 / FCFS", "throughput", "gain: mean", "gain: per token", "tau",
    ]  # fmt: skip
    rows = [
        [
            line.name,
            f"{line.repeats} x {line.n // max(1, line.repeats)}",
            *(f"{value:.2f}" for value in (line.e2e_s.mean, line.e2e_s.p50, line.e2e_s.p99)),
            f"{line.per_token_s.mean:.3f}",
            f"{line.ttft_s.mean:.2f}",
            times(line.mean),
            times(line.per_token),
            under(line.p99),
            _number(line.throughput),
            captured_said(line.gain_mean),
            captured_said(line.gain_per_token),
            _number(line.tau),
        ]
        for line in lines
    ]
    return Table(title, columns, rows, notes)


def _repeats(title: str, lines: Sequence[Line]) -> Table:
    columns = ["order", "repeat", "E2E s", "p99", "mean E2E", "p99 / FCFS", "requests/s", "behind pace s"]
    rows = [
        [
            line.name,
            str(run.repeat),
            f"{run.mean_s:.2f}",
            f"{run.p99_s:.2f}",
            "–" if math.isnan(run.mean) else f"{1 / run.mean:.2f}x",
            _number(run.p99),
            f"{run.requests_per_s:.3f}",
            _number(run.behind_s, 1),
        ]
        for line in lines
        for run in line.by_repeat
    ]
    notes = ["behind pace: how far the mean step ended behind the pace that all engines are held to."]
    return Table(title, columns, rows, notes)


def _costs(title: str, lines: Sequence[Line]) -> Table:
    columns = [
        "order", "preemptions", "predictor CPU ms/request", "schedule() CPU ms/step", "engine CPU s/request",
        "requests/s", "tokens/answer", "at the cap", "length changed",
    ]  # fmt: skip
    rows = [
        [
            line.name,
            _number(line.preemptions, 0),
            _number(line.predictor_cpu_ms),
            _number(line.schedule_cpu_ms, 3),
            _number(line.engine_cpu_s),
            f"{line.requests_per_s:.3f}",
            f"{line.tokens:.1f}",
            share(line.at_cap),
            share(line.lengths_changed),
        ]
        for line in lines
    ]
    return Table(title, columns, rows, ["Stock vLLM's own schedule() is not timed: it runs without the plug-in."])


def _drains(title: str, drains: Sequence[Drain]) -> Table:
    columns = ["order", "n", "half s", "three quarters s", "all s", "half / FCFS", "three quarters", "all"]
    rows = [
        [
            drain.name,
            str(drain.n),
            *(f"{value:.0f}" for value in (drain.half_s, drain.three_quarters_s, drain.all_s)),
            *(f"{value:.2f}" for value in (drain.half, drain.three_quarters, drain.all)),
        ]
        for drain in drains
    ]
    return Table(title, columns, rows)


def _ceiling(evidence: Evidence) -> Table:
    told = evidence.ceiling or {}
    rows = [
        ["tau between two answers to the same prompt", f"{told['tau_of_two_answers']:.2f}"],
        ["tau that a perfect predictor could reach", f"{told['tau_at_best']:.2f}"],
        ["cut off when lengths were collected", share(told["cut_off"])],
        ["mean tokens", f"{told['mean_tokens']:.0f}"],
    ]
    notes = [f"{told['prompts']:.0f} prompts not in the test, two answers each; {sampling_said()}"]
    return Table("(b) the LLM's own noise", ["", "measured"], rows, notes)


def _number(value: float, digits: int = 2) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"
