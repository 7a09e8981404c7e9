"""What `lengthwise` costs and gains at any accuracy of the predictions: noise, inverted predictions, false claims.

One simulated engine (Llama-3-8B on an A100), paired with FCFS on the same arrivals and lengths. Lengths: CASTILLO's of
Llama-3.1-8B cut at 4,096, ServeGen's m-large, all equal, and bimodal. Arrivals: Poisson at a load, to drain, and a
burst at twice the capacity of 12 requests per slot, which begins with an empty queue and nothing learned. Predictions
of tau 0 are other requests' lengths (of equal lengths: noise alone); `inverted` mirrors those of tau 0.55 about
their median, so that the longest are predicted shortest; `liars` are those of tau 0.55, where a fifth of the requests
claim 1 token. CASTILLO's noise has the tau itself; elsewhere, where many lengths are equal, it has the spread that
gives log-normal lengths of log standard deviation 1 this tau.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.frontier import CUT, ENGINE, LLM, Gains, figures, load_samples
from experiments.study import Run, SeededGrid, Study, table_of
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.reports.tables import Table
from lengthwise.simulator import Fleet, Outcome, RequestPredictions, measure_capacity, predict_workload, simulate
from lengthwise.simulator.cluster import at_rate
from lengthwise.simulator.predictions import own_sigma
from lengthwise.workloads import Workload, castillo_workload, load_trace
from lengthwise.workloads.arrivals import gamma, generator, redraw
from lengthwise.workloads.generators import DiscreteLengths

CASTILLO, SERVEGEN, EQUAL, BIMODAL = "CASTILLO", "ServeGen", "equal", "bimodal"
DISCRETE: Final = {EQUAL: "300:1", BIMODAL: "30:0.5,900:0.5"}
PROMPT_TOKENS: Final = 200  # of discrete lengths
BURST: Final = "burst"
BURST_LOAD, BURST_PER_SLOT = 2.0, 12
INVERTED, LIARS = "inverted", "liars"
MIRRORED_TAU: Final = "0.55"
LIARS_SHARE: Final = 0.2
POLICY: Final = "lengthwise"


@dataclass(frozen=True)
class NoHarmGrid(SeededGrid):
    """Every combination is a cell."""

    seeds: int = 20
    first_seed: int = 200
    requests: int = 2000
    lengths: tuple[str, ...] = (CASTILLO, SERVEGEN, EQUAL, BIMODAL)
    slots: tuple[int, ...] = (8, 32, 64)
    arrivals: tuple[str, ...] = ("0.7", "0.9", "1.1", BURST)
    predictors: tuple[str, ...] = ("0", "0.1", "0.2", "0.4", "0.55", "0.8", "1", "oracle", INVERTED, LIARS)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = (CASTILLO, SERVEGEN, EQUAL, BIMODAL)
        unknown = [name for name in self.lengths if name not in known]
        if unknown:
            raise InputError(f"'{unknown[0]}'", field="lengths", hint=f"known are {', '.join(known)}")


@dataclass(frozen=True)
class Place:
    """An engine, its requests and how they arrive."""

    lengths: str
    slots: int
    arrivals: str
    requests: int


def drawn_requests(place: Place, seed: int) -> tuple[Fleet, Workload]:
    """Return the engine of a place and a seed's requests."""
    fleet = Fleet.parse(ENGINE).limited_to(max_num_seqs=place.slots)
    every = _draw(place.lengths, place.requests, seed)
    load = BURST_LOAD if place.arrivals == BURST else float(place.arrivals)
    requests = at_rate(every, load * measure_capacity(every, fleet).requests_per_s)
    return fleet, requests.head(BURST_PER_SLOT * place.slots) if place.arrivals == BURST else requests


