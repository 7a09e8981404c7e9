"""Compared runs: latencies, ratios over a baseline, and profiles by output length and over time.

Every command that compares latencies (simulate, sweep, report, bench, replay, plan) describes its runs alike; a stored
JSON file holds the same description, so that a report can be made from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from lengthwise.intervals import Ratio, ShareChange
from lengthwise.simulator.gains import GAIN_FIGURES, Gain
from lengthwise.simulator.grid import BASELINE, USUAL_ROUTER, Metric, Statistic, figure_name
from lengthwise.simulator.metrics import TRUTH, LatencyProfile

NAMES: Final = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "per_token_s": "per token"}
SHOWN: Final[Mapping[tuple[Metric, Statistic], str]] = {
    ("e2e_s", "mean"): "mean E2E",
    ("e2e_s", "p99"): "p99 E2E",
    ("ttft_s", "mean"): "mean TTFT",
    ("per_token_s", "mean"): "per token",
}
"""Statistics that reports show of every run, and their titles."""


def predictor_label(predictor: str | None) -> str:
    """A predictor's name, with a warning where predictions are the true lengths."""
    return f"{TRUTH} (TRUE LENGTHS)" if predictor == TRUTH else predictor or ""


@dataclass(frozen=True)
class ReportedRun:
    """One policy with one predictor and router at one offered load, as it is shown and stored."""

    policy: str
    predictor: str | None = None
    router: str = USUAL_ROUTER
    place: str = ""
    """Workload and fleet, where a report has several."""
    offered: str = ""
    """The load in words."""
    load: float = math.nan
    latency: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Mean, p50, p90 and p99 in seconds, by metric (`e2e_s`)."""
    over_fcfs: Mapping[str, Ratio] = field(default_factory=dict)
    """Ratios by figure (`e2e_mean`), below 1 is better."""
    profile: LatencyProfile | None = None
    within: ShareChange | None = None
    """Shares of requests within the limits."""
    slo: str = ""
    """The limits in words."""
    reference: bool = False
    """Whether the others are compared with it though it is not fcfs."""

    @property
    def name(self) -> str:
        """The policy, and the router if it is not the usual one."""
        return self.policy if self.router == USUAL_ROUTER else f"{self.policy} behind {self.router}"

    @property
    def label(self) -> str:
        """The name and the source of the predictions."""
        return f"{self.name}, {predictor_label(self.predictor)}" if self.predictor else self.name

    @property
    def in_words(self) -> str:
        """The name and the source of the predictions, inside a sentence."""
        if self.predictor is None:
            return self.name
        if self.predictor == "none":
            return f"{self.name} without predictions"
        return f"{self.name} with the predictor {predictor_label(self.predictor)}"

    @property
    def true_lengths(self) -> bool:
        """Whether its predictions are the true lengths, which no deployment has."""
        return self.predictor == TRUTH

    @property
    def is_baseline(self) -> bool:
        """Whether the others at its offered load are compared with it."""
        return self.reference or (self.policy == BASELINE and all(each.ratio == 1 for each in self.over_fcfs.values()))

    def ratio(self, figure: str) -> Ratio:
        """Return a figure over the baseline's."""
        return self.over_fcfs.get(figure, Ratio.none())

    def gain_over(self, base: ReportedRun) -> Gain:
        """Return its figures beside those of the baseline."""
        base_s = {
            figure_name(metric, statistic): base.latency.get(metric, {}).get(statistic, math.inf)
            for metric, statistic in GAIN_FIGURES
        }
        return Gain(self.in_words, self.over_fcfs, base_s, self.within)

    def to_dict(self) -> dict[str, Any]:
        """Return the run for JSON: metrics are keys of their own."""
        plain = asdict(self)
        plain.pop("reference")
        return {**plain, **plain.pop("latency")}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> ReportedRun:
        """Read what `to_dict` has returned, after a round trip through JSON."""
        profile, within = content.get("profile"), content.get("within")
        return cls(
            policy=str(content["policy"]),
            predictor=content.get("predictor"),
            router=content.get("router") or USUAL_ROUTER,
            place=content.get("place") or "",
            offered=content.get("offered") or "",
            load=_number(content.get("load")),
            latency={
                name: {each: _number(value) for each, value in content[name].items()}
                for name in NAMES
                if name in content
            },
            over_fcfs={
                name: Ratio(*(_number(each[part]) for part in ("ratio", "low", "high")))
                for name, each in (content.get("over_fcfs") or {}).items()
            },
            profile=None if profile is None else LatencyProfile.read(profile),
            within=None
            if within is None
            else ShareChange(*(_number(within[part]) for part in ("share", "base", "low", "high"))),
            slo=content.get("slo") or "",
        )


def _number(value: Any) -> float:  # null in JSON is NaN
    return math.nan if value is None else float(value)


def pooled(profiles: Sequence[LatencyProfile]) -> LatencyProfile:
    """Return the mean of the tenths over seeds; over time, the first seed."""
    first = profiles[0]
    if any(len(each.tokens) != len(first.tokens) for each in profiles):
        return first
    tokens, e2e_s = (
        tuple(np.mean([getattr(each, name) for each in profiles], axis=0).tolist()) for name in ("tokens", "e2e_s")
    )
    return LatencyProfile(tokens, e2e_s, first.time_s, first.waiting, first.window_e2e_s)


def at_highest_load(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Return the runs at the highest load, or at the last offered load where loads are no numbers."""
    loads = [run.load for run in runs if not math.isnan(run.load)]
    if loads:
        return [run for run in runs if run.load == max(loads)]
    return [run for run in runs if run.offered == runs[-1].offered]


def judged(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Return the runs that a verdict is about: of the first place, at the highest load; a single place has no name."""
    several = len({run.place for run in runs}) > 1
    shown = at_highest_load([run for run in runs if run.place == runs[0].place])
    return shown if several else [replace(run, place="") for run in shown]
