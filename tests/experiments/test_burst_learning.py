"""A burst's own answers, learned from as they finish and in the order in which their requests started."""

from __future__ import annotations

from dataclasses import replace

from experiments.burst_learning import ALONE, ARMS, BY_END, BY_START, Learned, answer, burst, tables
from experiments.frontier import Gains
from experiments.slots import STEPS, fitted
from lengthwise.intervals import Ratio
from lengthwise.simulator import Fleet


def test_learning_as_answers_finish_costs_tau_and_learning_in_order_of_start_does_not() -> None:
    fleet = Fleet((replace(fitted(STEPS), max_num_seqs=32),))
    found = burst(288, "fast", 0, fleet)
    tau = dict(zip(ARMS, found["tau"], strict=True))
    assert tau[BY_END] < tau[ALONE] - 0.03
    assert tau[BY_START] > tau[ALONE] - 0.03


def test_the_table_and_the_answer_show_each_way_of_learning() -> None:
    ratio = Ratio(1.1, 1.0, 1.2)
    gains = Gains(ratio, ratio, ratio, ratio, in_time=1.0)
    found = [Learned(288, "fast", arm, 0.1 * place, gains) for place, arm in enumerate(ARMS)]
    (table,) = tables(found)
    assert [row[2] for row in table.rows] == list(ARMS)
    assert "from 0.00 to 0.10" in answer(found)
    assert "in order of start to 0.20" in answer(found)
