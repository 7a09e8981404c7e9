"""Two classes on one engine: interactive requests beside a batch that fills every slot.

One simulated engine (Llama-3-8B on an A100, 32 slots), CASTILLO's lengths of Llama-3.1-8B cut at 4,096. A batch waits
from the start, enough for the whole time; interactive requests arrive at 30 % of the engine's capacity, Poisson.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from experiments.frontier import CUT, ENGINE, LLM, load_samples, predictions_of
from experiments.study import Run, SeededGrid, Study, table_of
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.reports.tables import Table
from lengthwise.simulator import Fleet, measure_capacity, simulate
from lengthwise.workloads import Workload, castillo_workload

SLOTS: Final = 32
SHARE: Final = 0.3  # of the capacity: interactive
LIMIT_S: Final = 1.0
NO_CLASSES: Final = "fcfs, no classes"
POLICIES: Final = {
    NO_CLASSES: "fcfs",
    "fcfs": "fcfs",
    "lengthwise": "lengthwise",
    "classes(lengthwise)": "classes(lengthwise)",
    f"classes(ontime:ttft={LIMIT_S:g})": f"classes(ontime:ttft={LIMIT_S:g})",
}
"""By label; all but the first with a priority for each class."""


@dataclass(frozen=True)
class ClassesGrid(SeededGrid):
    """Seeds, the predictor, and the interactive requests of a run."""

    seeds: int = 20
    first_seed: int = 200
    predictor: str = "noisy:0.55"
    requests: int = 600


def mixed(requests: int, predictor: str, seed: int) -> tuple[Fleet, Workload]:
    """Return the engine, and interactive requests (priority 0) beside a batch (priority 10) that waits already."""
    fleet = Fleet.parse(ENGINE).limited_to(max_num_seqs=SLOTS)

    def draw(count: int, rate: float, number: int) -> Workload:
        return castillo_workload(
            load_samples(predictor), LLM, requests=count, rate=rate, seed=2 * number, max_tokens=CUT
        )

    batch = draw(int(requests * (1 - SHARE) / SHARE), 1.0, seed)
    rate = SHARE * measure_capacity(batch, fleet).requests_per_s
    batch = batch.replace(arrival_s=np.zeros(len(batch)), priority=10, request_class="batch")
    interactive = draw(requests, rate, 10_000 + seed).replace(request_class="interactive")
    both = pa.concat_tables([batch.table, interactive.table]).sort_by("arrival_s")
    return fleet, Workload.from_table(both, name="interactive and batch", block_size=batch.block_size)


def classes_seed(requests: int, predictor: str, seed: int) -> dict[str, Any]:
    """Simulate every policy; return the figures of `Served`, of one seed."""
    fleet, workload = mixed(requests, predictor, seed)
    predictions = predictions_of(workload, predictor, seed)
    interactive = np.array(workload.table["request_class"].to_pylist()) == "interactive"
    end = float(workload.arrival_s.max())  # while both are there
    found = {}
    for label, spec in POLICIES.items():
        sent = workload.replace(priority=0) if label == NO_CLASSES else workload
        outcome = simulate(sent, fleet, spec, predictor=predictions)
        ttft = outcome.latencies["ttft_s"][interactive]
        done = ~interactive & (outcome.finished_s <= end)
        again = float(outcome.recomputed_tokens.sum()) / float(outcome.output_tokens.sum())
        found[label] = [
            float(np.mean(ttft <= LIMIT_S)),
            float(np.quantile(ttft, 0.99)),
            float(outcome.output_tokens[done].sum()) / end,
            float(outcome.summary.output_tokens_per_s),
            again,
        ]
    return found


@dataclass(frozen=True)
class Served:
    """A policy, over seeds."""

    policy: str
    in_time: float
    ttft_p99_s: float
    batch: Ratio
    """Tokens/s of the batch while interactive requests arrive, over those of FCFS with classes."""
    tokens: Ratio
    """Tokens/s of all, to drain, over FCFS without classes."""
    again: float
    """Tokens computed again after preemptions, over output tokens."""


def measure(run: Run, grid: ClassesGrid) -> list[Served]:
    """Simulate every seed."""
    seeds = range(grid.first_seed, grid.first_seed + grid.seeds)
    runs = run.each("classes", classes_seed, [(grid.requests, grid.predictor, seed) for seed in seeds])
    columns = {label: np.transpose([each[label] for each in runs]).tolist() for label in POLICIES}
    return [
        Served(
            label,
            float(np.mean(mine[0])),
            float(np.mean(mine[1])),
            over_seeds(mine[2], columns["fcfs"][2]),
            over_seeds(mine[3], columns[NO_CLASSES][3]),
            float(np.mean(mine[4])),
        )
        for label, mine in columns.items()
    ]


def tables(found: list[Served]) -> list[Table]:
    """One row per policy."""
    columns: list[tuple[str, Callable[[Served], object]]] = [
        ("policy", lambda at: at.policy),
        (f"first token within {LIMIT_S:g} s", lambda at: f"{at.in_time:.1%}"),
        ("p99 of TTFT, s", lambda at: f"{at.ttft_p99_s:.2f}"),
        ("tokens/s of the batch", lambda at: at.batch),
        ("tokens/s of all", lambda at: at.tokens),
        ("computed again", lambda at: f"{at.again:.1%}"),
    ]
    notes = [
        "TTFT of interactive requests; tokens/s of the batch while these arrive, over fcfs with classes",
        "tokens/s of all to drain, over fcfs without classes; 95 % intervals over seeds",
    ]
    return [table_of("Interactive requests beside a batch", found, columns, notes)]


def answer(found: list[Served]) -> str:
    """What the wrapper changes."""
    by_name = {at.policy: at for at in found}
    without, ours = by_name["lengthwise"], by_name["classes(lengthwise)"]
    return (
        f"Interactive requests with a first token within {LIMIT_S:g} s: {by_name[NO_CLASSES].in_time:.0%} without "
        f"classes, {without.in_time:.0%} with priority among waiting requests, {ours.in_time:.0%} with "
        f"classes(lengthwise), at {ours.tokens.ratio:.2f} of the throughput."
    )


STUDY: Study[ClassesGrid, list[Served]] = Study(
    name="classes",
    title="Interactive requests beside a batch",
    question="How fast are interactive requests beside a batch that fills every slot, and what does it cost the batch?",
    source="CASTILLO",
    grid=ClassesGrid(),
    quick=ClassesGrid(seeds=2, requests=200),
    minutes=(3, 0.3),
    measure=measure,
    tables=tables,
    answer=answer,
)
