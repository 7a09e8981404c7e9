"""The simulator as one server against closed formulas of queueing theory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.theory import (
    SIZES,
    STUDY,
    CertainSrpt,
    Formula,
    Jobs,
    PreemptiveSjf,
    Queue,
    TheoryGrid,
    examine,
    formulas,
    serve,
    tables,
)
from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from tests.experiments.samples import check_output


def covered_elsewhere(formula: Formula) -> bool:
    """Return whether the order equals that of another formula, as the next two tests check."""
    srpt = formula.name.startswith("limited SRPT, c = 1 ") and formula.queue.predictions == "perfect"
    return formula.name.startswith("limited SRPT, c = 0 ") or srpt


def grid(formula: Formula) -> TheoryGrid:
    """Return the grid of a formula; heavy tails need more jobs."""
    return TheoryGrid(jobs=20_000, preemptive_jobs=1_250 if formula.queue.sizes == "log-normal" else 625)


def label(formula: Formula) -> str:
    return f"{formula.name}, {formula.queue.sizes}, {formula.queue.predictions}"


@pytest.mark.parametrize("formula", [formula for formula in formulas() if not covered_elsewhere(formula)], ids=label)
def test_the_simulated_mean_is_the_formulas_within_one_percent(formula: Formula) -> None:
    found = examine(formula, grid(formula))
    assert found.half_width / found.mean < 0.0225
    assert abs(found.error) < 0.01


@pytest.mark.parametrize("policy", [PreemptiveSjf(), CertainSrpt(c=1.0), CertainSrpt(c=0.5), make_policy("sjf")])
def test_equal_jobs_are_served_in_order_of_arrival_by_every_policy(policy: PreemptiveSjf) -> None:
    jobs = Jobs.draw(Queue(0.7, "exponential"), 500, seed=3)
    jobs = replace(jobs, size=np.ones(500), predicted=np.ones(500))
    assert serve(jobs, policy).tolist() == serve(jobs, make_policy("fcfs")).tolist()


@pytest.mark.parametrize("predictions", ["perfect", "exponential"])
def test_srpt_without_preemption_is_sjf(predictions: str) -> None:
    """At c = 0 a waiting job can still be overtaken in the queue; otherwise it would be FCFS."""
    jobs = Jobs.draw(Queue(0.7, "exponential", predictions), 500, seed=4)
    assert serve(jobs, CertainSrpt(c=0.0)).tolist() == serve(jobs, make_policy("sjf")).tolist()


def test_trails_formula_gives_the_published_figures() -> None:
    queue = Queue(0.7, "exponential")
    figures = [queue.limited_srpt(c) for c in (1e-9, 0.5, 0.8, 1.0)]
    assert figures == pytest.approx([2.3122, 1.9397, 1.8794, 1.8746], abs=2e-4)


def test_an_exponential_server_has_the_textbook_mean() -> None:
    assert Queue(0.7, "exponential").fcfs() == pytest.approx(1 / 0.3, rel=1e-6)  # M/M/1


@pytest.mark.parametrize("sizes", SIZES)
def test_formulas_agree_in_their_common_special_cases(sizes: str) -> None:
    queue = Queue(0.6, sizes)
    assert queue.limited_srpt(1.0) == pytest.approx(queue.srpt(), rel=2e-3)
    assert queue.limited_srpt(0.0) == pytest.approx(queue.sjf(), rel=2e-3)
    assert queue.srpt() <= queue.preemptive_sjf() <= queue.sjf() * (1 + 1e-12)
    assert queue.sjf() <= queue.fcfs() * (1 + 1e-12)
    assert queue.mean(queue.jobs[0]) == pytest.approx(1.0, rel=1e-4)


def test_worse_predictions_make_worse_orders_but_never_a_worse_fcfs() -> None:
    perfect, noisy = Queue(0.7, "exponential"), Queue(0.7, "exponential", "exponential")
    assert noisy.fcfs() == pytest.approx(perfect.fcfs(), rel=1e-3)
    assert perfect.sjf() < noisy.sjf() < perfect.fcfs()
    assert perfect.limited_srpt(0.8) < noisy.limited_srpt(0.8)


def test_control_variates_narrow_the_interval() -> None:
    """SRPT and FCFS deviate on the same jobs: with the controls the interval is several times as narrow."""
    formula = Formula("SRPT", CertainSrpt(c=1.0), Queue(0.7, "exponential"), Queue(0.7, "exponential").srpt())
    found = examine(formula, TheoryGrid(runs=10, preemptive_jobs=500))
    runs = [Jobs.draw(formula.queue, 500, seed).response(formula.policy) for seed in range(10)]
    assert found.half_width < 0.5 * (max(runs) - min(runs))


def test_a_result_is_a_row_of_the_table() -> None:
    queue = Queue(0.7, "exponential")
    found = examine(Formula("FCFS", make_policy("fcfs"), queue, queue.fcfs()), TheoryGrid(runs=5, jobs=500))
    assert [row[0] for row in tables([found])[0].rows] == ["FCFS"]
    check_output(STUDY.output([found]))


@pytest.mark.parametrize("wrong", [{"load": 1.0}, {"load": 0.0}, {"runs": 2}])
def test_a_grid_without_a_mean_or_an_interval_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        TheoryGrid(**wrong)  # type: ignore[arg-type]
