"""Answers in time: the share of requests within a limit, by policy, and what the others wait for it.

One simulated engine (Llama-3-8B on an A100), CASTILLO's lengths of Llama-3.1-8B cut at 4,096, to drain; the same
arrivals, lengths and predictions for every policy of a seed. Limits: the first token within 2 s, or 50 ms of E2E per
output token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from experiments.frontier import Setting, at_load, figures, predictions_of
from experiments.study import Run, SeededGrid, Study, table_of
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.reports.tables import Table
from lengthwise.simulator import simulate
from lengthwise.simulator.metrics import LatencyLimits

SETTINGS: Final[dict[str, Setting]] = {
    "32 slots, load 0.9": Setting(32, 0.9, 2000),
    "32 slots, load 1.1": Setting(32, 1.1, 2000),
    "32 slots, load 1.3": Setting(32, 1.3, 2000),
    "32 slots, load 0.8, CV 4": Setting(32, 0.8, 2000, cv=4.0),
    "8 slots, load 0.9": Setting(8, 0.9, 2000),
    "8 slots, load 1.1": Setting(8, 1.1, 2000),
}
LIMITS: Final[dict[str, tuple[str, LatencyLimits]]] = {
    "first token within 2 s": ("ontime:ttft=2", LatencyLimits(ttft_s=2.0, tpot_s=np.inf)),
    "50 ms per token": (
        "ontime:per_token=0.05",
        LatencyLimits(ttft_s=np.inf, tpot_s=np.inf, per_token_s=0.05),
    ),
}
"""By name of the limit: the spec of `ontime`, and the limit in seconds."""
UNPREDICTED: Final = "ontime, no lengths"


@dataclass(frozen=True)
class OnTimeGrid(SeededGrid):
    """Seeds, the predictor, and the policies beside `ontime`."""

    seeds: int = 20
    first_seed: int = 200
    predictor: str = "noisy:0.55"
    policies: tuple[str, ...] = ("lengthwise", "slo", "sjf")
    settings: tuple[str, ...] = tuple(SETTINGS)


def on_time_seed(setting: Setting, predictor: str, seed: int, policies: Mapping[str, str]) -> dict[str, Any]:
    """Simulate FCFS and all policies on one seed; `figures`, and the share within each limit."""
    fleet, requests = at_load(setting, predictor, seed)
    predictions = predictions_of(requests, predictor, seed)
    found = {}
    for label, spec in {"fcfs": "fcfs", **policies}.items():
        known = "none" if label == UNPREDICTED else predictions
        outcome = simulate(requests, fleet, spec, predictor=known)
        found[label] = [*figures(outcome), *(float(outcome.within(limits).mean()) for _, limits in LIMITS.values())]
    return found


@dataclass(frozen=True)
class Attained:
    """A policy in a setting under a limit, over seeds."""

    setting: str
    limit: str
    policy: str
    share: float
    mean: Ratio
    """Of E2E: FCFS over the policy."""
    p99: Ratio
    """Of E2E: the policy over FCFS."""
    maximum: Ratio


def measure(run: Run, grid: OnTimeGrid) -> list[Attained]:
    """Simulate every setting under every limit."""
    found = []
    for setting in grid.settings:
        for place, (limit, (spec, _)) in enumerate(LIMITS.items()):
            policies = {**{name: name for name in grid.policies}, "ontime": spec, UNPREDICTED: spec}
            seeds = range(grid.first_seed, grid.first_seed + grid.seeds)
            calls = [(SETTINGS[setting], grid.predictor, seed, policies) for seed in seeds]
            runs = run.each(f"{setting}, {limit}", on_time_seed, calls)
            found += [_attained(setting, limit, label, runs, 5 + place) for label in ("fcfs", *policies)]
    return found


def _attained(setting: str, limit: str, label: str, runs: list[dict[str, Any]], place: int) -> Attained:
    base, ours = (np.transpose([each[name] for each in runs]).tolist() for name in ("fcfs", label))
    mean, p99, maximum = over_seeds(base[0], ours[0]), over_seeds(ours[2], base[2]), over_seeds(ours[3], base[3])
    return Attained(setting, limit, label, float(np.mean(ours[place])), mean, p99, maximum)


def tables(found: list[Attained]) -> list[Table]:
    """One table per limit."""
    columns: list[tuple[str, Callable[[Attained], object]]] = [
        ("setting", lambda at: at.setting),
        ("policy", lambda at: at.policy),
        ("in time", lambda at: f"{at.share:.1%}"),
        ("mean E2E", lambda at: at.mean),
        ("p99", lambda at: at.p99),
        ("maximum", lambda at: at.maximum),
    ]
    notes = ["mean E2E: FCFS over the policy; p99 and maximum: the policy over FCFS; 95 % intervals over seeds."]
    return [
        table_of(limit, [at for at in found if at.limit == limit], columns, notes, lambda at: at.setting)
        for limit in LIMITS
    ]


def answer(found: list[Attained]) -> str:
    """The share of FCFS, `lengthwise` and `ontime` in each setting."""
    shares = {(at.setting, at.limit, at.policy): at.share for at in found}
    parts = [
        f"{limit}, {setting}: {shares[setting, limit, 'fcfs']:.0%} with fcfs, {share:.0%} with ontime"
        for (setting, limit, policy), share in shares.items()
        if policy == "ontime"
    ]
    return f"{'; '.join(parts)}."


STUDY: Study[OnTimeGrid, list[Attained]] = Study(
    name="on_time",
    title="Answers in time",
    question="How many answers keep a latency limit under each policy, and what do the others wait for it?",
    source="CASTILLO",
    grid=OnTimeGrid(),
    quick=OnTimeGrid(seeds=2, settings=("32 slots, load 1.1",)),
    minutes=(4, 0.3),
    measure=measure,
    tables=tables,
    answer=answer,
)
