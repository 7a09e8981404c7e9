"""Measured requests with other arrivals, simulated: how far a few repeats may be from what the next would say.

Repeats on a real engine take half an hour each, and above capacity two draws of arrivals differ by more than the
requests of one. So the requests of each repeat, with what was predicted of them, come again in another order and at
other times, on the engine whose steps were measured. Every order has the same draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.simulator_error.study import fitted, load_said, logged, order_said, replayed
from lengthwise.bench.evidence.plan import STOCK
from lengthwise.bench.evidence.store import under_load
from lengthwise.errors import InputError
from lengthwise.simulator import Fleet, simulate
from lengthwise.workloads.arrivals import generator, poisson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from lengthwise.bench.evidence.store import Result, Store
    from lengthwise.simulator import EngineSpec

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Drawn:
    """An order beside FCFS: ratios of latencies, its own over FCFS's, simulated draw by draw, and as measured."""

    load: str
    order: str
    mean: Sequence[float]
    per_token: Sequence[float]
    p99: Sequence[float]
    measured: Sequence[tuple[float, float, float]]
    """Mean, per token and p99 in each repeat that was measured."""


def draw_again(
    store: Store,
    draws: int,
    *,
    seed: int = 0,
    engine: EngineSpec | None = None,
    on_draw: Callable[[str, float], None] = lambda *_: None,
) -> list[Drawn]:
    """So many draws of each order that was measured under a load beside stock vLLM."""
    if draws < 1:
        raise InputError(f"{draws} draws", source="--draws", hint="give at least 1")
    results = store.results()
    groups = under_load(results)
    logs = logged(store, results)
    specs = {setting: engine or fitted(store, logs[setting]) for setting in {setting for setting, _ in groups}}
    found = []
    for place, ((setting, _), orders) in enumerate(sorted(groups.items())):
        stock = next((runs for (policy, _), runs in orders.items() if policy == STOCK), {})
        base: dict[tuple[int, int], Floats] = {}
        for (policy, _), runs in orders.items():
            pairs = {r: run for r, run in runs.items() if r in stock and len(run.requests) == len(stock[r].requests)}
            if policy != STOCK and pairs:
                on_draw(next(iter(pairs.values())).cell.id, place / len(groups))
                found.append(_order(pairs, stock, base, range(draws), seed, specs[setting]))
    if not found:
        hint = "measure one with `lengthwise bench engine` first"
        raise InputError("holds no order beside stock vLLM under a load", source=store.folder, hint=hint)
    return found


def _order(
    runs: Mapping[int, Result],
    stock: Mapping[int, Result],
    base: dict[tuple[int, int], Floats],
    draws: Sequence[int],
    seed: int,
    spec: EngineSpec,
) -> Drawn:
    """One order; `base` keeps what FCFS does with each repeat's draws, for the next."""
    repeats = sorted(runs)
    ratios = []
    for draw in draws:
        repeat = repeats[draw % len(repeats)]
        if (repeat, draw) not in base:
            base[repeat, draw] = _simulated(stock[repeat], draw, seed, spec)
        ratios.append(_ratios(_simulated(runs[repeat], draw, seed, spec), base[repeat, draw]))
    measured = [_ratios(*(np.stack([run.e2e_s, run.per_token_s]) for run in (runs[r], stock[r]))) for r in repeats]
    cell = runs[repeats[0]].cell
    mean, per_token, p99 = zip(*ratios, strict=True)
    return Drawn(load_said(cell), order_said(cell), mean, per_token, p99, measured)


def _simulated(result: Result, draw: int, seed: int, spec: EngineSpec) -> Floats:
    """E2E and per-token latencies of a cell's requests, come as the draw has them."""
    workload, predicted = replayed(result)
    rng = generator(seed, f"draw {draw}")
    rows = rng.permutation(len(workload))
    arrival = poisson(len(workload), float(result.told["rate"]), rng)
    again = workload.take(rows, arrival_s=arrival)
    outcome = simulate(again, Fleet((spec,)), result.cell.policy, predictor=predicted.take(rows))
    e2e = outcome.finish - outcome.arrival
    return np.stack([e2e, e2e / outcome.output_tokens])


def _ratios(ours: Floats, base: Floats) -> tuple[float, float, float]:
    """Of the means of E2E and per-token latency, and of the p99 of E2E; failed requests are in none."""
    mean, per_token = np.nanmean(ours, axis=1) / np.nanmean(base, axis=1)
    return float(mean), float(per_token), float(np.nanquantile(ours[0], 0.99) / np.nanquantile(base[0], 0.99))
