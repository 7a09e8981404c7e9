"""What the simulator would have foretold of measured cells: the same arrivals, prompts, lengths, policy and predictions.

Its cost model is fitted on the logged steps of the setting's other cells, never on those of the one it is compared
with; or it is an engine's file. Compared are mean, p50 and p99 of E2E latency, and the order in which they put the
policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from experiments.simulator_error.machine_time import MachineTime
from lengthwise.bench.evidence.plan import Cell, predictor_label
from lengthwise.bench.evidence.store import Result, Store
from lengthwise.engines.fit import STALL, StepTimes, engine_spec, fit_cost
from lengthwise.engines.steps import EngineFacts, read_steps
from lengthwise.errors import InputError
from lengthwise.simulator import EngineSpec, Fleet, RequestPredictions, Spread, StepCost, simulate
from lengthwise.workloads import Workload

if TYPE_CHECKING:
    import pyarrow as pa

MEAN_WITHIN, P99_WITHIN = 0.10, 0.20
"""How near the simulator is to come: shares of the measured figure."""


@dataclass(frozen=True, eq=False)
class Log:
    """The steps of one cell, and the engine that took them."""

    table: pa.Table
    facts: EngineFacts

    @cached_property
    def times(self) -> StepTimes:
        """As the fit reads them."""
        return StepTimes.of(self.table)


@dataclass(frozen=True)
class Foretold:
    """One measured cell and what the simulator says of it; E2E latency in seconds."""

    cell: str
    order: str
    """Policy and predictor."""
    load: str
    """Setting and load."""
    repeat: int
    measured: Spread
    simulated: Spread
    slower: float = math.nan
    """The machine in this cell over that of the fit, by the cell's own steps, less 1; NaN where none were logged."""
    paced: Spread | None = None
    """Simulated once more in the machine's own time, every step as much slower or faster as the machine was just then.
    That looks at the cell itself, and so foretells nothing; it tells the simulator's error from the machine's."""

    def error(self, figure: str, *, paced: bool = False) -> float:
        """Simulated over measured, less 1; NaN where it was not simulated."""
        simulated = self.paced if paced else self.simulated
        return float(getattr(simulated, figure, math.nan) / getattr(self.measured, figure) - 1.0)


@dataclass(frozen=True)
class Swap:
    """Two orders that the simulator puts the other way round than the engine did, by mean E2E latency."""

    load: str
    repeat: int
    faster: str
    """As measured."""
    slower: str
    apart: float
    """Measured: the slower over the faster, less 1."""


def foretell(
    store: Store, *, engine: EngineSpec | None = None, on_cell: Callable[[str, float], None] = lambda *_: None
) -> list[Foretold]:
    """Replay every measured cell; an InputError where there is none, or nothing to fit on."""
    results = store.results()
    if not results:
        raise InputError("holds no finished cell", source=store.folder, hint="run `lengthwise bench engine` first")
    settings = logged(store, results)
    found = []
    for number, result in enumerate(results):
        on_cell(result.cell.id, number / len(results))
        name, logs = result.cell.id, settings[result.cell.setting]
        others = {cell: log for cell, log in logs.items() if cell != name}
        spec = engine or replace(fitted(store, others, f"beside {name} "), max_num_seqs=int(result.told["slots"]))
        found.append(_foretell(result, spec, logs.get(name)))
    return found


def logged(store: Store, results: Sequence[Result]) -> dict[str, dict[str, Log]]:
    """The steps of every cell that logged them, by setting: another samples otherwise, and takes its time for that."""
    found: dict[str, dict[str, Log]] = {result.cell.setting: {} for result in results}
    for cell in (result.cell for result in results):
        path = store.place(cell) / "steps.parquet"
        if path.is_file():
            found[cell.setting][cell.id] = Log(*read_steps(path))
    return found


