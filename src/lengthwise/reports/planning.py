"""A capacity plan, or a choice of policy for a fixed fleet, as a verdict, a table, JSON and one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lengthwise.intervals import Ratio
from lengthwise.reports.latency_figures import figures, trace
from lengthwise.reports.page import BASELINE_COLOUR, Document, Figure, Origin, axes, axis, interval_bars
from lengthwise.reports.runs import NAMES, SHOWN, ReportedRun, predictor_label
from lengthwise.reports.tables import Table, multiple, seconds, share
from lengthwise.reports.verdict import Verdict, engine_count, on_costs, on_engines, on_fleet, recommended
from lengthwise.simulator.gains import GAIN_FIGURES
from lengthwise.simulator.grid import BASELINE, Metric, Statistic, figure_name, paired_ratio
from lengthwise.simulator.metrics import TRUTH
from lengthwise.simulator.planning import CapacitySearch, FleetCost, SeededPlan

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
        """The fewest engines in words, beside those of fcfs; with a fixed fleet, which policy to use."""
        if self.search.fixed:
            return on_fleet(self.search, self.plans)
        return on_engines(self.search, self.plans, self.without_queue)

    def table(self) -> Table:
        """A row per policy."""
        return self._policies() if self.search.fixed else self._engines()

    def _policies(self) -> Table:
        """What each policy attains on a fixed fleet, and its latency."""
        engines = self.search.most
        base = next((plan for plan in self.plans if plan.is_baseline), None)
        rows = []
        for plan in self.plans:
            figures: list[tuple[Metric, Statistic]] = [("e2e_s", "mean"), ("e2e_s", "p99")]
            ratios = ["–" if base is None else multiple(plan.over(base, engines, *each), 2) for each in figures]
            rows.append(
                [
                    plan.policy,
                    predictor_label(plan.predictor) or "–",
                    _range(plan.attained(engines)),
                    f"{plan.goodput_per_s(engines):.3g}",
                    *(seconds(plan.latency(engines, *each)) for each in figures),
                    *ratios,
                ]
            )
        columns = ("policy", "predictor", "attained", "goodput/s", "mean E2E", "p99 E2E")
        over = ("mean over fcfs", "p99 over fcfs")
        meaning = f"Attained: requests within {self.search.slo}, refused ones are not; goodput: those per second."
        return Table(f"On {engine_count(engines)}", (*columns, *over), rows, [meaning, *self._setting])

    def _engines(self) -> Table:
        """The fewest engines that each policy needs."""
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
        notes = [
            f"Target: {self.search.target}; refused requests are outside. One fewer: the share with one engine fewer.",
            *self._setting,
        ]
        if self.seeds > 1:
            notes.append("Engines: enough in all seeds; in brackets the fewest by seed, where they differ.")
        unsure = [plan.policy for plan in self.plans if self._unsure(plan)]
        if unsure:
            notes.append(f"{', '.join(unsure)}: the interval holds the target; one engine more is the safe choice.")
        if self.without_queue is not None:
            notes.append(f"Without any queue {share(self.without_queue)} of requests are within the limits.")
        columns = ("policy", "predictor", "engines", "attained", "one fewer", "TTFT p99", "E2E p99")
        return Table("Fewest engines", columns, rows, notes, keys=2)

    @property
    def _setting(self) -> list[str]:
        """What was simulated, in sentences."""
        search = self.search
        found = [
            f"{search.workload.name}: {len(search.workload):,} requests at {search.workload.rate:.3g}/s.",
            f"Engine {search.engine.name}, {search.engine.max_num_seqs} slots, router {search.router}; run to drain.",
            f"Shares: mean, lowest and highest of {self.seeds} seeds{'' if search.fixed else '; P99 of the first'}."
            if self.seeds > 1
            else "Shares: with the 95 % interval of a bootstrap of blocks of consecutive requests.",
        ]
        if any(plan.true_lengths for plan in self.plans):
            found.append(f"TRUE LENGTHS: {TRUTH} uses the true output lengths, which no server has.")
        return found

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
            ratios = (
                {}
                if base is None
                else {figure_name(*what): paired_ratio(outcome, base, *what) for what in (*SHOWN, *GAIN_FIGURES)}
            )
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

    def _figures(self) -> list[Figure]:
        fewer = [] if self.search.fixed else self.latency_by_engines()
        return [self.figure(), *fewer, *figures(self.runs)]

    def latency_by_engines(self) -> list[Figure]:
        """Latency of each policy with the fewest engines that any needs for the first seed, and with one fewer."""
        plans = [plan.seeds[0] for plan in self.plans]
        common = min((plan.engines for plan in plans if plan.engines is not None), default=self.search.most)
        shown: list[tuple[Metric, Statistic]] = [
            ("ttft_s", "p50"),
            ("ttft_s", "p99"),
            ("e2e_s", "mean"),
            ("e2e_s", "p99"),
        ]
        runs = [ReportedRun(plan.policy, plan.predictor) for plan in plans]
        data: list[dict[str, Any]] = []
        counts = [count for count in (common - 1, common) if any(plan.trial(count) for plan in plans)]
        if len(counts) < 2:
            return []
        for plan, run in zip(plans, runs, strict=True):
            for place, (metric, statistic) in enumerate(shown):
                found = [(count, trial) for count in counts if (trial := plan.trial(count)) is not None]
                y = [getattr(getattr(trial.outcome.summary, metric), statistic) for _, trial in found]
                data.append(
                    {**trace(run, runs, place, "lines+markers"), "x": [engine_count(n) for n, _ in found], "y": y}
                )
        panels = [(axis(""), axis("seconds", rangemode="tozero"))] * len(shown)
        titles = [f"{statistic} {NAMES[metric]}" for metric, statistic in shown]
        text = f"The same requests on {engine_count(common)}, and on one fewer."
        return [Figure("What one engine fewer does to latency", text, data, axes(panels, columns=2, titles=titles))]

    def figure(self) -> Figure:
        """Attainment of each policy, against the number of engines unless that is fixed."""
        return self._shares() if self.search.fixed else self._shares_by_engines()

    def _shares(self) -> Figure:
        shares = [Ratio(*(plan.attained(self.search.most) or (math.nan,) * 3)) for plan in self.plans]
        names = [plan.policy for plan in self.plans]
        bars = {"type": "bar", "x": names, "y": [each.ratio for each in shares], "error_y": interval_bars(shares)}
        layout = axes([(axis(""), axis("", range=[0, 1.01], tickformat=".0%"))], columns=1, titles=["within limits"])
        text = f"Share of requests within {self.search.slo} on {engine_count(self.search.most)}."
        return Figure("What each policy attains", text, [{**bars, "showlegend": False}], layout)

    def _shares_by_engines(self) -> Figure:
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
            **({"use": recommended(self.search, self.plans).policy} if self.search.fixed else {}),
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
                                    "goodput_per_s": trial.goodput_per_s,
                                    "ttft_p99_s": trial.outcome.summary.ttft_s.p99,
                                    "e2e_mean_s": trial.outcome.summary.e2e_s.mean,
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
        return Document(title, [self.table()], known, self.verdict, self._figures, origin)


@dataclass(frozen=True)
class PricedPlans:
    """The plans of several engines for the same traffic, and what their fleets cost."""

    reports: Sequence[PlanReport]
    prices: Sequence[float]

    @property
    def options(self) -> list[FleetCost]:
        """Every fleet and policy that attains the target, the cheapest first."""
        found = [
            FleetCost(report.search.engine.name, plan, plan.engines, price)
            for report, price in zip(self.reports, self.prices, strict=True)
            for plan in report.plans
            if plan.engines is not None
        ]
        return sorted(found, key=lambda each: (each.per_hour, not each.plan.is_baseline))

    @property
    def verdict(self) -> Verdict:
        """The cheapest fleet and policy in words."""
        return on_costs(self.options, self.reports[0].search.target)

    def table(self) -> Table:
        """A row per fleet and policy."""
        rows = [
            [
                each.engine,
                each.plan.policy,
                str(each.engines),
                _range(each.plan.attained(each.engines)),
                f"{each.price:.2f}",
                f"{each.per_hour:.2f}",
                f"{each.per_million_tokens:.2f}",
            ]
            for each in self.options
        ]
        columns = ("engine", "policy", "engines", "attained", "per engine-hour", "per hour", "per million tokens")
        note = "Prices as given (--price), in their currency. Tokens: output tokens of this traffic over its makespan, "
        note += "so that idle engines cost too."
        return Table("What it costs, the cheapest first", columns, rows, [note], keys=2)

    def to_dict(self) -> dict[str, Any]:
        """Return the costs and the plans for JSON."""
        costs = [
            {
                "engine": each.engine,
                "policy": each.plan.policy,
                "engines": each.engines,
                "price": each.price,
                "per_hour": each.per_hour,
                "per_million_output_tokens": each.per_million_tokens,
            }
            for each in self.options
        ]
        return {"verdict": str(self.verdict), "costs": costs, "engines": [each.to_dict() for each in self.reports]}

    def document(self, origin: Origin) -> Document:
        """Return the document."""
        tables = [self.table(), *(report.table() for report in self.reports)]
        title = f"Cost of serving {self.reports[0].search.workload.name}"

        def drawn() -> list[Figure]:
            return [replace(each.figure(), title=f"{each.search.engine.name}: engines") for each in self.reports]

        return Document(title, tables, {"origin": origin, **self.to_dict()}, self.verdict, drawn, origin)


def _range(shares: tuple[float, float, float] | None) -> str:
    if shares is None:
        return "–"
    mean, low, high = (f"{100 * each:.1f}" for each in shares)
    return f"{mean} %" if low == high else f"{mean} % [{low}, {high}]"