@lru_cache(maxsize=2)
def _draw(lengths: str, n: int, seed: int) -> Workload:
    if lengths == CASTILLO:
        return castillo_workload(load_samples("oracle"), LLM, requests=n, rate=1.0, seed=seed, max_tokens=CUT)
    if lengths == SERVEGEN:
        return redraw(_servegen(), requests=n, rate=1.0, seed=seed)
    drawn = DiscreteLengths.parse(DISCRETE[lengths]).sample(n, generator(seed, "lengths"))
    columns = {
        "arrival_s": gamma(n, 1.0, 1.0, generator(seed, "arrivals")),
        "input_tokens": np.full(n, PROMPT_TOKENS),
        "output_tokens": drawn,
        "max_tokens": np.full(n, CUT),
    }
    return Workload.from_table(columns, name=lengths)


@lru_cache(maxsize=1)
def _servegen() -> Workload:
    return load_trace("servegen_m-large")


def predictions_at(requests: Workload, lengths: str, predictor: str, seed: int) -> RequestPredictions:
    """Return the predictions of a workload; see the docstring of the module."""
    exact = predict_workload(requests, "oracle")
    if predictor == "oracle":
        return exact
    true, rng = requests.output_tokens.astype(np.float64), np.random.default_rng([seed, 1])
    if predictor == INVERTED:
        logs = np.log(_medians(requests, lengths, MIRRORED_TAU, seed))
        medians = np.clip(np.exp(2.0 * np.median(logs) - logs), 1.0, exact.cap)
    elif predictor == LIARS:
        medians = np.where(liars(len(true), seed), 1.0, _medians(requests, lengths, MIRRORED_TAU, seed))
    elif float(predictor) == 0.0:
        noise = rng.standard_normal(len(true)) if lengths == EQUAL else 0.0
        medians = rng.permutation(true) * np.exp(noise)
    else:
        medians = _medians(requests, lengths, predictor, seed)
    sigma = np.full(len(true), own_sigma(true, medians))
    return replace(exact, predictor=predictor, mu=np.log(medians), sigma=sigma)


def _medians(requests: Workload, lengths: str, tau: str, seed: int) -> NDArray[np.float64]:
    spec = f"noisy:{tau}"
    if lengths != CASTILLO:
        spec = "oracle" if float(tau) == 1.0 else f"noisy:log={noise_of(float(tau)):.6f}"
    return np.exp(predict_workload(requests, spec, seed=seed).mu)


def noise_of(tau: float) -> float:
    """Return the log standard deviation of noise that gives log-normal lengths of log standard deviation 1 a tau."""
    correlation = math.sin(math.pi * tau / 2.0)
    return math.sqrt(1.0 / correlation**2 - 1.0)


def liars(n: int, seed: int) -> NDArray[np.bool_]:
    """Return which requests claim 1 token."""
    return np.random.default_rng([seed, 2]).random(n) < LIARS_SHARE


def no_harm_seed(place: Place, seed: int, predictors: Sequence[str]) -> dict[str, Any]:
    """Simulate FCFS, and the policy with every kind of prediction, on one seed of a place."""
    fleet, requests = drawn_requests(place, seed)
    base = simulate(requests, fleet, "fcfs", predictor="none")
    found: dict[str, Any] = {"fcfs": figures(base)}
    claiming = liars(len(requests), seed)
    for predictor in predictors:
        known = predictions_at(requests, place.lengths, predictor, seed)
        outcome = simulate(requests, fleet, POLICY, predictor=known)
        found[predictor] = figures(outcome)
        if predictor == LIARS:
            found[predictor] += [_mean_per_token(each, claiming) for each in (base, outcome)]
    return found


def _mean_per_token(outcome: Outcome, chosen: NDArray[np.bool_]) -> float:
    return float(((outcome.finished_s - outcome.arrival_s) / outcome.output_tokens)[chosen].mean())


@dataclass(frozen=True)
class Cell:
    """A place and a kind of prediction, over seeds."""

    place: Place
    predictor: str
    gains: Gains
    liars: Ratio
    """Per-token latency of the requests that claim 1 token, FCFS over the policy."""


