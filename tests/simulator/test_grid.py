from __future__ import annotations

import math

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.simulator import Fleet, predict_workload, simulate
from lengthwise.simulator.cluster import as_predictions
from lengthwise.simulator.grid import Plan, run_grid
from lengthwise.workloads import Workload, redraw
from tests.simulator.builders import UNEVEN, fleet, requests

LENGTHS = [(8, 3), (8, 40), (8, 12), (8, 90), (8, 5), (8, 60)] * 10


def draw(seed: int) -> Workload:
    return redraw(requests(LENGTHS, prompt=[f"{i % 6}" for i in range(60)]), requests=60, rate=1.0, seed=seed)


def engines() -> Fleet:
    return fleet(UNEVEN, seqs=4)


def test_every_cell_is_the_plain_simulation_of_its_seed() -> None:
    plan = Plan(engines(), ["fcfs", "sjf"], ["noisy:log=0.5", "oracle"], rates=[9.0], seeds=[4, 5])
    grid = run_grid(plan, draw)
    assert [(cell.policy, cell.predictor) for cell in grid.cells] == [
        ("fcfs", None),
        ("sjf", "noisy:log=0.5"),
        ("sjf", "oracle"),
    ]
    workload = draw(5).replace(arrival_s=draw(5).arrival_s / 9.0)
    alone = simulate(workload, engines(), "sjf", predictor=predict_workload(workload, "noisy:log=0.5", seed=5))
    assert grid.cells[1].outcomes[1].finished_s.tolist() == alone.finished_s.tolist()


def test_load_is_a_share_of_the_capacity_of_each_seed() -> None:
    grid = run_grid(Plan(engines(), ["fcfs"], ["oracle"], loads=[0.5, 1.5], seeds=[0, 1, 2]), draw)
    assert [offered.load for offered in grid.offered_loads] == [0.5, 1.5]
    for cell in grid.cells:
        for seed, outcome, capacity in zip(grid.seeds, cell.outcomes, grid.capacities, strict=True):
            rate = cell.offered.load * capacity.requests_per_s
            np.testing.assert_allclose(outcome.arrival_s * rate, draw(seed).arrival_s)
    light, heavy = grid.cells
    assert light.latency("e2e_s", "mean") < heavy.latency("e2e_s", "mean")


def test_policies_of_a_seed_serve_the_same_requests() -> None:
    grid = run_grid(Plan(engines(), ["fcfs", "sjf", "tie"], ["oracle"], loads=[0.9], seeds=[0, 1]), draw)
    for index in range(2):
        first, *others = (cell.outcomes[index] for cell in grid.cells)
        for other in others:
            assert other.arrival_s.tolist() == first.arrival_s.tolist()
            assert other.output_tokens.tolist() == first.output_tokens.tolist()
    assert grid.cells[0].outcomes[0].arrival_s.tolist() != grid.cells[0].outcomes[1].arrival_s.tolist()


def test_the_gain_captured_is_one_with_true_lengths_and_zero_without_predictions() -> None:
    plan = Plan(engines(), ["fcfs", "sjf"], ["oracle", "none"], loads=[1.3], seeds=range(5))
    fcfs, oracle, none = (grid := run_grid(plan, draw)).cells
    assert grid.gain_captured(oracle, "e2e_s") == 1.0
    assert grid.gain_captured(none, "e2e_s") == pytest.approx(0.0, abs=0.05)  # SJF on equal predictions is FCFS
    assert math.isnan(grid.gain_captured(fcfs, "e2e_s"))
    assert grid.ratio(oracle, "e2e_s", "mean").high < 1


def test_without_fcfs_there_is_no_ratio() -> None:
    grid = run_grid(Plan(engines(), ["sjf"], ["oracle"], loads=[1.3]), draw)
    assert math.isnan(grid.ratio(grid.cells[0], "e2e_s", "mean").ratio)


def test_predictions_of_pooled_seeds_are_those_of_each_seed() -> None:
    grid = run_grid(Plan(engines(), ["fcfs"], ["fast"], loads=[0.5], seeds=[0, 1]), draw)
    for seed, pooled in zip(grid.seeds, grid.predictions["fast"], strict=True):
        np.testing.assert_allclose(pooled.mu, predict_workload(draw(seed), "fast").mu)


def test_a_predictor_that_learns_is_run_again_at_every_load() -> None:
    plan = Plan(engines(), ["sjf"], ["memory"], loads=[0.3, 3.0], seeds=[1])
    grid = run_grid(plan, draw)
    for cell, capacity_share in zip(grid.cells, plan.loads, strict=True):
        rate = capacity_share * grid.capacities[0].requests_per_s
        workload = draw(1).replace(arrival_s=draw(1).arrival_s / rate)
        alone = simulate(workload, engines(), "sjf", predictor=as_predictions(workload, engines(), "memory"))
        assert cell.outcomes[0].finished_s.tolist() == alone.finished_s.tolist()


def test_progress_never_decreases_and_ends_at_one() -> None:
    shares: list[float] = []
    plan = Plan(engines(), ["fcfs", "sjf"], ["oracle", "fast", "memory"], loads=[0.5, 0.9], seeds=[0, 1])
    run_grid(plan, draw, on_progress=lambda _, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_rows_are_labelled_with_their_run() -> None:
    table = run_grid(Plan(engines(), ["fcfs", "sjf"], ["oracle"], loads=[0.5, 0.9], seeds=[0, 1]), draw).to_table()
    assert table.num_rows == 2 * 2 * 2 * 60
    runs = table.select(["seed", "load", "predictor", "policy"]).group_by(["seed", "load", "predictor", "policy"])
    assert runs.aggregate([]).num_rows == 8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rates": [1.0], "loads": [0.5]}, "both"),
        ({"rates": [0.0]}, "above 0"),
        ({"loads": [math.nan]}, "above 0"),
        ({"seeds": []}, "at least 1"),
        ({"predictors": ["orakel"]}, "oracle"),
        ({"policies": ["sfj"]}, "sjf"),
    ],
)
def test_an_invalid_plan_is_an_error(wrong: dict[str, list[float]], message: str) -> None:
    settings = {"policies": ["fcfs"], **wrong}
    with pytest.raises(InputError, match=message):
        Plan(engines(), **settings)  # type: ignore[arg-type]
