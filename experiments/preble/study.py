"""Preble's routing and its length-aware extension: every router on the same requests, FCFS inside engines.

Figure 2: normalized latency and mean E2E over rates and engines, lengths of the most variance, to drain. Figures 1A to
1D, with the paper's 150 tokens and its rule for the end of a run, are in `experiments.preble_figures`. Lengths drawn at
random cannot be predicted: routers get the true ones or none. The value of a predictor is measured on CASTILLO's test
prompts behind ten shared system prompts, at shares of capacity. Routers are charged the time that was measured for
their choice (`simulator/routing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from experiments.preble import paper
from experiments.study import Run
from lengthwise.errors import InputError
from lengthwise.simulator import Fleet, Outcome, simulate
from lengthwise.simulator.paired import Ratio, over_seeds
from lengthwise.simulator.routing import routing_time_s
from lengthwise.simulator.tasks import CapacityTask, CellTask, Setting, code_version, content_key
from lengthwise.workloads import (
    DiscreteLengths,
    LengthSamples,
    Workload,
    behind_prefixes,
    castillo_workload,
    load_castillo,
    react_workload,
)
from lengthwise.workloads.arrivals import generator
from lengthwise.workloads.datasets import PACKAGED

Measure = Literal["per_token_s", "e2e_s", "ttft_s"]
Unit = Literal["requests/s", "load"]
COMPARED: Final[tuple[Measure, Measure]] = ("per_token_s", "e2e_s")
"""Normalized latency as in the paper, and end-to-end latency."""


@dataclass(frozen=True, slots=True)
class Place:
    """A workload (its lengths or its name) on engines, at a request rate or at a share of capacity."""

    workload: str
    engines: int
    at: float
    unit: Unit = "requests/s"


@dataclass(frozen=True, slots=True)
class Routing:
    """A router and its predictor; None where it uses no lengths."""

    router: str
    predictor: str | None = None

    def __str__(self) -> str:
        return self.router if self.predictor is None else f"{self.router} ({self.predictor})"


@dataclass(frozen=True)
class Cell:
    """A router in a place: the summary of each seed's simulation."""

    place: Place
    run: Routing
    seeds: tuple[dict[str, Any], ...]

    def values(self, measure: Measure, statistic: str = "mean") -> list[float]:
        """One statistic, by seed."""
        return [float(seed[measure][statistic]) for seed in self.seeds]

    def mean(self, measure: Measure, statistic: str = "mean") -> float:
        """A statistic averaged over seeds."""
        return float(np.mean(self.values(measure, statistic)))

    def over(self, other: Cell, measure: Measure, statistic: str = "mean") -> Ratio:
        """Ratio to another cell on the same requests with its 95 % interval; below 1 is better."""
        if other is self:
            return Ratio(1.0, 1.0, 1.0)
        return over_seeds(self.values(measure, statistic), other.values(measure, statistic))


def group_by_seed(names: Sequence[tuple[Place, Routing]], results: Sequence[dict[str, Any]]) -> tuple[Cell, ...]:
    """Cells from one result per seed."""
    seeds: dict[tuple[Place, Routing], list[dict[str, Any]]] = {}
    for name, result in zip(names, results, strict=True):
        seeds.setdefault(name, []).append(result)
    return tuple(Cell(*name, tuple(each)) for name, each in seeds.items())


def find(cells: Sequence[Cell], run: Routing, engines: int, at: float) -> Cell:
    """The cell of a router at a number of engines and a rate or load."""
    return next(cell for cell in cells if cell.run == run and (cell.place.engines, cell.place.at) == (engines, at))


def places(cells: Sequence[Cell]) -> list[Place]:
    """The distinct places of cells, in order."""
    return list(dict.fromkeys(cell.place for cell in cells))


VARIED: Final = "1:0.5,300:0.5"
"""Lengths up to 300 with the most variance (the paper's figure 3)."""
FIXED: Final = "150:1"
"""The same mean without variance (figures 1A to 1C)."""
BY_PREFIX: Final = "by prefix"
"""Each workload has its own length, from 1 to 298 in steps of 33."""


