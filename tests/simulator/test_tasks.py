"""One simulation, whoever describes it: tasks, their keys, workers and progress."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.reports.compare import compare
from lengthwise.simulator import Pools, predict_workload, simulate
from lengthwise.simulator.grid import Plan, run_grid
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.planning import CapacitySearch
from lengthwise.simulator.tasks import (
    CapacityTask,
    DrawnSetting,
    ResultCache,
    SeedResults,
    SimulationTask,
    Steps,
    TaskRunner,
    code_version,
    content_key,
    in_processes,
)
from tests.simulator.builders import UNEVEN, fleet, requests

WORKLOAD = requests([(8, 3), (8, 40), (8, 12), (8, 90)] * 15, [0.02 * row for row in range(60)])
ENGINES = fleet(UNEVEN, seqs=2)


def test_grid_comparison_plan_and_task_simulate_the_same() -> None:
    alone = simulate(WORKLOAD, ENGINES, "sjf", predictor="history").finished_s.tolist()
    known = predict_workload(WORKLOAD, "history")
    task = SimulationTask(DrawnSetting(WORKLOAD, ENGINES), policy="sjf", predictor=known)
    grid = run_grid(Plan(ENGINES, ["sjf"], ["history"]), lambda _: WORKLOAD)
    compared = compare(["fcfs", "sjf"], workload=WORKLOAD, fleet=ENGINES, predictor="history", accelerate=False)
    search = CapacitySearch(WORKLOAD, ENGINES.engines[0], LatencyLimits(), most=1, router="round_robin")
    (plan,) = search.run(["sjf"])
    outcomes = (task.outcome(), grid.cells[0].outcomes[0], compared.outcomes[1], plan.trials[0].outcome)
    assert [outcome.finished_s.tolist() for outcome in outcomes] == [alone] * 4


def test_the_result_of_a_task_is_the_summary_of_its_outcome() -> None:
    task = SimulationTask(DrawnSetting(WORKLOAD, ENGINES), policy="sjf", predictor="noisy:log=0.5")
    outcome = task.outcome()
    within = float(outcome.within(LatencyLimits()).mean())
    assert task.run() == {"offered_per_s": WORKLOAD.rate, "within_slo": within, **outcome.summary.to_dict()}


def test_predictions_at_hand_and_by_name_are_the_same_simulation() -> None:
    by_name = SimulationTask(DrawnSetting(WORKLOAD, ENGINES, 3), rate=2.0, policy="sjf", predictor="noisy:log=0.5")
    at_hand = replace(by_name, predictor=predict_workload(WORKLOAD, "noisy:log=0.5", seed=3))
    assert at_hand.outcome().finished_s.tolist() == by_name.outcome().finished_s.tolist()


def test_the_key_of_a_task_depends_on_everything_that_changes_its_result() -> None:
    task = SimulationTask(DrawnSetting(WORKLOAD, fleet(UNEVEN, engines=2)))
    others = [
        replace(task, setting=DrawnSetting(WORKLOAD.head(30), fleet(UNEVEN, engines=2))),
        replace(task, setting=DrawnSetting(WORKLOAD, fleet(UNEVEN, engines=2), seed=1)),
        replace(task, setting=DrawnSetting(WORKLOAD, fleet(UNEVEN, engines=3))),
        replace(task, rate=2.0),
        replace(task, policy="sjf"),
        replace(task, router="least_load"),
        replace(task, predictor="history"),
        replace(task, predictor=predict_workload(WORKLOAD, "history")),
        replace(task, predictor=predict_workload(WORKLOAD, "oracle")),
        replace(task, prediction_delay_s=0.1),
        replace(task, pools=Pools(1, 1)),
        replace(task, pools=Pools(1, 1), refresh="oracle"),
    ]
    assert len({each.key for each in (task, *others)}) == 1 + len(others)
    assert replace(task, explain=True, accelerate=False).key == task.key, "the result is the same"
    assert CapacityTask(task.setting).key != task.key


def test_capacity_is_the_same_as_a_task_and_in_this_process() -> None:
    task = CapacityTask(DrawnSetting(WORKLOAD, ENGINES))
    capacity = task.capacity()
    assert task.run() == {"requests_per_s": capacity.requests_per_s, "steady": capacity.steady}


def test_results_by_seed_are_those_of_each_setting(tmp_path: Path) -> None:
    runner = TaskRunner(ResultCache(tmp_path), in_processes(1))
    found = runner.by_seed("numbers", [10, 20], 3, lambda number, seed: WhichProcess(number + seed))
    assert {name: [each["number"] for each in seeds] for name, seeds in found.items()} == {
        10: [10, 11, 12],
        20: [20, 21, 22],
    }
    assert (runner.from_cache, runner.computed) == (0, 6)


def test_a_ratio_over_seeds_is_of_the_figure_that_the_path_names() -> None:
    ours, base = (SeedResults(seeds=tuple({"e2e_s": {"mean": x}} for x in values)) for values in ((2, 8), (1, 1)))
    assert ours.mean("e2e_s", "mean") == 5.0
    assert ours.over(base, "e2e_s", "mean").ratio == pytest.approx(4.0)
    assert ours.over(ours, "e2e_s", "mean") == Ratio(1.0, 1.0, 1.0)
    assert np.isnan(SeedResults(seeds=({"transfer_s": None},)).mean("transfer_s"))
    one, other = (SeedResults(seeds=({"x": x},)) for x in (2, 4))
    assert one.over(other, "x").ratio == 0.5
    assert np.isnan(one.over(other, "x").low), "one seed has no interval"


def test_steps_add_up_to_the_whole() -> None:
    shown: list[tuple[str, float]] = []
    steps = Steps(lambda what, done: shown.append((what, done)), 4)
    first, rest = steps.next("one"), steps.next("three", steps=3)
    first(0.5)
    rest(1.0)
    assert shown == [("one", 0.125), ("three", 1.0)]


@dataclass(frozen=True)
class WhichProcess:
    number: int

    @property
    def key(self) -> str:
        return str(self.number)

    def run(self) -> dict[str, Any]:
        if self.number < 0:
            raise InputError("negative")
        return {
            "number": self.number,
            "process": os.getpid(),
            "dies of ctrl-c": signal.getsignal(signal.SIGINT) is signal.SIG_DFL,
        }


def test_processes_are_kept_for_later_tasks_and_replaced_after_a_failure() -> None:
    workers = in_processes(2)
    first, again = ({found["process"] for _, found in workers([WhichProcess(n) for n in range(9)])} for _ in range(2))
    assert os.getpid() not in first
    assert again <= first or len(first) == 1, "a second process starts when the first is busy"
    with pytest.raises(InputError, match="negative"):
        list(workers([WhichProcess(-1), WhichProcess(1)]))
    found = [each for _, each in workers([WhichProcess(n) for n in range(3)])]
    assert [each["dies of ctrl-c"] for each in found] == [True] * 3, "no traceback of a worker"


def test_cache_keys_depend_on_content_only() -> None:
    one, other = requests([(10, 5)] * 3, [0.0, 1.0, 2.0]), requests([(10, 5)] * 3, [0.0, 1.0, 2.5])
    assert one.content_hash != other.content_hash
    assert one.content_hash == requests([(10, 5)] * 3, [0.0, 1.0, 2.0]).content_hash
    assert content_key(a=1, b=2) == content_key(b=2, a=1) != content_key(a=1, b=3)
    assert code_version() == code_version()
