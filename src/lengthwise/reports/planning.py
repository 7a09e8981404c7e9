"""A capacity plan as a verdict, a table, JSON and one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lengthwise.intervals import Ratio
from lengthwise.reports.latency_figures import figures, trace
from lengthwise.reports.page import BASELINE_COLOUR, Document, Figure, Origin, axes, axis, interval_bars
from lengthwise.reports.runs import NAMES, SHOWN, ReportedRun, figure_name, predictor_label
from lengthwise.reports.tables import Table, seconds, share
from lengthwise.reports.verdict import Verdict, engine_count, on_engines
from lengthwise.simulator.grid import BASELINE, paired_ratio
from lengthwise.simulator.metrics import TRUTH
from lengthwise.simulator.planning import CapacitySearch, SeededPlan

_LOWEST_SHARE = 0.5


@dataclass(frozen=True)
class PlanReport:
    """The plans of all policies, and the share of requests within the limits without any queue (None: not needed).

    `search` is that of the first seed.
    """

    search: CapacitySearch
    plans: Sequence[SeededPlan]
    without_queue: float | None

    @property
    def seeds(self) -> int:
        """The number of draws."""
        return len(self.plans[0].seeds)

    @property
    def verdict(self) -> Verdict:
        """The fewest engines in words, beside those of fcfs."""
        return on_engines(self.search, self.plans, self.without_queue)

    def table(self) -> Table:
        """A row per policy."""
        rows = []
        for plan in self.plans:
            count = plan.engines or self.search.most
            trial = plan.seeds[0].trial(count)
            summary = plan.seeds[0].trials[-1].outcome.summary if trial is None else trial.outcome.summary
            rows.append(
                [
                    plan.policy,
                    predictor_label(plan.predictor) or "–",
                    self._needed(plan),
                    _range(plan.attained(count)),
                    "–" if plan.engines is None else _range(plan.attained(count - 1)),
                    seconds(summary.ttft_s.p99),
                    seconds(summary.e2e_s.p99),
                ]
            )
        search = self.search
        notes = [
            f"Target: {self.search.target}; refused requests are outside. One fewer: the share with one engine fewer.",
            f"{search.workload.name}: {len(search.workload):,} requests at {search.workload.rate:.3g}/s.",
            f"Engine {search.engine.name}, {search.engine.max_num_seqs} slots, router {search.router}; run to drain.",
            f"Shares: mean, lowest and highest of {self.seeds} seeds; P99 of the first. Engines: enough in all seeds; "
            "in brackets the fewest by seed, where they differ."
            if self.seeds > 1
            else "Shares: with the 95 % interval of a bootstrap of blocks of consecutive requests.",
        ]
        unsure = [plan.policy for plan in self.plans if self._unsure(plan)]
        if unsure:
            notes.append(f"{', '.join(unsure)}: the interval holds the target; one engine more is the safe choice.")
        if self.without_queue is not None:
            notes.append(f"Without any queue {share(self.without_queue)} of requests are within the limits.")
        if any(plan.true_lengths for plan in self.plans):
            notes.append(f"TRUE LENGTHS: {TRUTH} uses the true output lengths, which no server has.")
        columns = ("policy", "predictor", "engines", "attained", "one fewer", "TTFT p99", "E2E p99")
        return Table("Fewest engines", columns, rows, notes, keys=2)

    def _needed(self, plan: SeededPlan) -> str:
        fewest = [each.engines for each in plan.seeds]
        found = sorted(each for each in fewest if each is not None)
        if plan.engines is None:
            some = f" ({found[0]} in {len(found)} of {self.seeds})" if found else ""
            return f"> {self.search.most}{some}"
        return str(found[-1]) if found[0] == found[-1] else f"{found[-1]} ({found[0]}–{found[-1]})"

    def _unsure(self, plan: SeededPlan) -> bool:
        found = plan.attained(plan.engines) if self.seeds == 1 and plan.engines is not None else None
        return found is not None and found[1] < self.search.attainment

    @property
    def runs(self) -> list[ReportedRun]:
        """Every policy with the same number of engines, the fewest that any of them needs for the first seed."""
        plans = [plan.seeds[0] for plan in self.plans]
        common = min((plan.engines for plan in plans if plan.engines is not None), default=self.search.most)
        trials = [(plan, trial) for plan in plans if (trial := plan.trial(common)) is not None]
        base = next((trial.outcome for plan, trial in trials if plan.policy == BASELINE), None)
        found = []
        for plan, trial in trials:
            outcome = trial.outcome
            ratios = {} if base is None else {figure_name(*what): paired_ratio(outcome, base, *what) for what in SHOWN}
            found.append(
                ReportedRun(
                    plan.policy,
                    plan.predictor,
                    offered=engine_count(common),
                    latency={metric: asdict(getattr(outcome.summary, metric)) for metric in NAMES},
                    over_fcfs=ratios,
                    profile=outcome.summary.profile,
                )
            )
        return found

    def figure(self) -> Figure:
        """Attainment against the number of engines."""
        runs = [ReportedRun(plan.policy, plan.predictor) for plan in self.plans]
        data: list[dict[str, Any]] = []
        lowest = _LOWEST_SHARE
        for plan, run in zip(self.plans, runs, strict=True):
            x = sorted({trial.engines for each in plan.seeds for trial in each.trials})
            shares = [Ratio(*(plan.attained(count) or (math.nan,) * 3)) for count in x]
            lowest = min(lowest, *(each.low for each in shares))
            y = [each.ratio for each in shares]
            data.append({**trace(run, runs, 0, "lines+markers"), "x": x, "y": y, "error_y": interval_bars(shares)})
        engines = axis("engines", range=[self.search.fewest - 0.5, self.search.most + 0.5])
        layout = axes(
            [(engines, axis("", range=[lowest, 1.01], tickformat=".0%"))], columns=1, titles=["requests within limits"]
        )
        line = {"type": "line", "x0": 0, "x1": 1, "xref": "x domain", "yref": "y"}
        height = {"y0": self.search.attainment, "y1": self.search.attainment}
        layout["shapes"] = [{**line, **height, "line": {"dash": "dash", "width": 1, "color": BASELINE_COLOUR}}]
        bars = f"lowest to highest of {self.seeds} seeds" if self.seeds > 1 else "95 % interval"
        text = f"The dashed line is the target: {self.search.target}. "
        text += f"Only the counts with a mark were simulated; bars: {bars}."
        return Figure("How many engines are enough", text, data, layout)

    def to_dict(self) -> dict[str, Any]:
        """Return the plans for JSON."""
        return {
            "verdict": str(self.verdict),
            "workload": self.search.workload.name,
            "content_hash": self.search.workload.content_hash,
            "requests": len(self.search.workload),
            "engine": self.search.engine.name,
            "router": self.search.router,
            "slo": self.search.slo,
            "attainment": self.search.attainment,
            "without_queue": self.without_queue,
            **({"note": "TRUE LENGTHS"} if any(plan.true_lengths for plan in self.plans) else {}),
            "seeds": self.seeds,
            "plans": [
                {
                    "policy": plan.policy,
                    "predictor": plan.predictor,
                    "engines": plan.engines,
                    "by_seed": [
                        {
                            "engines": each.engines,
                            "trials": [
                                {
                                    "engines": trial.engines,
                                    "attained": trial.attained,
                                    "interval": trial.interval,
                                    "ttft_p99_s": trial.outcome.summary.ttft_s.p99,
                                    "e2e_p99_s": trial.outcome.summary.e2e_s.p99,
                                }
                                for trial in each.trials
                            ],
                        }
                        for each in plan.seeds
                    ],
                }
                for plan in self.plans
            ],
            "runs": [run.to_dict() for run in self.runs],
        }

    def document(self, origin: Origin) -> Document:
        """Return the document."""
        title = f"Capacity for {self.search.workload.name} on {self.search.engine.name}"
        known = {"origin": origin, **self.to_dict()}
        return Document(
            title, [self.table()], known, self.verdict, lambda: [self.figure(), *figures(self.runs)], origin
        )


def _range(shares: tuple[float, float, float] | None) -> str:
    if shares is None:
        return "–"
    mean, low, high = (f"{100 * each:.1f}" for each in shares)
    return f"{mean} %" if low == high else f"{mean} % [{low}, {high}]"