def measure(run: Run, grid: NoHarmGrid) -> list[Cell]:
    """Simulate every cell."""
    cells = []
    seeds = range(grid.first_seed, grid.first_seed + grid.seeds)
    for lengths in grid.lengths:
        for slots in grid.slots:
            for arrivals in grid.arrivals:
                place = Place(lengths, slots, arrivals, grid.requests)
                label = f"{lengths}, {slots} slots, {arrivals}"
                found = run.each(label, no_harm_seed, [(place, seed, grid.predictors) for seed in seeds])
                cells += [_cell(place, predictor, found) for predictor in grid.predictors]
    return cells


def _cell(place: Place, predictor: str, found: Sequence[dict[str, Any]]) -> Cell:
    rows = [each[predictor] for each in found]
    claimed = over_seeds(*zip(*(row[5:7] for row in rows), strict=True)) if predictor == LIARS else Ratio.none()
    return Cell(place, predictor, Gains.of(found, predictor), claimed)


def tables(cells: Sequence[Cell]) -> list[Table]:
    """The tail and the gains of every place by prediction, and what the liars gain."""
    predictors = list(dict.fromkeys(cell.predictor for cell in cells))
    by_place: dict[Place, dict[str, Cell]] = {}
    for cell in cells:
        by_place.setdefault(cell.place, {})[cell.predictor] = cell
    places = list(by_place)

    def table(title: str, note: str, text: Any, shown: Sequence[str] = predictors) -> Table:
        columns: list[tuple[str, Any]] = [
            ("lengths", lambda place: place.lengths),
            ("slots", lambda place: place.slots),
            ("load", lambda place: place.arrivals),
        ]
        columns += [
            (name, lambda place, name=name: text(by_place[place][name])) for name in shown if name in predictors
        ]
        return table_of(title, places, columns, [note], lambda place: place.lengths)

    def per_token(cell: Cell) -> str:
        return f"{cell.gains.per_token.ratio:.2f}"

    return [
        table("p99 of E2E over that of FCFS", "mean over seeds", lambda cell: f"{cell.gains.p99.ratio:.3f}"),
        table("Maximum of E2E over that of FCFS", "mean over seeds", lambda cell: f"{cell.gains.maximum.ratio:.2f}"),
        table("Mean E2E, FCFS over the policy", "above 1 is better", lambda cell: f"{cell.gains.mean.ratio:.3f}"),
        table("Per-token latency, FCFS over the policy", "above 1 is better", per_token),
        table(
            "Requests that claim 1 token: per-token latency, FCFS over the policy",
            "a fifth of the requests; ServeGen's are mostly that short",
            lambda cell: cell.liars,
            [LIARS],
        ),
    ]  # fmt: skip


def answer(cells: Sequence[Cell]) -> str:
    """The worst tail of all cells."""
    worst = max(cells, key=lambda cell: cell.gains.p99.ratio)
    place = worst.place
    return (
        f"The p99 of `{POLICY}` is at most {worst.gains.p99.ratio:.3f} times that of FCFS in {len(cells)} cells "
        f"({place.lengths}, {place.slots} slots, {place.arrivals}, predictions {worst.predictor})."
    )


STUDY: Study[NoHarmGrid, list[Cell]] = Study(
    name="no_harm",
    title="No harm at any accuracy",
    question="What does `lengthwise` cost at most, and gain, at any accuracy of the predictions?",
    source="CASTILLO, ServeGen",
    grid=NoHarmGrid(),
    quick=NoHarmGrid(
        seeds=2, requests=400, lengths=(CASTILLO, BIMODAL), slots=(8,), arrivals=("1.1", BURST),
        predictors=("0.2", "0.55", INVERTED, LIARS),
    ),
    minutes=(6, 0.2),
    measure=measure,
    tables=tables,
    answer=answer,
)  # fmt: skip