@dataclass(frozen=True, slots=True)
class React:
    """ReAct prompts of ten workloads in random order, with lengths from a distribution or one for each workload.

    Prompts are dropped: they say nothing about lengths drawn at random.
    """

    lengths: str
    requests: int
    name: ClassVar[str] = "react"

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """Draw at one request per second, for any fleet."""
        return lambda seed: _react(self, seed)


@lru_cache(maxsize=8)
def _react(about: React, seed: int) -> Workload:
    drawn = react_workload(
        workloads=paper.WORKLOADS,
        examples=paper.EXAMPLES,
        requests=about.requests,
        rate=1.0,
        lengths=DiscreteLengths.parse(FIXED if about.lengths == BY_PREFIX else about.lengths),
        seed=seed,
    )
    order = generator(seed, "order").permutation(about.requests)
    shuffled = drawn.take(order, arrival_s=drawn.arrival_s, prompt=None, max_tokens=paper.MAX_TOKENS)
    if about.lengths != BY_PREFIX:
        return shuffled
    names, workload = np.unique(shuffled.table["tenant"].to_pylist(), return_inverse=True)
    return shuffled.replace(output_tokens=1 + workload * ((paper.MAX_TOKENS - 1) // (len(names) - 1)))


@dataclass(frozen=True, slots=True)
class Shared:
    """CASTILLO's test prompts for one LLM, behind ten system prompts; the i-th is 1/i as frequent as the first."""

    llm: str
    requests: int
    prefixes: int = 10
    prefix_tokens: int = 512
    name: ClassVar[str] = "castillo"

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """Draw at one request per second, for any fleet."""
        samples = castillo_prompts()

        def draw(seed: int) -> Workload:
            alone = castillo_workload(samples, self.llm, requests=self.requests, rate=1.0, seed=seed)
            return behind_prefixes(alone, prefixes=self.prefixes, tokens=self.prefix_tokens, seed=seed)

        return draw


@lru_cache(maxsize=1)
def castillo_prompts() -> LengthSamples:
    """CASTILLO's test split, read once; where it is missing, the sample that ships with the package."""
    return load_castillo(split="test")


@dataclass(frozen=True)
class Diagnosis:
    """Why true lengths change little in E2: both variants on the same requests of one seed; shares are of all requests.

    E2 compares loads only where several engines hold the longest known prefix, or where a prefix is new. Elsewhere the
    only holder gets the request whatever its length, until balancing moves the prefix. And a load counts live requests:
    of two lengths the short ones are seldom among them, so the number of live requests already implies their lengths.
    """

    decided_by_load: float
    """Choices of E2 among several engines; the rest have one candidate."""
    moved: float
    """Requests that true lengths send elsewhere."""
    short_live: float
    """Share of one-token answers among live requests, by time in the system."""
    busiest: float
    """Requests of the busiest engine over the mean: 1 is even."""
    moves: float
    """How often a workload continues on another engine, with E2."""
    moves_true_lengths: float
    """The same with true lengths."""


@dataclass(frozen=True, slots=True)
class DiagnosisTask:
    """Both routers on a workload at a rate, without routing time, so that only choices differ."""

    where: Setting
    rate: float

    @property
    def key(self) -> str:
        """Content key."""
        return content_key(kind="why e2", code=code_version(), where=self.where.key, rate=self.rate)

    def run(self) -> dict[str, Any]:
        """The fields of `Diagnosis`."""
        workload = self.where.workload
        workload = workload.replace(arrival_s=workload.arrival_s / self.rate)
        plain, with_lengths = (
            simulate(workload, self.where.fleet, "fcfs", router=router, predictor="oracle", explain=True)
            for router in ("e2", "e2_length")
        )
        tenants = np.array(workload.table["tenant"].to_pylist())
        stay = plain.finish - plain.arrival
        counts = np.bincount(plain.engine, minlength=len(self.where.fleet))
        return asdict(
            Diagnosis(
                decided_by_load=_decided_by_load(plain),
                moved=float((plain.engine != with_lengths.engine).mean()),
                short_live=float(stay[workload.output_tokens == 1].sum() / stay.sum()),
                busiest=float(counts.max() / counts.mean()),
                moves=_moves(plain, tenants),
                moves_true_lengths=_moves(with_lengths, tenants),
            )
        )


def _moves(outcome: Outcome, tenants: NDArray[np.str_]) -> float:
    engines = [outcome.engine[tenants == tenant] for tenant in np.unique(tenants)]
    return float(sum((each[1:] != each[:-1]).sum() for each in engines))


def _decided_by_load(outcome: Outcome) -> float:
    weighed = outcome.trace.costs if outcome.trace is not None else ()
    choices = [terms for each in weighed if each is not None for terms in each.values()]
    return float(np.mean([terms.get("cost", 0.0) > 0.0 or terms.get("exploit") == 0.0 for terms in choices]))


LENGTH_UNAWARE: Final = ("random", "round_robin", "least_outstanding", "least_load", "cache_aware", "dynamo", "e2")
PREDICTING: Final = ("e2_length", "lengthwise")
LLM: Final = "llama-3.1-8b"
SHARED_ENGINE: Final = "llama-3-8b@a100"


@dataclass(frozen=True)
class PrebleGrid:
    """What is simulated. A rate is offered for `seconds`, with at least `least` requests."""

    seeds: int = 5
    engines: tuple[int, ...] = paper.ENGINES
    rates: tuple[float, ...] = paper.RATES
    seconds: float = paper.SECONDS
    least: int = 300
    loads: tuple[float, ...] = (0.7, 0.9, 1.1)
    shared_engines: int = 8
    shared_slots: int = 32
    shared_requests: int = 3000
    predictor: str = "fast"
    """Predictions for CASTILLO's prompts."""

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise InputError(f"{self.seeds} seeds", field="seeds", hint="give at least 2: intervals are over seeds")
        for name, least, values in (("engines", 1, self.engines), ("rates", 1e-3, self.rates)):
            if not values or min(values) < least:
                given = ",".join(f"{value:g}" for value in values)
                raise InputError(f"'{given}'", field=name, hint=f"give numbers of at least {least:g}, commas between")

    def requests(self, rate: float) -> int:
        """Number of requests of a run at a rate."""
        return max(self.least, round(self.seconds * rate))


@dataclass(frozen=True)
class PrebleResult:
    """Everything measured."""

    grid: PrebleGrid
    origin: str
    engine_per_s: float
    """Capacity of one engine for the paper's requests under backlog, in requests/s."""
    react: tuple[Cell, ...]
    """Lengths of the most variance, all engines and rates."""
    shared: tuple[Cell, ...]
    diagnosis: dict[float, Diagnosis]
    """By requests per second, on the engines of figure 2; the mean over seeds."""
    drawn: dict[int, float]
    """Figure 3: the share of each length among the requests of the first seed at the highest rate."""


def measure(run: Run, grid: PrebleGrid) -> PrebleResult:
    """Run everything that the cache does not have."""
    if castillo_prompts().origin == PACKAGED:
        run.note("LENGTHWISE_DATA holds no CASTILLO; using the small sample that ships with the package")
    react = _cells(run, "react", grid, list(_react_places(grid)))
    shared = _cells(run, "castillo", grid, _shared_places(run, grid), predictor=grid.predictor)
    lengths = React(VARIED, grid.requests(max(grid.rates))).draws(own_arrivals=False, slots=0)(0).output_tokens
    values, counts = np.unique(lengths, return_counts=True)
    return PrebleResult(
        grid,
        castillo_prompts().origin,
        _engine_per_s(run, grid),
        react,
        shared,
        _diagnosis(run, grid),
        dict(zip(values.tolist(), (counts / counts.sum()).tolist(), strict=True)),
    )


Spot = tuple[Place, Callable[[int], tuple[Setting, float]]]
"""A place, and its setting and rate for a seed."""


def _react_places(grid: PrebleGrid) -> Iterator[Spot]:
    for rate in grid.rates:
        source = React(VARIED, grid.requests(rate))
        for count in grid.engines:
            yield Place(VARIED, count, rate), _at(source, Fleet.parse(f"{count}*{paper.ENGINE}"), rate)


def _at(source: React, fleet: Fleet, rate: float) -> Callable[[int], tuple[Setting, float]]:
    return lambda seed: (Setting(source, fleet, seed, own_arrivals=False), rate)


def _shared_places(run: Run, grid: PrebleGrid) -> list[Spot]:
    fleet = Fleet.parse(f"{grid.shared_engines}*{SHARED_ENGINE}").limited_to(max_num_seqs=grid.shared_slots)
    source = Shared(LLM, grid.shared_requests)
    where = [Setting(source, fleet, seed, own_arrivals=False) for seed in range(grid.seeds)]
    can = [found["requests_per_s"] for found in run.results("capacity", [CapacityTask(each) for each in where])]

    def at(load: float) -> Callable[[int], tuple[Setting, float]]:
        return lambda seed: (where[seed], load * can[seed])

    return [(Place(source.name, len(fleet), load, "load"), at(load)) for load in grid.loads]


def _engine_per_s(run: Run, grid: PrebleGrid) -> float:
    source, fleet = React(VARIED, grid.requests(max(grid.rates))), Fleet.parse(paper.ENGINE)
    tasks = [CapacityTask(Setting(source, fleet, seed, own_arrivals=False)) for seed in range(grid.seeds)]
    return float(np.mean([found["requests_per_s"] for found in run.results("capacity", tasks)]))


def _cells(
    run: Run,
    what: str,
    grid: PrebleGrid,
    spots: list[Spot],
    predictor: str | None = None,
) -> tuple[Cell, ...]:
    """Cells of every router; length-aware ones with true lengths, with the predictor if there is one, and without."""
    predictors = dict.fromkeys(["oracle", *([] if predictor is None else [predictor]), "none"])
    runs = [Routing(router) for router in LENGTH_UNAWARE] + [
        Routing(router, each) for router in PREDICTING for each in predictors
    ]
    tasks: list[CellTask] = []
    names: list[tuple[Place, Routing]] = []
    for place, at in spots:  # routers innermost: they share a workload and its predictions
        for seed in range(grid.seeds):
            where, rate = at(seed)
            for routing in runs:
                tasks.append(routing_task(where, rate, routing))
                names.append((place, routing))
    return group_by_seed(names, run.results(what, tasks))


def routing_task(where: Setting, rate: float, run: Routing) -> CellTask:
    """A router at a rate, FCFS inside engines, charged its measured time."""
    return CellTask(
        where,
        rate,
        policy="fcfs",
        router=run.router,
        predictor=run.predictor or "oracle",  # not used by routers without a predictor
        prediction_delay_s=0.0,
        decision_s=0.0,
        routing_s=routing_time_s(run.router, len(where.fleet)),
        fleet_events=(),
    )


def _diagnosis(run: Run, grid: PrebleGrid) -> dict[float, Diagnosis]:
    fleet = Fleet.parse(f"{paper.COMPARED}*{paper.ENGINE}")
    rates = [rate for rate in grid.rates if rate in paper.LATENCY_S]
    tasks = [
        DiagnosisTask(Setting(React(VARIED, grid.requests(rate)), fleet, seed, own_arrivals=False), rate)
        for rate in rates
        for seed in range(grid.seeds)
    ]
    found = run.results("diagnosis", tasks)
    by_rate = [found[place : place + grid.seeds] for place in range(0, len(found), grid.seeds)]
    return {
        rate: Diagnosis(**{name: float(np.mean([each[name] for each in seeds])) for name in seeds[0]})
        for rate, seeds in zip(rates, by_rate, strict=True)
    }
