"""What was to be reached, and what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lengthwise.bench.evidence.lines import Evidence, Line
from lengthwise.bench.evidence.plan import ORACLE
from lengthwise.bench.evidence.view import captured_said, times, under
from lengthwise.reports.tables import Table, share
from lengthwise.simulator.paired import Ratio


@dataclass(frozen=True)
class Target:
    """One figure: what was wanted and what came; `met` is None where it was not measured."""

    what: str
    wanted: str
    measured: str
    met: bool | None


def targets(evidence: Evidence) -> list[Target]:
    """Of setting a; the others are reported as they are."""
    busy = evidence.line("a", 1.1, "lengthwise", "default")
    calm = evidence.line("a", 0.7, "lengthwise", "default")
    sjf = evidence.line("a", 1.1, "sjf", "default")
    sjf_true = evidence.line("a", 1.1, "sjf", ORACLE)
    ours = "`lengthwise` on `default`, load 1.1"
    p99, calm_mean = _of(busy, "p99"), _of(calm, "mean_by_requests")
    upper = "`lengthwise` on `default`, load 0.7: mean E2E over FCFS's, the upper end over requests"
    return [
        _at_least(f"{ours}: per-token latency", 2.0, _of(busy, "per_token")),
        _at_least(f"{ours}: mean E2E", 1.15, _of(busy, "mean")),
        _at_most(f"{ours}: p99 over FCFS's", 1.2, p99, p99.ratio),
        _throughput(f"{ours}: throughput over FCFS's", 0.98, busy),
        _at_least("`sjf` on `default`, load 1.1: mean E2E", 1.4, _of(sjf, "mean")),
        _at_least("`sjf` on true lengths, load 1.1: mean E2E", 1.6, _of(sjf_true, "mean")),
        _share(f"{ours}: true-length gain captured, mean E2E", 0.7, _of(busy, "gain_mean")),
        _share(f"{ours}: true-length gain captured, per token", 0.7, _of(busy, "gain_per_token")),
        _at_most(upper, 1.03, calm_mean, calm_mean.high),
    ]


def _of(line: Line | None, figure: str) -> Ratio:
    """NaN where the line was not measured."""
    found: Ratio = Ratio.none() if line is None else getattr(line, figure)
    return found


def target_table(evidence: Evidence) -> Table:
    """Figures to reach, and what came."""
    words = {True: "yes", False: "no", None: "not measured"}
    rows = [[each.what, each.wanted, each.measured, words[each.met]] for each in targets(evidence)]
    return Table("What was to be reached", ["", "wanted", "measured", "reached"], rows)


def _at_least(what: str, wanted: float, over: Ratio) -> Target:
    met = None if math.isnan(over.ratio) else 1 / over.ratio >= wanted
    return Target(what, f"at least {wanted:g}x", times(over), met)


def _at_most(what: str, wanted: float, over: Ratio, judged: float) -> Target:
    return Target(what, f"at most {wanted:g}", under(over), None if math.isnan(judged) else judged <= wanted)


def _throughput(what: str, wanted: float, line: Line | None) -> Target:
    if line is None or math.isnan(line.throughput):
        return Target(what, f"at least {wanted:g}", "–", None)
    return Target(what, f"at least {wanted:g}", f"{line.throughput:.3f}", line.throughput >= wanted)


def _share(what: str, wanted: float, gain: Ratio) -> Target:
    met = None if math.isnan(gain.ratio) else gain.ratio >= wanted
    return Target(what, f"at least {share(wanted)}", captured_said(gain), met)
