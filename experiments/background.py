"""The predicted longest behind all others: what the wrapper `background` gives the rest, and what the longest pay.

One simulated engine (Llama-3-8B on an A100), CASTILLO's lengths of Llama-3.1-8B cut at 4,096, to drain; the same
arrivals, lengths and predictions for every policy of a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from experiments.frontier import Gains, Setting, at_load, figures, predictions_of
from experiments.study import Run, SeededGrid, Study, table_of
from lengthwise.reports.tables import Table
from lengthwise.simulator import simulate

SETTINGS: Final[dict[str, Setting]] = {
    "8 slots, load 1.1": Setting(8, 1.1, 2000),
    "32 slots, load 1.1": Setting(32, 1.1, 2000),
    "8 slots, load 0.9, CV 2": Setting(8, 0.9, 2000, cv=2.0),
    "32 slots, load 0.9": Setting(32, 0.9, 2000),
}
POLICIES: Final = ("lengthwise", "background(fcfs)", "background(lengthwise)", "background(lengthwise):share=0.03")


@dataclass(frozen=True)
class BackgroundGrid(SeededGrid):
    """Seeds and the predictor."""

    seeds: int = 20
    first_seed: int = 200
    predictor: str = "noisy:0.55"
    settings: tuple[str, ...] = tuple(SETTINGS)


def background_seed(setting: Setting, predictor: str, seed: int) -> dict[str, Any]:
    """Simulate every policy on one seed."""
    fleet, requests = at_load(setting, predictor, seed)
    predictions = predictions_of(requests, predictor, seed)
    names = ("fcfs", *POLICIES)
    return {name: figures(simulate(requests, fleet, name, predictor=predictions)) for name in names}


Found = list[tuple[str, str, Gains]]
"""Setting, policy and gains."""


def measure(run: Run, grid: BackgroundGrid) -> Found:
    """Simulate every setting."""
    seeds = range(grid.first_seed, grid.first_seed + grid.seeds)
    found: Found = []
    for name in grid.settings:
        runs = run.each(name, background_seed, [(SETTINGS[name], grid.predictor, seed) for seed in seeds])
        found += [(name, policy, Gains.of(runs, policy)) for policy in POLICIES]
    return found


def tables(found: Found) -> list[Table]:
    """One row per setting and policy."""
    columns: list[tuple[str, Callable[[tuple[str, str, Gains]], object]]] = [
        ("setting", lambda row: row[0]),
        ("policy", lambda row: row[1]),
        ("mean E2E", lambda row: row[2].mean),
        ("per token", lambda row: row[2].per_token),
        ("p99", lambda row: row[2].p99),
        ("maximum", lambda row: row[2].maximum),
    ]
    notes = ["mean, per token: FCFS over the policy; p99 and maximum: the policy over FCFS; 95 % intervals over seeds."]
    return [table_of("The predicted longest behind all others", found, columns, notes, lambda row: row[0])]


def answer(found: Found) -> str:
    """The first setting."""
    setting, policy, gains = next(row for row in found if row[1] == "background(lengthwise)")
    return (
        f"{policy} ({setting}): mean E2E gains {gains.mean.ratio:.2f}x at a p99 of {gains.p99.ratio:.2f} "
        f"and a maximum of {gains.maximum.ratio:.1f} times FCFS's."
    )


STUDY: Study[BackgroundGrid, Found] = Study(
    name="background",
    title="The predicted longest behind all others",
    question="What do the others gain if the predicted longest 1 % wait for them, and what do these pay?",
    source="CASTILLO",
    grid=BackgroundGrid(),
    quick=BackgroundGrid(seeds=2, settings=("8 slots, load 1.1",)),
    minutes=(3, 0.2),
    measure=measure,
    tables=tables,
    answer=answer,
)
