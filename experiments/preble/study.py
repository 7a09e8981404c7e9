"""The paper's experiment (`paper.py`), every router on the same requests, arrivals and lengths, FCFS inside engines.

Figure 1A, B and 2: normalized latency and mean E2E over rates and engines, lengths of the most variance. Figure 1D: the
same mean with less variance. Coin-flip lengths cannot be predicted: they are known to an oracle or not at all. What a
predictor is worth is measured on CASTILLO's test prompts behind ten shared system prompts, at shares of capacity.
Routers are charged their own time as it was measured (`simulator/routing_times.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from experiments.preble import paper
from experiments.preble.cells import Cell, Place, Run, gathered
from experiments.preble.traffic import LENGTHS, VARIED, React, Shared, castillo_prompts
from experiments.preble.why import Why, WhyTask
from lengthwise.errors import InputError
from lengthwise.simulator import Fleet
from lengthwise.simulator.routing_times import measured_s
from lengthwise.simulator.tasks import CapacityTask, CellTask, Setting, TaskRunner

NAIVE_AND_E2: Final = (*paper.NAIVE, "e2")
BLIND: Final = ("random", "round_robin", "least_outstanding", "least_load", "cache_aware", "dynamo", "e2")
PREDICTING: Final = ("e2_length", "lengthwise")
LLM: Final = "llama-3.1-8b"
SHARED_ENGINE: Final = "llama-3-8b@a100"


@dataclass(frozen=True)
class Effort:
    """How much is simulated. A rate is offered for so many seconds, but of at least so many requests."""

    seeds: int = 5
    engines: tuple[int, ...] = paper.ENGINES
    rates: tuple[float, ...] = paper.RATES
    seconds: float = paper.SECONDS
    least: int = 300
    varied_engines: tuple[int, ...] = (8, 16)
    varied_rates: tuple[float, ...] = (32.0, 64.0)
    loads: tuple[float, ...] = (0.7, 0.9, 1.1)
    shared_engines: int = 8
    shared_slots: int = 32
    shared_requests: int = 3000

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise InputError(f"{self.seeds} seeds", field="seeds", hint="give at least 2: intervals are over seeds")
        for name, least, values in (("engines", 1, self.engines), ("rates", 1e-3, self.rates)):
            if not values or min(values) < least:
                given = ",".join(f"{value:g}" for value in values)
                raise InputError(f"'{given}'", field=name, hint=f"give numbers of at least {least:g}, commas between")

    @classmethod
    def quick(cls, seeds: int = 2) -> Effort:
        """Enough to see the shape."""
        return cls(
            seeds,
            engines=(4, 8),
            rates=(8.0, 64.0, 128.0),
            seconds=5.0,
            least=100,
            varied_engines=(8,),
            varied_rates=(64.0,),
            loads=(0.9,),
            shared_requests=600,
        )

    def requests(self, rate: float) -> int:
        """Of a run at a rate."""
        return max(self.least, round(self.seconds * rate))


@dataclass(frozen=True)
class PrebleStudy:
    """Everything measured."""

    effort: Effort
    predictor: str
    origin: str
    engine_per_s: float
    """What one engine can do of the paper's requests under backlog, so that a rate can be told as a load."""
    react: tuple[Cell, ...]
    """Lengths of the most variance, all engines and rates."""
    varied: tuple[Cell, ...]
    """Lengths of less and less variance (of the most: as in `react`)."""
    shared: tuple[Cell, ...]
    why: dict[float, Why]
    """By requests per second, on the engines of figure 2; the mean over seeds."""
    drawn: dict[int, float]
    """Figure 3: the share of each length among the requests of the first seed at the highest rate."""
    found: int
    computed: int


def study(pieces: TaskRunner, *, predictor: str = "fast", effort: Effort | None = None) -> PrebleStudy:
    """Run everything that the cache of `pieces` does not know."""
    effort = Effort() if effort is None else effort
    react = _cells(pieces, "react", effort, list(_react_places(effort, [VARIED], effort.engines, effort.rates)))
    others = _react_places(effort, LENGTHS[:-1], effort.varied_engines, effort.varied_rates)
    varied = _cells(pieces, "variance", effort, list(others), blind=NAIVE_AND_E2)
    shared = _cells(pieces, "castillo", effort, _shared_places(pieces, effort), predictor=predictor)
    lengths = React(VARIED, effort.requests(max(effort.rates))).draws(own_arrivals=False, slots=0)(0).output_tokens
    values, counts = np.unique(lengths, return_counts=True)
    return PrebleStudy(
        effort,
        predictor,
        castillo_prompts().origin,
        _engine_per_s(pieces, effort),
        react,
        varied,
        shared,
        _whys(pieces, effort),
        dict(zip(values.tolist(), (counts / counts.sum()).tolist(), strict=True)),
        pieces.from_cache,
        pieces.computed,
    )


