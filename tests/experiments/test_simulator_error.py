"""Simulator beside measurement: a simulated run is reproduced exactly, and drift of the machine is separated."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.simulator_error import (
    STUDY,
    Comparison,
    MachineTime,
    SimulatorErrorGrid,
    compare,
    draw_again,
    measure,
    swaps,
)
from experiments.study import Run
from lengthwise.bench.evidence.plan import Cell
from lengthwise.bench.evidence.store import Store
from lengthwise.engines.fit import engine_spec
from lengthwise.engines.steps import COLUMNS, write_steps
from lengthwise.errors import InputError
from lengthwise.reports.tables import to_json
from lengthwise.simulator import Fleet, Spread, StepCost, predict_workload, simulate
from lengthwise.simulator.tasks import ResultCache
from lengthwise.workloads import Workload
from tests.engines.test_fit import FACTS, TRUE, steps

SCALE = 0.15
TOLD = {"slots": FACTS.max_num_seqs, "cap": 256, "rate": 1.3}


@dataclass
class Measured:
    """A folder of cells which the simulator measured, on engines of which some may be slower than others."""

    store: Store

    def add(self, policy: str, predictor: str, *, slower: float = 1.0, stock: bool = False, setting: str = "a") -> None:
        cell = Cell(setting, policy, predictor, 1.1)
        cost = StepCost(**{name: slower * value for name, value in asdict(TRUE).items()})
        workload = traffic()
        found = predict_workload(workload, "oracle" if predictor in ("oracle", "none") else predictor)
        predicted = found if predictor in ("oracle", "none") else replace(found, mu=found.mu + np.log(SCALE))
        columns = {"prediction_mu": predicted.mu, "prediction_sigma": predicted.sigma}
        if stock:
            columns = dict.fromkeys(columns, np.full(len(workload), np.nan))
        outcome = simulate(workload, Fleet((engine_spec("true", cost, FACTS),)), policy, predictor=predicted)
        self.store.fresh(cell)
        table = pa.table(
            {
                "row": np.arange(len(workload)),
                "sent_s": workload.arrival_s + 5.0,
                "first_token_s": outcome.first_token + 5.0,
                "finished_s": outcome.finish + 5.0,
                "prompt_tokens": workload.input_tokens,
                "output_tokens": workload.output_tokens,
                "true_tokens": workload.output_tokens,
                "prompt": workload.table["prompt"],
                **columns,
            }
        )
        self.store.write(cell, TOLD, table)
        if not stock:
            log(self.store.place(cell) / "steps.parquet", cost, seed=len(policy))


def log(path: Path, cost: StepCost, seed: int) -> None:
    """Steps one after the other, more of them than any run here takes."""
    seen = steps(cost, n=1000, seed=seed)
    known = {name: getattr(seen, name) for name in COLUMNS if hasattr(seen, name)}
    known["start_s"] = 1e9 + np.cumsum(seen.seconds) - seen.seconds
    write_steps(path, np.stack([known.get(name, np.zeros(len(seen))) for name in COLUMNS], axis=1), FACTS)


def traffic() -> Workload:
    rng = np.random.default_rng(3)
    n = 80
    columns: dict[str, Any] = {
        "arrival_s": np.sort(rng.uniform(0, 60, n)),
        "input_tokens": rng.integers(20, 900, n),
        "output_tokens": np.clip(rng.lognormal(4.0, 0.8, n).astype(int), 1, 256),
        "max_tokens": np.full(n, 256),
        "prompt": [f"Question {row}: " + "what is it? " * int(rng.integers(1, 60)) for row in range(n)],
        "llm": ["meta-llama/Llama-3.1-8B-Instruct"] * n,
    }
    return Workload.from_table(columns, name="drawn")


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    store = Store(tmp_path / "evidence")
    store.begin({"cap": 256, "slots": 4})
    return Measured(store)


def test_a_simulated_run_is_reproduced_for_every_policy(measured: Measured) -> None:
    measured.add("fcfs", "none", stock=True)
    for policy, predictor in (("sjf", "fast"), ("lengthwise", "fast"), ("sjf", "oracle")):
        measured.add(policy, predictor)
    found = compare(measured.store)
    assert len(found) == 4
    for one in found:
        assert [abs(one.error(figure)) for figure in ("mean", "p50", "p99")] == pytest.approx([0, 0, 0], abs=2e-3)
    assert swaps(found) == []
    assert {one.order for one in found} == {"fcfs (stock)", "sjf, fast", "sjf, oracle", "lengthwise, fast"}


def test_a_slower_machine_is_separated_from_an_error_of_the_simulator(measured: Measured) -> None:
    measured.add("sjf", "oracle", slower=1.25)
    measured.add("lengthwise", "oracle")
    slow = next(one for one in compare(measured.store) if one.order == "sjf, oracle")
    assert slow.slower == pytest.approx(0.25, rel=1e-3)
    assert slow.error("mean") < -0.15
    assert [slow.error(figure, paced=True) for figure in ("mean", "p50", "p99")] == pytest.approx([0] * 3, abs=2e-3)


def test_a_setting_is_simulated_with_its_own_steps(measured: Measured) -> None:
    for setting, slower in (("a", 1.0), ("b", 1.25)):
        measured.add("fcfs", "none", stock=True, setting=setting, slower=slower)
        for policy in ("sjf", "lengthwise"):
            measured.add(policy, "oracle", setting=setting, slower=slower)
    assert [abs(one.error("mean")) for one in compare(measured.store)] == pytest.approx([0] * 6, abs=2e-3)
    drawn = {one.load: one for one in draw_again(measured.store, 2) if one.order == "sjf, oracle"}
    assert drawn["(a) load 1.1"].mean != drawn["(b) load 1.1"].mean


def test_a_cell_is_never_simulated_with_its_own_steps(measured: Measured) -> None:
    measured.add("sjf", "oracle")
    with pytest.raises(InputError, match=r"no cell besides a-1\.1-sjf-oracle-r0"):
        compare(measured.store)
    (found,) = compare(measured.store, engine=engine_spec("given", TRUE, FACTS))
    assert found.error("mean") == pytest.approx(0.0, abs=1e-9)


def test_failed_requests_are_left_out(measured: Measured) -> None:
    measured.add("sjf", "oracle")
    measured.add("fcfs", "oracle")
    cell = Cell("a", "sjf", "oracle", 1.1)
    result = measured.store.read(cell)
    broken = result.requests["finished_s"].to_numpy().copy()
    broken[-5:] = np.nan
    table = result.requests.set_column(result.requests.column_names.index("finished_s"), "finished_s", pa.array(broken))
    measured.store.write(cell, TOLD, table)
    one = next(one for one in compare(measured.store) if one.cell == cell.id)
    assert np.isfinite([one.measured.mean, one.simulated.mean]).all()


def test_pairs_in_another_order_are_named_with_their_difference() -> None:
    def cell(order: str, measured: float, simulated: float, repeat: int = 0) -> Comparison:
        seen, made = (Spread(mean, mean, mean, mean) for mean in (measured, simulated))
        return Comparison(order, order, "(a) load 1.1", repeat, seen, made)

    cells = [cell("sjf", 10.0, 13.0), cell("fcfs", 12.0, 12.5), cell("tie", 9.0, 9.0), cell("tie", 1.0, 99.0, 1)]
    (swap,) = swaps(cells)
    assert (swap.faster, swap.slower) == ("sjf", "fcfs")
    assert swap.difference == pytest.approx(0.2)


def test_other_draws_have_the_same_requests_for_every_order_and_lie_around_the_measured_ratio(
    measured: Measured,
) -> None:
    measured.add("fcfs", "none", stock=True)
    measured.add("sjf", "oracle")
    measured.add("lengthwise", "fast")
    found = draw_again(measured.store, 6)
    assert {one.order for one in found} == {"sjf, oracle", "lengthwise, fast"}
    assert found == draw_again(measured.store, 6)
    shorter_first = next(one for one in found if one.order == "sjf, oracle")
    assert len(set(shorter_first.mean)) == 6
    assert max(shorter_first.mean) < 1.0
    ours, stock = (measured.store.read(Cell("a", *order, 1.1)).e2e_s for order in (("sjf", "oracle"), ("fcfs", "none")))
    assert shorter_first.measured[0][0] == pytest.approx(ours.mean() / stock.mean())
    assert draw_again(measured.store, 6, seed=1) != found


def test_nothing_is_drawn_where_there_is_nothing_to_compare(measured: Measured) -> None:
    measured.add("sjf", "oracle")
    with pytest.raises(InputError, match="no policy beside stock vLLM"):
        draw_again(measured.store, 3)
    with pytest.raises(InputError, match="0 draws"):
        draw_again(measured.store, 0)


def test_tables_and_json_hold_every_cell_and_the_draws(measured: Measured, tmp_path: Path) -> None:
    measured.add("fcfs", "none", stock=True)
    measured.add("sjf", "oracle")
    measured.add("lengthwise", "oracle")
    run = Run(ResultCache(tmp_path / "cache"))
    grid = SimulatorErrorGrid(results=measured.store.folder, draws=2)
    output = STUDY.output(measure(run, grid))
    errors, order, draws = output.tables
    assert "of 3 cells, the mean is within 10% in 3, the p99 within 20% in 3" in errors.notes
    assert "the order of policies by mean E2E latency is the same in all" in order.notes[0]
    assert len(draws.rows) == 2
    facts = json.loads(to_json(output.facts))
    assert [len(one["mean"]) for one in facts["draws"]] == [2, 2]
    assert len(facts["cells"]) == 3
    assert facts["swaps"] == []
    assert STUDY.needs(grid) is None


def test_a_folder_without_cells_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no finished cell"):
        measure(Run(ResultCache(tmp_path / "cache")), SimulatorErrorGrid(results=tmp_path))
    assert "needs measured runs" in (STUDY.needs(SimulatorErrorGrid(results=tmp_path / "missing")) or "")


SECOND = StepCost(1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def step_log(begin: list[float], took: list[float]) -> pa.Table:
    ones = np.ones(len(begin))
    return pa.table(
        {
            "start_s": np.array(begin),
            "seconds": np.array(took),
            "prompt_tokens": ones,
            "prompt_pairs": ones,
            "decodes": ones,
            "context_tokens": ones,
        }
    )


def test_a_stall_is_no_time_and_a_pause_is() -> None:
    # A step of a second that took four, three seconds of nothing, and one that took half; the last ends at 8.
    time = MachineTime.of(step_log([1000.5, 1007.5], [4.0, 0.5]), SECOND, last_end=8.0)
    clock = np.array([0.0, 0.5, 2.5, 4.5, 7.5, 8.0, 9.0])
    assert time.at(clock).tolist() == pytest.approx([0.0, 0.5, 1.0, 1.5, 4.5, 5.5, 6.5])


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5)), min_size=1, max_size=20),
    st.lists(st.floats(-50, 200), min_size=1, max_size=20),
)
def test_there_and_back_is_the_same_moment(steps: list[tuple[float, float]], moments: list[float]) -> None:
    begin, now = [], 0.0
    for pause, took in steps:
        begin.append(now + pause)
        now += pause + took
    time = MachineTime.of(step_log(begin, [took for _, took in steps]), SECOND, last_end=now)
    clock = np.sort(moments)
    assert time.on_the_clock(time.at(clock)) == pytest.approx(clock, abs=1e-5)
    assert (np.diff(time.at(clock)) >= 0).all()