def fitted(store: Store, logs: Mapping[str, Log], but: str = "") -> EngineSpec:
    """The engine whose steps these are; `but` says which cell's are not among them."""
    if not logs:
        hint = "measure a policy other than fcfs too, or give --engine"
        raise InputError(f"no cell {but}has a log of steps to fit on", source=store.folder, hint=hint)
    paced = store.settings.get("at_once", 1) > 1  # then nothing stalls that is not made up for: all of it is time
    cost = fit_cost(StepTimes.joined([log.times for log in logs.values()]), math.inf if paced else STALL).cost
    return engine_spec("fitted", cost, next(iter(logs.values())).facts)


def order_said(cell: Cell) -> str:
    """Policy and predictor."""
    return "fcfs (stock)" if cell.stock else f"{cell.policy}, {predictor_label(cell.predictor)}"


def load_said(cell: Cell) -> str:
    """Setting and load."""
    return f"({cell.setting}) " + ("offline" if cell.load is None else f"load {cell.load:g}")


def _foretell(result: Result, spec: EngineSpec, log: Log | None) -> Foretold:
    cell = result.cell
    workload, predicted = replayed(result)
    simulated = simulate(workload, Fleet((spec,)), cell.policy, predictor=predicted).summary.e2e_s
    found = Foretold(cell.id, order_said(cell), load_said(cell), cell.repeat, Spread.of(result.e2e_s), simulated)
    if log is None or not isinstance(spec.cost, StepCost):
        return found
    own = log.times
    slower = float(own.seconds.sum() / own.at(spec.cost).sum()) - 1.0
    sent = result.column("sent_s")
    last = float(np.nanmax(result.column("finished_s")) - np.nanmin(sent))  # the first is sent at 0
    time = MachineTime.of(log.table, spec.cost, last)
    arrival = time.at(workload.arrival_s)
    moved = workload.replace(arrival_s=arrival - arrival[0])
    outcome = simulate(moved, Fleet((spec,)), cell.policy, predictor=predicted)
    finish = time.on_the_clock(outcome.finish + arrival[0])
    return replace(found, slower=slower, paced=Spread.of(finish - workload.arrival_s))


def replayed(result: Result) -> tuple[Workload, RequestPredictions]:
    """The cell's requests as they were sent and answered, and what was predicted of them as they came.

    Requests that failed are in no figure, and are left out. What the engine learns online is not known here.
    """
    missing = [name for name in ("prompt_tokens", "prediction_mu") if name not in result.requests.column_names]
    if missing or "cap" not in result.told:
        raise InputError("was measured by an earlier version", source=result.cell.id, hint="measure it again")
    answered = np.flatnonzero(~np.isnan(result.e2e_s))
    rows = answered[np.argsort(result.column("sent_s")[answered], kind="stable")]
    sent = result.column("sent_s")[rows]
    lengths, caps = result.column("output_tokens")[rows], np.full(len(rows), float(result.told["cap"]))
    workload = Workload.from_table(
        {
            "arrival_s": sent - (sent[0] if len(sent) else 0.0),
            "input_tokens": result.column("prompt_tokens")[rows].astype(np.int64),
            "output_tokens": lengths.astype(np.int64),
            "max_tokens": caps.astype(np.int64),
        },
        name=result.cell.id,
    )
    mu, sigma = (result.column(name)[rows] for name in ("prediction_mu", "prediction_sigma"))
    one_llm = np.full(len(rows), "", dtype=object)
    return workload, RequestPredictions(result.cell.predictor, mu, sigma, caps, one_llm, lengths)


def swaps(found: Sequence[Foretold]) -> list[Swap]:
    """Every pair of orders under the same traffic that the simulator puts the other way round."""
    pairs = []
    for one, other in combinations(found, 2):
        if (one.load, one.repeat) != (other.load, other.repeat):
            continue
        first, second = sorted((one, other), key=lambda each: each.measured.mean)
        if first.simulated.mean > second.simulated.mean:
            apart = second.measured.mean / first.measured.mean - 1.0
            pairs.append(Swap(one.load, one.repeat, first.order, second.order, apart))
    return sorted(pairs, key=lambda pair: -pair.apart)
