"""The grid of `lengthwise` over accuracies: paired seeds, kinds of predictions, and the tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.frontier import Gains
from experiments.no_harm import (
    BIMODAL,
    BURST,
    CASTILLO,
    EQUAL,
    INVERTED,
    LIARS,
    STUDY,
    Cell,
    NoHarmGrid,
    Place,
    drawn_requests,
    liars,
    no_harm_seed,
    noise_of,
    predictions_at,
    tables,
)
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.traffic.scores import kendall_tau

ROOT = Path(__file__).parents[2]
SMALL = Place(CASTILLO, 8, "1.1", 300)


def test_a_seed_has_the_figures_of_fcfs_and_of_every_prediction() -> None:
    found = no_harm_seed(SMALL, 1, ("0.55", "oracle", LIARS))
    assert {name: len(figures) for name, figures in found.items()} == {"fcfs": 5, "0.55": 5, "oracle": 5, LIARS: 7}
    assert found["oracle"][0] < found["0.55"][0] < found["fcfs"][0]


@pytest.mark.parametrize(
    ("predictor", "least", "most"), [("0", -0.1, 0.1), ("0.55", 0.45, 0.6), (INVERTED, -0.6, -0.4)]
)
def test_predictions_have_the_accuracy_of_their_name(predictor: str, least: float, most: float) -> None:
    _, requests = drawn_requests(SMALL, 1)
    found = predictions_at(requests, CASTILLO, predictor, 1)
    assert least <= kendall_tau(found.mu, requests.output_tokens.astype(float)) <= most


def test_liars_claim_one_token_and_the_others_do_not() -> None:
    _, requests = drawn_requests(SMALL, 1)
    medians = np.exp(predictions_at(requests, CASTILLO, LIARS, 1).mu)
    claiming = liars(len(requests), 1)
    assert 0.1 < claiming.mean() < 0.3
    assert (medians[claiming] == 1.0).all()
    assert np.median(medians[~claiming]) > 50.0


def test_equal_lengths_have_predictions_of_noise() -> None:
    _, requests = drawn_requests(Place(EQUAL, 8, "0.9", 200), 1)
    assert np.ptp(requests.output_tokens) == 0
    assert np.std(predictions_at(requests, EQUAL, "0", 1).mu) > 0.5
    assert noise_of(1.0) == pytest.approx(0.0, abs=1e-6)


def test_a_burst_has_twelve_requests_per_slot() -> None:
    assert len(drawn_requests(Place(BIMODAL, 8, BURST, 300), 1)[1]) == 96


def test_unknown_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="known are CASTILLO"):
        NoHarmGrid(lengths=("Gaussian",))


def test_the_tables_show_every_cell_and_the_answer_names_the_worst() -> None:
    def cell(predictor: str, p99: float) -> Cell:
        even = Ratio(1.0, 0.9, 1.1)
        return Cell(SMALL, predictor, Gains(even, even, Ratio(p99, p99, p99), even, in_time=1.0), even)

    found = [cell("0.2", 1.1), cell(LIARS, 1.05)]
    assert [len(table.rows) for table in tables(found)] == [1] * 5
    assert (
        "at most 1.100 times that of FCFS in 2 cells (CASTILLO, 8 slots, 1.1, predictions 0.2)"
        in STUDY.output(found).verdict
    )


def test_the_page_shows_the_largest_p99_of_the_kept_cells() -> None:
    kept = json.loads((ROOT / "experiments" / "results" / "no_harm.json").read_text())
    page = (ROOT / "docs" / "studies" / "no-harm.md").read_text()
    rows = kept["tables"][0]["rows"]
    assert f"at most {max(max(row[3:]) for row in rows)} times that of FCFS in {len(rows) * 10} cells" in page
    left_out = kept["tables"][0]["columns"].index("0.8")
    light = [float(share) for row in rows if row[2] == "0.7" for share in row[3:]]
    assert f"at load 0.7 it is at most {max(light):.3f}" in page
    for lengths, load in {(row[0], row[2]) for row in rows if row[2] != "0.7"}:
        cells = [row for row in rows if (row[0], row[2]) == (lengths, load)]
        shown = [max(column) for column in zip(*cells, strict=True)][3:]
        del shown[left_out - 3 : left_out - 1]  # 0.8 and 1
        assert f"| {lengths} | {load} | {' | '.join(shown)} |" in page
