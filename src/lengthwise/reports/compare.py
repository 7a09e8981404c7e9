"""Compare simulations of the same requests: paired ratios with bootstrap intervals.

ours = compare(["fcfs", "tie", "lengthwise"], workload="castillo", fleet="1*llama-3-8b@a100")
ours.table, ours.plot()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.reports.page import table_html
from lengthwise.reports.runs import NAMES
from lengthwise.reports.tables import Table, multiple, seconds
from lengthwise.simulator import Fleet, Outcome
from lengthwise.simulator.cluster import as_fleet, as_predictions, as_workload
from lengthwise.simulator.grid import COMPARED, Metric, Statistic, paired_ratio
from lengthwise.simulator.tasks import DrawnSetting, SimulationTask
from lengthwise.workloads import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Outcomes on the same requests; every ratio is over the first, below 1 is better."""

    outcomes: tuple[Outcome, ...]
    labels: tuple[str, ...]
    seed: int = 0

    def ratio(self, number: int, metric: Metric = "e2e_s", statistic: Statistic = "mean") -> Ratio:
        """Return one outcome's statistic over the first outcome's, with a 95 % interval."""
        if number == 0:
            return Ratio(1.0, 1.0, 1.0)
        return paired_ratio(self.outcomes[number], self.outcomes[0], metric, statistic, seed=self.seed)

    @property
    def table(self) -> Table:
        """Mean and p99 latencies and their ratios."""
        figures = [
            (metric, statistic)
            for metric, statistic in COMPARED
            if metric in ("ttft_s", "e2e_s") and statistic != "p50"
        ]
        columns = ["policy"]
        for metric, statistic in figures:
            columns += [f"{NAMES[metric]} {statistic}", "over first"]
        rows = []
        for number, (label, outcome) in enumerate(zip(self.labels, self.outcomes, strict=True)):
            row = [label]
            for metric, statistic in figures:
                value = float(getattr(getattr(outcome.summary, metric), statistic))
                row += [seconds(value), multiple(self.ratio(number, metric, statistic))]
            rows.append(row)
        notes = [f"{len(self.outcomes[0]):,} requests, the same for all; 95 % intervals of a paired block bootstrap."]
        if any(outcome.true_lengths for outcome in self.outcomes):
            notes.append("TRUE LENGTHS: the predictor `oracle` knows them; no deployment does.")
        return Table("Latency over the first", columns, rows, notes)

    def plot(self, metric: Metric = "e2e_s", statistic: Statistic = "mean") -> Figure:
        """Draw the ratios with their intervals as a Matplotlib figure."""
        from matplotlib.figure import Figure  # an extra: lengthwise[reports]

        ratios = [self.ratio(number, metric, statistic) for number in range(len(self.outcomes))]
        drawing = Figure(figsize=(6.0, 0.6 + 0.4 * len(ratios)), layout="constrained")
        axes = drawing.add_subplot()
        places = np.arange(len(ratios))
        middle = np.array([each.ratio for each in ratios])
        reach = np.array([[each.ratio - each.low, each.high - each.ratio] for each in ratios]).T
        axes.errorbar(middle, places, xerr=np.maximum(reach, 0.0), fmt="o", capsize=3)
        axes.axvline(1.0, linewidth=0.8, color="0.6")
        axes.set_yticks(places, self.labels)
        axes.invert_yaxis()
        axes.set_xlabel(f"{NAMES[metric]} {statistic} over {self.labels[0]}")
        return drawing

    def __repr__(self) -> str:
        ratios = ", ".join(
            f"{label} {multiple(self.ratio(number))}" for number, label in enumerate(self.labels) if number
        )
        return f"Comparison(E2E mean over {self.labels[0]}: {ratios})"

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return table_html(self.table)


def compare(
    runs: Sequence[Outcome | str],
    *,
    workload: Workload | str | None = None,
    fleet: Fleet | str | None = None,
    predictor: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Comparison:
    """Compare outcomes of the same workload, or simulate policies by name on one workload and fleet and compare them.

    The first is the baseline. `options` are those of `simulate` (load, rate, requests, router, ...).
    """
    if not isinstance(runs, (list, tuple)) or len(runs) < 2:
        raise InputError("fewer than two runs", field="runs", hint='give a list, as in ["fcfs", "tie"]')
    names = [run for run in runs if isinstance(run, str)]
    outcomes: list[Outcome] = [run for run in runs if isinstance(run, Outcome)]
    if len(names) == len(runs):
        if workload is None or fleet is None:
            raise InputError(
                "policies by name", field="workload, fleet", hint="give a workload and a fleet to simulate them on"
            )
        drawing = {name: options.pop(name) for name in ("rate", "load", "requests") if name in options}
        engines = as_fleet(fleet)
        drawn = as_workload(workload, engines, seed=seed, **drawing)
        predictions = as_predictions(drawn, engines, predictor)
        setting = DrawnSetting(drawn, engines, seed)
        outcomes = [SimulationTask(setting, policy=name, predictor=predictions, **options).outcome() for name in names]
    elif len(outcomes) != len(runs):
        raise InputError("neither all outcomes nor all names", field="runs", hint="give one kind")
    first = outcomes[0]
    for outcome in outcomes[1:]:
        if len(outcome) != len(first) or not np.array_equal(outcome.output_tokens, first.output_tokens):
            raise InputError("outcomes of different workloads", field="runs", hint="simulate all on the same workload")
    labels = [outcome.policy for outcome in outcomes]
    if len(set(labels)) < len(labels):
        labels = [
            f"{label} ({outcome.predictor or number})"
            for number, (label, outcome) in enumerate(zip(labels, outcomes, strict=True))
        ]
    return Comparison(tuple(outcomes), tuple(labels), seed)
