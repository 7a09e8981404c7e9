"""Mean against tail: where every policy lies, how close true lengths come, and what poor predictions do to the tail.

One simulated engine (Llama-3-8B on an A100), CASTILLO's lengths of Llama-3.1-8B cut at 4,096, to drain; the same
arrivals, lengths and predictions for every policy of a seed. Gains are FCFS over the policy for mean and per-token
latency; the tail is the policy over FCFS for p99 and maximum of E2E. Predictors that are shipped see test prompts only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from experiments.figures import COLOURS, GREY, figure, legend, save
from experiments.study import Run, SeededGrid, Study, predictions_by_prompt
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.predictors.resolve import parse_predictor_spec
from lengthwise.reports.tables import Table
from lengthwise.simulator import Fleet, Outcome, RequestPredictions, measure_capacity, predict_workload, simulate
from lengthwise.simulator.cluster import at_rate
from lengthwise.workloads import LengthSamples, Workload, castillo_workload, load_castillo

LLM: Final = "llama-3.1-8b"
ENGINE: Final = "1*llama-3-8b@a100"
CUT: Final = 4096
GIVEN: Final = 1.25
"""The target that is given to `slo`, in p99s of FCFS."""
TARGETS: Final = (1.1, 1.2, GIVEN, 1.3, 1.4, 1.5, 2.0, 3.0)
"""Targets of the curves, in p99s of FCFS."""
OVERLOAD_S, OVERLOAD_TARGET_S = 600.0, 30.0


class Setting(NamedTuple):
    """An engine and its load."""

    slots: int
    load: float
    requests: int
    """0: as many as arrive in ten minutes."""
    cv: float = 1.0
    """Of the gaps between arrivals."""


SETTINGS: Final[dict[str, Setting]] = {
    "4 slots, load 1.1": Setting(4, 1.1, 600),
    "8 slots, load 1.1": Setting(8, 1.1, 2000),
    "32 slots, load 1.1": Setting(32, 1.1, 2000),
    "64 slots, load 1.3": Setting(64, 1.3, 4000),
    "8 slots, load 0.9, CV 2": Setting(8, 0.9, 2000, cv=2.0),
    "8 slots, load 0.7": Setting(8, 0.7, 2000),
}
DRAWN: Final = ("8 slots, load 1.1", "64 slots, load 1.3")
ROBUST: Final = "8 slots, load 1.1"
OVERLOAD: Final = "8 slots, load 1.3 for ten minutes"
ERRORS: Final = {"all 4 times too long": 4.0, "all 4 times too short": 0.25, "each 4 times wrong, either way": math.nan}
GIVEN_SLO, GIVEN_TRUE = "slo, given", "slo, given, true lengths"
UNDER_ERRORS: Final = ("lengthwise", "slo", GIVEN_SLO)


@dataclass(frozen=True)
class FrontierGrid(SeededGrid):
    """Seeds, predictors and policies."""

    seeds: int = 20
    first_seed: int = 200
    predictors: tuple[str, ...] = ("noisy:0.55", "default")
    policies: tuple[str, ...] = ("lengthwise", "slo", "tie", "sjf", "sept", "srpt", "gittins", "hrrn", "boost")
    settings: tuple[str, ...] = tuple(SETTINGS)

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.settings if name not in SETTINGS]
        if unknown:
            raise InputError(f"'{unknown[0]}'", field="settings", hint=f"known are {'; '.join(SETTINGS)}")


@dataclass(frozen=True)
class Arm:
    """A policy in a cell. `target`: of `slo`, in p99s of FCFS; `true`: with true lengths in place of predictions."""

    label: str
    policy: str
    target: float | None = None
    true: bool = False


def frontier_seed(setting: Setting, predictor: str, seed: int, arms: Sequence[Arm], error: str = "") -> dict[str, Any]:
    """Simulate FCFS and all arms on one seed of a setting; `error` is one of ERRORS."""
    fleet, requests = at_load(setting, predictor, seed)
    predictions = predictions_of(requests, predictor, seed, error)
    base = simulate(requests, fleet, "fcfs", predictor=predictions)
    p99 = float(np.quantile(base.finished_s - base.arrival_s, 0.99))
    fixed = None if setting.requests else OVERLOAD_TARGET_S
    found = {"fcfs": figures(base, fixed or GIVEN * p99)}
    for arm in arms:
        target = None if arm.target is None else fixed or arm.target * p99
        spec = arm.policy if target is None else f"{arm.policy}:seconds={target:.6f}"
        outcome = simulate(requests, fleet, spec, predictor="oracle" if arm.true else predictions)
        found[arm.label] = figures(outcome, fixed or GIVEN * p99)
    return found


def at_load(setting: Setting, predictor: str, seed: int) -> tuple[Fleet, Workload]:
    """Return the engine of a setting and a seed's requests at its load."""
    fleet = Fleet.parse(ENGINE).limited_to(max_num_seqs=setting.slots)
    n, samples = setting.requests or 4000, load_samples(predictor)
    drawn = castillo_workload(samples, LLM, requests=n, rate=1.0, seed=seed, cv=setting.cv, max_tokens=CUT)
    requests = at_rate(drawn, setting.load * measure_capacity(drawn, fleet).requests_per_s)
    if not setting.requests:
        requests = requests.head(int(np.searchsorted(requests.arrival_s, OVERLOAD_S)))
    return fleet, requests


