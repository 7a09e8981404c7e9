"""`simulate`: what it accepts, and how a fleet serves requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.simulator import Capacity, Fleet, acceleration, default_predictor, measure_capacity, simulate
from tests.simulator.builders import TICK, UNEVEN, engine, fleet, requests

WORKLOAD = requests([(10, 5), (10, 9), (10, 2)])


def test_one_slot_under_fcfs_is_a_fifo_queue() -> None:
    """Lindley's recursion: a request starts when it has arrived and its predecessor has finished, bit for bit."""
    rng = np.random.default_rng(7)
    lengths = [(int(p), int(o)) for p, o in zip(rng.integers(1, 60, 200), rng.integers(1, 40, 200), strict=True)]
    arrivals = np.cumsum(rng.exponential(0.3, 200)).tolist()
    outcome = simulate(requests(lengths, arrivals), fleet(UNEVEN, seqs=1))
    free_at = 0.0
    for row, (prompt, answer) in enumerate(lengths):
        start = max(arrivals[row], free_at)
        free_at = start + UNEVEN.step_s([(0, prompt)])
        for context in range(prompt + 1, prompt + answer):
            free_at += UNEVEN.step_s([], [context])
        assert (outcome.started_s[row], outcome.finished_s[row]) == (start, free_at)
    assert outcome.summary.queueing_s.mean > 0  # requests do queue


def test_an_arrival_during_a_step_is_seen_when_the_step_ends() -> None:
    outcome = simulate(requests([(2, 3), (2, 1), (2, 1)], [0.0, 0.5, 2.0]), fleet())
    assert outcome.started_s.tolist() == [0.0, 1.0, 2.0]
    assert outcome.finished_s.tolist() == [3.0, 2.0, 3.0]


def test_round_robin_assigns_requests_in_turn() -> None:
    outcome = simulate(requests([(2, 2)] * 5), fleet(engines=2, seqs=1))
    assert outcome.engine.tolist() == [0, 1, 0, 1, 0]
    assert outcome.finished_s.tolist() == [2.0, 2.0, 4.0, 4.0, 6.0]
    assert outcome.admitted(0) == [0, 2, 4]
    assert outcome.admitted(1) == [1, 3]


def test_engines_of_a_fleet_may_differ() -> None:
    outcome = simulate(requests([(2, 2)] * 4), Fleet((engine(seqs=1), engine(seqs=2))))
    assert outcome.finished_s.tolist() == [2.0, 2.0, 4.0, 2.0]


def test_oracle_orders_by_true_length_and_none_by_arrival() -> None:
    workload, one_slot = requests([(2, 9), (2, 1), (2, 5)]), fleet(seqs=1)
    assert simulate(workload, one_slot, "sjf", predictor="oracle").admitted() == [1, 2, 0]
    assert simulate(workload, one_slot, "sjf", predictor="none").admitted() == [0, 1, 2]


def test_priority_precedes_the_key_of_the_policy() -> None:
    workload = requests([(2, 1), (2, 9)]).replace(priority=np.array([1, 0], np.int32))
    assert simulate(workload, fleet(seqs=1), "sjf", predictor="oracle").admitted() == [1, 0]


def test_max_tokens_does_not_cut_the_true_length() -> None:
    workload = requests([(2, 9), (2, 5)]).replace(max_tokens=9)
    assert simulate(workload, fleet(seqs=1), "sjf", predictor="oracle").admitted() == [1, 0]


def test_a_request_that_never_fits_is_refused_and_the_others_are_served() -> None:
    outcome = simulate(requests([(2, 2), (500, 2), (2, 2)]), fleet(blocks=4))
    assert outcome.summary.refused == 1
    assert np.isnan(outcome.finished_s).tolist() == [False, True, False]
    assert np.isnan(outcome.started_s[1])


def test_a_fleet_in_which_no_request_fits_is_an_error() -> None:
    with pytest.raises(InputError, match="no request fits"):
        simulate(requests([(500, 2)]), fleet(blocks=4))


def test_an_unknown_predictor_is_an_error_that_suggests_a_known_one() -> None:
    with pytest.raises(InputError, match="did you mean oracle"):
        simulate(requests([(2, 2)]), fleet(), predictor="orakle")


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    simulate(requests([(2, 200)] * 5), fleet(seqs=1), on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_capacity_is_the_rate_while_the_backlog_lasts() -> None:
    # One slot, four seconds each: a quarter of a request per second, for any arrivals.
    workload = requests([(2, 4)] * 10, [float(i) for i in range(10)])
    assert measure_capacity(workload, fleet(seqs=1)) == Capacity(0.25, 10, 1, steady=True)
    assert measure_capacity(workload, fleet(seqs=1)).load(0.5) == 2.0
    assert measure_capacity(workload, fleet(engines=2, seqs=1)).requests_per_s == 0.5


def test_capacity_without_a_backlog_is_not_steady() -> None:
    capacity = measure_capacity(requests([(2, 4)] * 3), fleet(seqs=8))
    assert capacity == Capacity(0.75, 3, 8, steady=False)


def test_a_request_that_arrives_as_another_finishes_starts_at_once() -> None:
    outcome = simulate(requests([(1, 1), (1, 1)], [0.0, 1.0]), fleet(TICK))
    assert outcome.finished_s.tolist() == [1.0, 2.0]


def test_fleet_and_workload_may_be_given_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_DATA", "")
    outcome = simulate("castillo", "2*llama-3-8b@a100", "sjf", requests=50, rate=5.0)
    assert len(outcome) == 50
    assert outcome.predictor == "fast"
    assert repr(outcome).startswith("Outcome(sjf, predictor fast: 50 requests")


@pytest.mark.parametrize(
    "wrong",
    [
        {"workload": 3},
        {"fleet": 8},
        {"policy": None},
        {"policy": dict},
        {"predictor": 0.5},
        {"rate": 3.0},
        {"workload": "castillo", "rate": 1.0, "load": 0.5},
    ],
)
def test_a_wrong_type_is_an_input_error(wrong: dict[str, Any]) -> None:
    given = {"workload": WORKLOAD, "fleet": fleet(), "policy": "fcfs", **wrong}
    with pytest.raises(InputError):
        simulate(given.pop("workload"), given.pop("fleet"), given.pop("policy"), **given)


def test_the_default_predictor_is_history_without_text_and_none_if_the_policy_uses_none() -> None:
    assert default_predictor(WORKLOAD) == "history"
    assert default_predictor(requests([(1, 1)], prompt=["hello"])) == "fast"
    assert simulate(WORKLOAD, fleet(), "sjf").predictor == "history"
    assert simulate(WORKLOAD, fleet(), "fcfs").predictor is None


def test_true_lengths_are_marked_wherever_an_outcome_is_shown() -> None:
    outcome = simulate(WORKLOAD, fleet(), "sjf", predictor="oracle")
    assert outcome.true_lengths
    assert "TRUE LENGTHS" in repr(outcome)
    assert "TRUE LENGTHS" in outcome._repr_html_()
    assert "\n" not in repr(outcome)


def test_without_numba_the_readable_engine_runs_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fast = simulate(WORKLOAD, fleet(UNEVEN), "sjf")
    acceleration.accelerated.cache_clear()
    monkeypatch.setattr(acceleration, "find_spec", lambda name: None)
    slow = simulate(WORKLOAD, fleet(UNEVEN), "sjf")
    acceleration.accelerated.cache_clear()
    assert "numba is not installed" in caplog.text
    assert (fast.accelerated, slow.accelerated) == (True, False)
    assert fast.finished_s.tolist() == slow.finished_s.tolist()
