"""Comparisons pair outcomes on the same requests."""

from __future__ import annotations

import pytest

from lengthwise import compare
from lengthwise.errors import InputError
from lengthwise.simulator import simulate
from tests.simulator.builders import UNEVEN, fleet, requests

WORKLOAD = requests([(20, 5 + 40 * (row % 3 == 0)) for row in range(120)], [0.02 * row for row in range(120)])
ENGINES = fleet(UNEVEN, seqs=2)


def test_policies_by_name_are_simulated_on_one_workload_and_compared_with_the_first() -> None:
    found = compare(["fcfs", "sjf"], workload=WORKLOAD, fleet=ENGINES, predictor="oracle")
    assert found.ratio(0).ratio == 1.0
    assert found.ratio(1).high < 1.0
    assert "TRUE LENGTHS" in " ".join(found.table.notes)
    assert "\n" not in repr(found)
    assert "sjf" in found._repr_html_()
    assert len(found.plot().axes) == 1


def test_outcomes_are_compared_without_simulating_again() -> None:
    outcomes = [simulate(WORKLOAD, ENGINES, name, predictor="history") for name in ("fcfs", "sjf")]
    found = compare(outcomes)
    assert found.labels == ("fcfs", "sjf")
    assert not any("TRUE LENGTHS" in note for note in found.table.notes)


@pytest.mark.parametrize("runs", [["fcfs"], ["fcfs", "sjf"], "fcfs", ["fcfs", 3]])
def test_invalid_runs_are_an_input_error(runs: object) -> None:
    with pytest.raises(InputError):
        compare(runs)  # type: ignore[arg-type]


def test_outcomes_of_different_workloads_are_an_input_error() -> None:
    with pytest.raises(InputError, match="different workloads"):
        compare([simulate(WORKLOAD, ENGINES), simulate(WORKLOAD.head(60), ENGINES)])