@lru_cache(maxsize=2)
def load_samples(predictor: str) -> LengthSamples:
    """CASTILLO; only its test prompts for a predictor that is trained on the others."""
    return load_castillo(split="test" if parse_predictor_spec(predictor).kind == "model" else None)


def predictions_of(requests: Workload, predictor: str, seed: int, error: str = "") -> RequestPredictions:
    """Return the predictions of a workload; `error` is one of ERRORS."""
    if parse_predictor_spec(predictor).kind == "model":
        found = predictions_by_prompt(predictor, requests, _by_prompt(predictor))
    else:
        found = predict_workload(requests, predictor, seed=seed)
    if not error:
        return found
    factor = np.full(len(found), ERRORS[error])
    if math.isnan(ERRORS[error]):
        factor = np.where(np.random.default_rng(seed).random(len(found)) < 0.5, 4.0, 0.25)
    return replace(found, mu=found.mu + np.log(factor))


@lru_cache(maxsize=2)
def _by_prompt(predictor: str) -> dict[str, tuple[float, float]]:
    """Predict every prompt once: a shipped predictor reads the prompt alone."""
    samples = load_samples(predictor)
    every = castillo_workload(samples, LLM, requests=len(samples.where(llm=LLM)), rate=1.0, seed=0)
    found = predict_workload(every, predictor)
    numbers = zip(found.mu.tolist(), found.sigma.tolist(), strict=True)
    return dict(zip(every.table["prompt"].to_pylist(), numbers, strict=True))


def figures(outcome: Outcome, target_s: float = math.inf) -> list[float]:
    """Return mean, mean per token, p99 and maximum of E2E, and the share within the target."""
    e2e = outcome.finished_s - outcome.arrival_s
    numbers = (e2e.mean(), (e2e / outcome.output_tokens).mean(), np.quantile(e2e, 0.99), e2e.max())
    return [*map(float, numbers), float(np.mean(e2e <= target_s))]


@dataclass(frozen=True)
class Gains:
    """A policy beside FCFS over seeds: gains above 1 and tails below 1 are better."""

    mean: Ratio
    per_token: Ratio
    p99: Ratio
    maximum: Ratio
    in_time: float
    """Share of requests within the target."""

    @classmethod
    def of(cls, found: Sequence[dict[str, Any]], label: str) -> Gains:
        """Compare the `figures` of a label with those of "fcfs", seed by seed."""
        base, ours = (np.transpose([each[name] for each in found]).tolist() for name in ("fcfs", label))
        mean, per_token = (over_seeds(base[place], ours[place]) for place in (0, 1))
        p99, maximum = (over_seeds(ours[place], base[place]) for place in (2, 3))
        return cls(mean, per_token, p99, maximum, float(np.mean(ours[4])))


