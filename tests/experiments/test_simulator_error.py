"""Simulated against measured episodes: episodes made by the simulator are reproduced exactly."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

from experiments.simulator_error import STUDY, SimulatorErrorGrid, by_arm, compare, fitted, swaps, tables
from experiments.study import Run
from lengthwise.bench.episodes import FCFS, ORACLE, Arm, Kind, TrafficPlan, turns
from lengthwise.bench.store import SCHEMA, BenchStore
from lengthwise.errors import InputError
from lengthwise.simulator import Fleet, simulate
from lengthwise.simulator.fit import engine_spec, write_fitted
from lengthwise.simulator.step_log import COLUMNS, write_steps
from lengthwise.simulator.tasks import ResultCache
from lengthwise.workloads import Workload
from tests.simulator.test_fit import FACTS, TRUE, steps

ARMS = (Arm(FCFS), Arm("sjf", ORACLE))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two simulated blocks stored as measurements, and the engine that they ran on."""
    spec = engine_spec("true", TRUE, FACTS)
    write_fitted(tmp_path / "engine.yaml", spec, "")
    store = BenchStore(tmp_path)
    store.update({"traffic": asdict(TrafficPlan(cap=100)), "requests": 40})
    for block in turns([Kind.of("burst")], ARMS, 2):
        rng = np.random.default_rng(block[0].block)
        columns = {
            "arrival_s": np.sort(rng.uniform(0, 5, 40)),
            "input_tokens": rng.integers(1, 50, 40),
            "output_tokens": rng.integers(1, 100, 40),
            "max_tokens": np.full(40, 100),
        }
        workload = Workload.from_table(
            {**columns, "arrival_s": columns["arrival_s"] - columns["arrival_s"][0]}, name="w"
        )
        found = []
        for turn in block:
            outcome = simulate(workload, Fleet((spec,)), turn.arm.policy, predictor="oracle")
            known = {
                **{name: [0] * 40 for name in SCHEMA.names},
                "kind": ["burst"] * 40,
                "block": [turn.block] * 40,
                "request": list(range(40)),
                "policy": [turn.arm.policy] * 40,
                "predictor": [turn.arm.predictor] * 40,
                "arrival_s": outcome.arrival_s,
                "finished_s": outcome.finished_s,
                "first_token_s": outcome.first_token_s,
                "input_tokens": columns["input_tokens"],
                "output_tokens": columns["output_tokens"],
            }
            facts = {"kind": "burst", "block": turn.block, "place": turn.place, **asdict(turn.arm)}
            found.append(({**facts, "began": 0.0, "makespan_s": 1.0}, pa.table(known, schema=SCHEMA)))
        store.add([each[0] for each in found], pa.concat_tables([each[1] for each in found]))
    return tmp_path


def run(tmp_path: Path) -> Run:
    return Run(ResultCache(tmp_path / "cache"))


def test_episodes_of_the_simulator_are_reproduced(folder: Path) -> None:
    grid = SimulatorErrorGrid(folder, folder / "engine.yaml")
    found = compare(run(folder), grid)
    assert len(found) == 4
    for each in found:
        assert each.simulated.mean == pytest.approx(each.measured.mean, rel=1e-6)
        assert each.simulated.p99 == pytest.approx(each.measured.p99, rel=1e-6)
    table = tables(found)[0]
    assert "in 2, the p99 within 10% in 2" in table.notes[0]
    assert "the same" in table.notes[1]


@pytest.mark.parametrize("fit", ["all", "policy"])
def test_a_block_is_simulated_with_the_steps_of_the_others_of_all_policies_or_of_its_own(
    tmp_path: Path, fit: Literal["all", "policy"]
) -> None:
    speeds = {("fcfs", 0): 1.0, ("sjf", 0): 2.0, ("fcfs", 1): 3.0, ("sjf", 1): 5.0}
    store, logged = BenchStore(tmp_path), []
    for number, ((policy, block), speed) in enumerate(speeds.items()):
        began, seen = 1e6 * number, steps(TRUE, seed=number)
        content = (seen.prompt_tokens, seen.prompt_pairs, seen.decodes, seen.context_tokens)
        rest = np.zeros((len(COLUMNS) - 6, len(seen)))
        logged.append(np.stack([began + np.arange(len(seen)), speed * seen.seconds, *content, *rest], axis=1))
        facts = {"kind": "burst", "block": block, "began": began, "makespan_s": float(len(seen)), "policy": policy}
        store.add([facts], SCHEMA.empty_table())
    write_steps(store.steps, np.concatenate(logged), FACTS)
    spec_of = fitted(store, SimulatorErrorGrid(tmp_path, fit=fit))
    cost = {key: spec_of(*key).cost.step_s(contexts=[100]) / TRUE.step_s(contexts=[100]) for key in speeds}
    if fit == "policy":
        assert cost == pytest.approx({("fcfs", 0): 3.0, ("sjf", 0): 5.0, ("fcfs", 1): 1.0, ("sjf", 1): 2.0}, rel=1e-4)
    else:
        assert cost["fcfs", 0] == cost["sjf", 0]
        assert 3.0 < cost["fcfs", 0] < 5.0
        assert 1.0 < cost["sjf", 1] < 2.0


def test_pairs_that_the_simulator_orders_differently_are_listed() -> None:
    figures = {("burst", "a"): {"mean": (1.0, 2.0)}, ("burst", "b"): {"mean": (1.1, 1.5)}}
    assert [each[:3] for each in swaps(figures)] == [("burst", "a", "b")]
    assert not swaps({("burst", "a"): {"mean": (1.0, 2.0)}, ("steady", "b"): {"mean": (1.1, 1.5)}})
    assert by_arm([]) == {}


def test_a_folder_without_episodes_is_an_input_error_and_is_named_by_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no complete block"):
        compare(run(tmp_path), SimulatorErrorGrid(tmp_path))
    assert STUDY.needs is not None
    assert str(tmp_path) in (STUDY.needs(SimulatorErrorGrid(tmp_path)) or "")
