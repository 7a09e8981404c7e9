from __future__ import annotations

import numpy as np
import pytest

from experiments.backlog import STUDY, BacklogGrid, drain, drawn_lengths, epoch_s, predicted_lengths
from lengthwise.simulator import predict_workload
from lengthwise.workloads import Workload

GRID = BacklogGrid(slots=4, per_step=4)


def workload(lengths: list[int]) -> Workload:
    n = len(lengths)
    columns = {"arrival_s": np.zeros(n), "input_tokens": np.full(n, 20), "output_tokens": np.array(lengths)}
    return Workload.from_table(columns, name="lengths")


@pytest.mark.parametrize("lists", [False, True])
def test_longest_first_leaves_no_long_answer_for_the_end(lists: bool) -> None:
    requests = workload([50] * 40 + [2000])
    known = predict_workload(requests, "oracle")
    runs = [drain(requests, known, policy, engines=2, slots=2, lists=lists) for policy in ("fcfs", "lept")]
    late, early = (float(run.finished_s.max()) for run in runs)
    assert np.isfinite(np.concatenate([run.finished_s for run in runs])).all()
    assert early < 0.85 * late
    assert int(runs[0].finished_s.argmax()) == 40


def test_the_first_answers_come_sooner_shortest_first() -> None:
    requests = workload([500, 40] * 20)
    known = predict_workload(requests, "oracle")
    first = [np.sort(drain(requests, known, policy, engines=2, slots=2).finished_s)[9] for policy in ("fcfs", "sjf")]
    assert first[1] < 0.5 * first[0]


def test_steps_of_like_lengths_take_less_time_than_random_ones() -> None:
    true = np.repeat(np.array([[50.0], [1000.0]] * 8), 9, axis=1)
    tokens = np.full(len(true), 20.0)
    random = epoch_s(true, tokens, np.ones(len(true)), "fcfs", GRID, 8, 0)
    like = epoch_s(true, tokens, predicted_lengths(true, "last epoch", 0), "lept", GRID, 8, 0)
    assert like < 0.8 * random


def test_lengths_like_those_of_reasoning_llms_have_the_stated_spread() -> None:
    lengths, _ = drawn_lengths("reasoning-like", 2000, 0)
    logs = np.log(lengths)
    assert logs.mean(axis=1).std() == pytest.approx(0.6, abs=0.1)
    assert logs.std(axis=1).mean() == pytest.approx(0.6, abs=0.1)
    assert STUDY.quick.requests < STUDY.grid.requests
