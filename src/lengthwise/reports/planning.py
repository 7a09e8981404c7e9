"""A capacity plan as a verdict, a table, JSON and one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lengthwise.reports.page import BASELINE_COLOUR, Figure, Origin, axes, axis
from lengthwise.reports.runs import NAMES, RATIOS, ReportedRun, predictor_label, runs_page, seconds, trace
from lengthwise.reports.tables import Table, share
from lengthwise.simulator.grid import BASELINE, latencies
from lengthwise.simulator.metrics import TRUTH
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.paired import Ratio, over_requests
from lengthwise.simulator.planning import CapacityPlan, CapacitySearch

__all__ = ["PlanReport"]

_LOWEST_SHARE = 0.5


@dataclass(frozen=True)
class PlanReport:
    """The plans of all policies, and the share of requests within the limits without any queue (None: not needed)."""

    search: CapacitySearch
    plans: Sequence[CapacityPlan]
    without_queue: float | None

    @property
    def target(self) -> str:
        """The limits in words."""
        return f"{100 * self.search.attainment:g} % of requests within {self.search.slo}"

    @property
    def verdict(self) -> str:
        """The fewest engines in words, beside those of fcfs."""
        bound = (
            "With TRUE LENGTHS, which no server has: " if any(plan.predictor == TRUTH for plan in self.plans) else ""
        )
        met = [plan for plan in self.plans if plan.engines is not None]
        if not met:
            best = max(self.plans, key=lambda plan: plan.trials[-1].attained)
            reached = f"{best.policy} reaches {share(best.trials[-1].attained)}"
            alone = "" if self.without_queue is None else f" Without any queue it would be {share(self.without_queue)}."
            return f"{self.search.most} engines are not enough for {self.target}: {reached}.{alone}"
        best = min(met, key=lambda plan: (plan.engines or 0, plan.policy != BASELINE))
        base = next((plan for plan in self.plans if plan.policy == BASELINE), None)
        need = f"{_engines(best.engines)} under {best.policy} serve {self.target}"
        if base is None or best is base:
            others = [plan.policy for plan in self.plans if plan is not best and plan.engines == best.engines]
            same = f"; {', '.join(others)} needs as many" if others else ""
            return f"{bound}{need}{same}."
        if base.engines is None:
            return f"{bound}{need}; under fcfs {self.search.most} are not enough."
        fewer = 100 * (1 - (best.engines or 0) / base.engines)
        return f"{bound}{need}; fcfs needs {base.engines} ({fewer:.0f} % fewer engines)."

    def table(self) -> Table:
        """A row per policy."""
        rows = []
        for plan in self.plans:
            trial = plan.trial(plan.engines) if plan.engines is not None else plan.trials[-1]
            fewer = None if plan.engines is None else plan.trial(plan.engines - 1)
            summary = plan.trials[-1].outcome.summary if trial is None else trial.outcome.summary
            rows.append(
                [
                    plan.policy,
                    predictor_label(plan.predictor) or "–",
                    f"> {self.search.most}" if plan.engines is None else str(plan.engines),
                    share(plan.trials[-1].attained if trial is None else trial.attained),
                    "–" if fewer is None else share(fewer.attained),
                    seconds(summary.ttft_s.p99),
                    seconds(summary.e2e_s.p99),
                ]
            )
        search = self.search
        notes = [
            f"Target: {self.target}; refused requests are outside. With one fewer: the share with one engine fewer.",
            f"{search.workload.name}: {len(search.workload):,} requests at {search.workload.rate:.3g}/s.",
            f"Engine {search.engine.name}, {search.engine.max_num_seqs} slots, router {search.router}; run to drain.",
        ]
        if self.without_queue is not None:
            notes.append(f"Without any queue {share(self.without_queue)} of requests are within the limits.")
        if any(plan.predictor == TRUTH for plan in self.plans):
            notes.append(f"TRUE LENGTHS: {TRUTH} uses the true output lengths, which no server has.")
        columns = ("policy", "predictor", "engines", "attained", "with one fewer", "TTFT p99", "E2E p99")
        return Table("Fewest engines", columns, rows, notes, keys=2)

    @property
    def runs(self) -> list[ReportedRun]:
        """Every policy with the same number of engines, the fewest that any of them needs."""
        common = min((plan.engines for plan in self.plans if plan.engines is not None), default=self.search.most)
        trials = [(plan, trial) for plan in self.plans if (trial := plan.trial(common)) is not None]
        base = next((trial.outcome for plan, trial in trials if plan.policy == BASELINE), None)
        found = []
        for plan, trial in trials:
            outcome, ratios = trial.outcome, {}
            for name in RATIOS if base is not None else ():
                ratios[name] = _ratio(outcome, base or outcome, name)
            found.append(
                ReportedRun(
                    plan.policy,
                    plan.predictor,
                    level=_engines(common),
                    latency={measure: asdict(getattr(outcome.summary, measure)) for measure in NAMES},
                    over_fcfs=ratios,
                    profile=outcome.summary.profile,
                )
            )
        return found

    def figure(self) -> Figure:
        """Attainment against the number of engines."""
        runs = [ReportedRun(plan.policy, plan.predictor) for plan in self.plans]
        data: list[dict[str, Any]] = []
        for plan, run in zip(self.plans, runs, strict=True):
            x, y = [each.engines for each in plan.trials], [each.attained for each in plan.trials]
            data.append({**trace(run, runs, 0, "lines+markers"), "x": x, "y": y})
        shares = [trial.attained for plan in self.plans for trial in plan.trials]
        ends = [min(_LOWEST_SHARE, *shares), 1.01]
        engines = axis("engines", range=[self.search.fewest - 0.5, self.search.most + 0.5])
        layout = axes([(engines, axis("", range=ends, tickformat=".0%"))], columns=1, titles=["requests within limits"])
        line = {"type": "line", "x0": 0, "x1": 1, "xref": "x domain", "yref": "y"}
        height = {"y0": self.search.attainment, "y1": self.search.attainment}
        layout["shapes"] = [{**line, **height, "line": {"dash": "dash", "width": 1, "color": BASELINE_COLOUR}}]
        text = f"The dashed line is the target: {self.target}. Only the counts with a mark were simulated."
        return Figure("How many engines are enough", text, data, layout)

    def to_dict(self) -> dict[str, Any]:
        """Return the plans for JSON."""
        return {
            "verdict": self.verdict,
            "workload": self.search.workload.name,
            "content_hash": self.search.workload.content_hash,
            "requests": len(self.search.workload),
            "engine": self.search.engine.name,
            "router": self.search.router,
            "slo": self.search.slo,
            "attainment": self.search.attainment,
            "without_queue": self.without_queue,
            **({"note": "TRUE LENGTHS"} if any(plan.predictor == TRUTH for plan in self.plans) else {}),
            "plans": [
                {
                    "policy": plan.policy,
                    "predictor": plan.predictor,
                    "engines": plan.engines,
                    "trials": [
                        {
                            "engines": each.engines,
                            "attained": each.attained,
                            "ttft_p99_s": each.outcome.summary.ttft_s.p99,
                            "e2e_p99_s": each.outcome.summary.e2e_s.p99,
                        }
                        for each in plan.trials
                    ],
                }
                for plan in self.plans
            ],
            "runs": [run.to_dict() for run in self.runs],
        }

    def page(self, origin: Origin | None) -> str:
        """Return the HTML report."""
        title = f"Capacity for {self.search.workload.name} on {self.search.engine.name}"
        return runs_page(title, self.runs, [self.table()], origin, self.verdict, [self.figure()])


def _ratio(ours: Outcome, base: Outcome, figure: str) -> Ratio:
    if ours is base:
        return Ratio(1.0, 1.0, 1.0)
    measure, statistic = figure.rsplit("_", 1)
    values, others = ({str(name): each for name, each in latencies(run).items()} for run in (ours, base))
    return over_requests(values[f"{measure}_s"], others[f"{measure}_s"], 0.99 if statistic == "p99" else None, seed=0)


def _engines(count: int | None) -> str:
    return "1 engine" if count == 1 else f"{count} engines"