Place = tuple[str, str]
"""A setting, and a predictor (or an error of its predictions)."""


@dataclass(frozen=True)
class FrontierResult:
    """All points, by setting and predictor, then by arm."""

    grid: FrontierGrid
    points: dict[Place, dict[str, Gains]]


def measure(run: Run, grid: FrontierGrid) -> FrontierResult:
    """Simulate every setting, the poor predictions and the overload."""
    curves = [Arm(f"slo {each}", "slo", each) for each in TARGETS]
    curves += [Arm(f"true {each}", "slo", each, true=True) for each in TARGETS]
    given = (Arm(GIVEN_SLO, "slo", GIVEN), Arm(GIVEN_TRUE, "slo", GIVEN, true=True))
    plain = tuple(Arm(name, name) for name in grid.policies)
    compared = (Arm("lengthwise", "lengthwise"), Arm("slo", "slo"), given[0])
    wanted: dict[Place, tuple[Setting, str, str, tuple[Arm, ...]]] = {}
    for predictor in grid.predictors:
        for name in grid.settings:
            drawn = tuple(curves) if name in DRAWN else ()
            wanted[name, predictor] = (SETTINGS[name], predictor, "", (*plain, *given, *drawn))
    first = grid.predictors[0]
    wanted[ROBUST, "noisy:0.2"] = (SETTINGS[ROBUST], "noisy:0.2", "", compared)
    for error in ERRORS:
        wanted[ROBUST, error] = (SETTINGS[ROBUST], first, error, compared)
    wanted[OVERLOAD, first] = (Setting(8, 1.3, 0), first, "", (*compared, Arm("sjf", "sjf")))
    points = {}
    for place, (setting, predictor, error, arms) in wanted.items():
        seeds = range(grid.first_seed, grid.first_seed + grid.seeds)
        found = run.each(", ".join(place), frontier_seed, [(setting, predictor, seed, arms, error) for seed in seeds])
        points[place] = {label: Gains.of(found, label) for label in ("fcfs", *(arm.label for arm in arms))}
    return FrontierResult(grid, points)


def tables(found: FrontierResult) -> list[Table]:
    """Every policy in every setting, poor predictions, and the overload."""
    grid = found.grid
    rows: list[list[str]] = []
    rules: set[int] = set()
    for predictor in grid.predictors:
        for setting in grid.settings:
            rules.add(len(rows))
            for label in (GIVEN_SLO, *grid.policies, GIVEN_TRUE):
                at = found.points[setting, predictor][label]
                figures = [_text(each) for each in (at.mean, at.per_token, at.p99, at.maximum)]
                rows.append([f"{setting}, {predictor}", label, *figures])
    columns = ["setting", "policy", "mean E2E", "per token", "p99", "maximum"]
    seeds = f"{grid.seeds} seeds from {grid.first_seed}; 95 % intervals"
    notes = [
        f"mean and per token: FCFS over the policy; p99 and maximum: the policy over FCFS; {seeds}",
        f"given: a target of {GIVEN} times the p99 of FCFS",
    ]
    poor = [
        [label, error, _text(at.mean), _text(at.p99)]
        for (setting, error), points in found.points.items()
        if setting == ROBUST and error not in grid.predictors
        for label, at in points.items()
        if label in UNDER_ERRORS
    ]
    over = [
        [label, f"{at.in_time:.0%}", _text(at.mean), _text(at.p99), _text(at.maximum)]
        for label, at in found.points[OVERLOAD, grid.predictors[0]].items()
    ]
    late = f"share of requests within {OVERLOAD_TARGET_S:.0f} s, which is the target given"
    return [
        Table("Mean against tail", columns, rows, notes, frozenset(rules)),
        Table(f"Poor predictions, {ROBUST}", ["policy", "predictions", "mean E2E", "p99"], poor),
        Table(OVERLOAD, ["policy", "in time", "mean E2E", "p99", "maximum"], over, [late]),
    ]


