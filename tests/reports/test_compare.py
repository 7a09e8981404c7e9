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


def test_the_table_has_latencies_and_ratios_over_the_first() -> None:
    table = compare(["fcfs", "sjf"], workload=WORKLOAD, fleet=ENGINES, predictor="none").table
    assert list(table.columns) == [
        "policy",
        *(text for name in ("TTFT mean", "TTFT p99", "E2E mean", "E2E p99") for text in (name, "over first")),
    ]
    assert [row[0] for row in table.rows] == ["fcfs", "sjf"]
    assert table.rows[0][2::2] == ["1"] * 4
    assert table.notes == ["120 requests, the same for all; 95 % intervals of a paired block bootstrap."]


def test_the_same_policy_twice_is_named_by_its_predictor() -> None:
    outcomes = [simulate(WORKLOAD, ENGINES, "sjf", predictor=name) for name in ("history", "oracle")]
    assert compare(outcomes).labels == ("sjf (history)", "sjf (oracle)")


def test_the_plot_has_a_row_per_policy_and_names_metric_and_baseline() -> None:
    (axes,) = compare(["fcfs", "sjf"], workload=WORKLOAD, fleet=ENGINES, predictor="none").plot("ttft_s", "p99").axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["fcfs", "sjf"]
    assert axes.get_xlabel() == "TTFT p99 over fcfs"


def test_options_of_simulate_reach_every_run() -> None:
    late = compare(["fcfs", "sjf"], workload=WORKLOAD, fleet=ENGINES, predictor="oracle", decision_s=0.5)
    plain = compare(["fcfs", "sjf"], workload=WORKLOAD, fleet=ENGINES, predictor="oracle")
    for slow, quick in zip(late.outcomes, plain.outcomes, strict=True):
        assert slow.summary.e2e_s.mean > quick.summary.e2e_s.mean
