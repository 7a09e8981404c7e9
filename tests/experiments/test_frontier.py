"""The study of mean against tail: its cells are paired, and its result is shown in tables and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.frontier import (
    ERRORS,
    GIVEN_SLO,
    GIVEN_TRUE,
    OVERLOAD,
    ROBUST,
    TARGETS,
    UNDER_ERRORS,
    Arm,
    FrontierGrid,
    FrontierResult,
    Gains,
    Setting,
    draw,
    frontier_seed,
    tables,
)
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio

SMALL = Setting(4, 1.1, 150)


def cell(*arms: Arm, predictor: str = "noisy:0.55", error: str = "") -> dict[str, Any]:
    return frontier_seed(SMALL, predictor, 3, arms, error)


def test_every_arm_of_a_cell_has_the_same_requests() -> None:
    found = cell(Arm("same", "fcfs"), Arm("sjf", "sjf"), Arm("sjf, true", "sjf", true=True))
    assert found["same"] == found["fcfs"]
    assert found["sjf, true"][0] < found["sjf"][0] < found["fcfs"][0]


def test_a_target_is_in_units_of_the_p99_of_fcfs() -> None:
    loose, tight = Arm("loose", "slo", 3.0, true=True), Arm("tight", "slo", 1.0, true=True)
    found = cell(loose, tight)
    assert found["loose"][0] < found["tight"][0]
    assert found["loose"][2] > found["tight"][2]


def test_a_predictor_that_was_trained_sees_test_prompts_and_errors_change_predictions() -> None:
    sjf = Arm("sjf", "sjf")
    assert cell(sjf, predictor="fast")["sjf"][0] > 0.0
    exact, short, mixed = (cell(sjf, error=error) for error in ("", *list(ERRORS)[1:]))
    assert short == exact, "the same factor for all does not change the order"
    assert mixed["sjf"][0] > exact["sjf"][0]


@pytest.mark.parametrize("wrong", [{"seeds": 1}, {"settings": ("9 slots",)}])
def test_an_invalid_grid_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        FrontierGrid(**wrong)  # type: ignore[arg-type]


def made_up() -> FrontierResult:
    grid = FrontierGrid(seeds=2, predictors=("noisy:0.55",), policies=("lengthwise", "slo"), settings=(ROBUST,))
    point = Gains(*(Ratio(1.2, 1.1, 1.3),) * 4, in_time=0.5)
    curves = [f"{prefix} {each}" for prefix in ("slo", "true") for each in TARGETS]
    points = {(ROBUST, "noisy:0.55"): dict.fromkeys(["fcfs", *grid.policies, GIVEN_SLO, GIVEN_TRUE, *curves], point)}
    points |= {(ROBUST, error): dict.fromkeys(["fcfs", *UNDER_ERRORS], point) for error in ("noisy:0.2", *ERRORS)}
    points[OVERLOAD, "noisy:0.55"] = dict.fromkeys(["fcfs", *UNDER_ERRORS, "sjf"], point)
    return FrontierResult(grid, points)


def test_the_tables_show_every_policy_and_the_figure_is_drawn(tmp_path: Path) -> None:
    found = made_up()
    frontier, poor, overload = tables(found)
    assert {row[1] for row in frontier.rows} == {"lengthwise", "slo", GIVEN_SLO, GIVEN_TRUE}
    assert len(poor.rows) == len(UNDER_ERRORS) * (1 + len(ERRORS))
    assert len(overload.rows) == 5
    draw(found, tmp_path / "frontier.svg")
    assert "slo over targets" in (tmp_path / "frontier.svg").read_text()