def _text(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f} ±{(ratio.high - ratio.low) / 2:.3f}"


def draw(found: FrontierResult, path: Path) -> None:
    """Write the figure."""
    predictor = found.grid.predictors[0]
    settings = [name for name in DRAWN if name in found.grid.settings]
    title = f"Mean against tail of the policies, predictions {predictor}"
    with figure(1, max(1, len(settings)), size=(6.6 * max(1, len(settings)), 4.8), title=title) as (drawing, panels):
        for axes, setting in zip(panels, settings, strict=False):
            _panel(axes, found.points[setting, predictor], found.grid.policies)
            axes.set_title(setting)
        save(drawing, path)


def _panel(axes: Axes, points: dict[str, Gains], policies: Sequence[str]) -> None:
    """One setting: a curve over targets with true lengths and one with predictions, and every policy."""
    for prefix, name, colour in (
        ("true", "slo over targets, true lengths", GREY),
        ("slo", "slo over targets", COLOURS[1]),
    ):
        curve = sorted(
            (points[f"{prefix} {each}"].p99.ratio, points[f"{prefix} {each}"].mean.ratio) for each in TARGETS
        )
        axes.plot(*zip(*curve, strict=True), color=colour, marker=".", linewidth=1.4, label=name, zorder=2)
    axes.scatter([1.0], [1.0], color="#22282d", s=34, zorder=3)
    axes.annotate("fcfs", (1.0, 1.0), xytext=(5, -10), textcoords="offset points", fontsize=8)
    for label in policies:
        x, y = points[label].p99, points[label].mean
        colour = COLOURS[0] if label in ("lengthwise", "slo") else "#5b6770"
        axes.errorbar(
            x.ratio,
            y.ratio,
            xerr=[[x.ratio - x.low], [x.high - x.ratio]],
            yerr=[[y.ratio - y.low], [y.high - y.ratio]],
            fmt="o",
            color=colour,
            markersize=5,
            linewidth=1,
            zorder=3,
        )
        near = [other for other in policies if _near(points[other], points[label])]
        if label == near[0]:  # one label for policies that lie in one place
            side, offset = ("right", (-5, 6)) if x.ratio > 4.0 else ("left", (5, -10 if label == "slo" else 4))
            where: dict[str, Any] = {"xytext": offset, "textcoords": "offset points", "ha": side, "fontsize": 8}
            axes.annotate(", ".join(near), (x.ratio, y.ratio), **where)
    axes.set_xscale("log")
    ticks = (0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("p99 of E2E over that of FCFS (left is better)")
    axes.set_ylabel("mean E2E of FCFS over the policy's (up is better)")
    legend(axes, loc="lower right")


def _near(one: Gains, other: Gains) -> bool:
    return max(abs(math.log(one.p99.ratio / other.p99.ratio)), abs(one.mean.ratio - other.mean.ratio)) < 0.03


def answer(found: FrontierResult) -> str:
    """Mean and tail of each plain policy in the first setting."""
    grid = found.grid
    points = found.points[grid.settings[0], grid.predictors[0]]
    each = [f"{name} {points[name].mean.ratio:.2f}x at {points[name].p99.ratio:.2f}" for name in grid.policies]
    return f"Gain of mean E2E at the p99 over that of FCFS ({grid.settings[0]}): {', '.join(each)}."


STUDY: Study[FrontierGrid, FrontierResult] = Study(
    name="frontier",
    title="Mean against tail of the policies",
    question="How much of the mean does each policy gain, and at what price in the tail?",
    source="CASTILLO",
    grid=FrontierGrid(),
    quick=FrontierGrid(
        seeds=2, predictors=("noisy:0.55",), policies=("lengthwise", "slo", "sjf"), settings=("8 slots, load 1.1",)
    ),
    minutes=(15, 0.3),
    measure=measure,
    tables=tables,
    answer=answer,
    draw=draw,
)