Spot = tuple[Place, Callable[[int], tuple[Setting, float]]]
"""A place, and where and at which rate it is for a seed."""


def _react_places(
    effort: Effort, lengths: list[str] | tuple[str, ...], engines: tuple[int, ...], rates: tuple[float, ...]
) -> Iterator[Spot]:
    for each in lengths:
        for rate in rates:
            source = React(each, effort.requests(rate))
            for count in engines:
                fleet = Fleet.parse(f"{count}*{paper.ENGINE}")
                yield Place(each, count, rate), _at(source, fleet, rate)


def _at(source: React, fleet: Fleet, rate: float) -> Callable[[int], tuple[Setting, float]]:
    return lambda seed: (Setting(source, fleet, seed, own_arrivals=False), rate)


def _shared_places(pieces: TaskRunner, effort: Effort) -> list[Spot]:
    fleet = Fleet.parse(f"{effort.shared_engines}*{SHARED_ENGINE}").limited_to(max_num_seqs=effort.shared_slots)
    source = Shared(LLM, effort.shared_requests)
    where = [Setting(source, fleet, seed, own_arrivals=False) for seed in range(effort.seeds)]
    can = [found["requests_per_s"] for found in pieces.results("capacity", [CapacityTask(each) for each in where])]

    def at(load: float) -> Callable[[int], tuple[Setting, float]]:
        return lambda seed: (where[seed], load * can[seed])

    return [(Place(source.name, len(fleet), load, "load"), at(load)) for load in effort.loads]


def _engine_per_s(pieces: TaskRunner, effort: Effort) -> float:
    source, fleet = React(VARIED, effort.requests(max(effort.rates))), Fleet.parse(paper.ENGINE)
    tasks = [CapacityTask(Setting(source, fleet, seed, own_arrivals=False)) for seed in range(effort.seeds)]
    return float(np.mean([found["requests_per_s"] for found in pieces.results("capacity", tasks)]))


def _cells(
    pieces: TaskRunner,
    what: str,
    effort: Effort,
    spots: list[Spot],
    *,
    blind: tuple[str, ...] = BLIND,
    predictor: str | None = None,
) -> tuple[Cell, ...]:
    """Of every router; those that predict are told the truth, a prediction if there is one, and nothing."""
    told = dict.fromkeys(["oracle", *([] if predictor is None else [predictor]), "none"])
    runs = [Run(router) for router in blind] + [Run(router, each) for router in PREDICTING for each in told]
    tasks: list[CellTask] = []
    names: list[tuple[Place, Run]] = []
    for place, at in spots:  # routers last: they share a workload and its predictions
        for seed in range(effort.seeds):
            where, rate = at(seed)
            for run in runs:
                tasks.append(_task(where, rate, run))
                names.append((place, run))
    return gathered(names, pieces.results(what, tasks))


def _task(where: Setting, rate: float, run: Run) -> CellTask:
    return CellTask(
        where,
        rate,
        policy="fcfs",
        router=run.router,
        predictor=run.predictor or "oracle",  # who looks at none is the same with any
        prediction_delay_s=0.0,
        decision_s=0.0,
        routing_s=measured_s(run.router, len(where.fleet)),
        changes=(),
    )


def _whys(pieces: TaskRunner, effort: Effort) -> dict[float, Why]:
    fleet = Fleet.parse(f"{paper.COMPARED}*{paper.ENGINE}")
    rates = [rate for rate in effort.rates if rate in paper.LATENCY_S]
    tasks = [
        WhyTask(Setting(React(VARIED, effort.requests(rate)), fleet, seed, own_arrivals=False), rate)
        for rate in rates
        for seed in range(effort.seeds)
    ]
    found = pieces.results("why", tasks)
    by_rate = [found[place : place + effort.seeds] for place in range(0, len(found), effort.seeds)]
    return {
        rate: Why(**{name: float(np.mean([each[name] for each in seeds])) for name in seeds[0]})
        for rate, seeds in zip(rates, by_rate, strict=True)
    }
