from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.experiments.evidence.plan import ORACLE, Asked, Cell, capacity_cell, hours, seconds


def test_headline_cells_have_three_repeats_and_every_other_cell_one() -> None:
    times = Counter((c.setting, c.load, c.policy, c.predictor) for c in Asked().cells())
    thrice = {key for key, count in times.items() if count == 3}
    assert thrice == {
        ("a", 1.1, "fcfs", "none"),
        ("a", 1.1, "sjf", "default"),
        ("a", 1.1, "lengthwise", "default"),
        ("a", 1.1, "lengthwise", ORACLE),
        ("a", 0.7, "fcfs", "none"),
        ("a", 0.7, "lengthwise", "default"),
    }
    assert set(times.values()) == {1, 3}
    for setting in ("a", "b"):
        for policy in ("sjf", "tie", "lengthwise"):
            for predictor in ("fast", "default", ORACLE):
                assert (setting, 1.1, policy, predictor) in times


def test_capacity_is_measured_before_anything_else() -> None:
    assert Asked().cells()[:2] == [capacity_cell("a"), capacity_cell("b")]
    assert capacity_cell("a").stock
    assert capacity_cell("a").kind == "offline"


def test_only_the_headline_is_its_cells_and_capacity() -> None:
    cells = Asked(settings=["a"], only_headline=True).cells()
    assert len(cells) == 1 + 18
    assert all(cell.headline for cell in cells[1:])


def test_every_load_has_every_order_when_asked_for() -> None:
    cells = Asked(settings=["a"], every_load=True, offline=False).cells()
    assert Cell("a", "tie", "fast", 0.7) in cells
    assert Cell("a", "tie", "fast", 0.7) not in Asked(settings=["a"]).cells()


@given(st.integers(0, 2**31), st.integers(1, 5))
def test_repeats_are_outermost_and_no_cell_comes_twice(seed: int, repeats: int) -> None:
    cells = Asked(seed=seed, repeats=repeats).cells()
    assert len({cell.id for cell in cells}) == len(set(cells)) == len(cells)
    online = [cell for cell in cells if cell.load is not None]
    assert [cell.repeat for cell in online] == sorted(cell.repeat for cell in online)


@given(st.integers(0, 2**31))
def test_in_setting_b_the_stock_run_comes_before_those_who_are_told_its_lengths(seed: int) -> None:
    cells = [cell for cell in Asked(seed=seed).cells() if cell.setting == "b"]
    stock = cells.index(Cell("b", "fcfs", "none", 1.1))
    assert all(cells.index(cell) > stock for cell in cells if cell.predictor == ORACLE)


def test_the_order_inside_a_repeat_is_the_seeds() -> None:
    first, again, other = (Asked(settings=["a"], only_headline=True, seed=seed).cells() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert set(first) == set(other)


def test_a_model_file_is_named_by_its_stem() -> None:
    assert Cell("b", "sjf", "some/where/mine.lw", 1.1).id == "b-1.1-sjf-mine-r0"


def test_a_cell_takes_until_the_last_has_come_or_until_all_is_served() -> None:
    calm, busy = Cell("a", "sjf", "fast", 0.5), Cell("a", "sjf", "fast", 1.1)
    least = seconds(busy, 100, 2.0)
    assert seconds(calm, 100, 2.0) == pytest.approx(least + 50)
    assert hours([busy, busy], {"a": 100}, {"a": 2.0}) == pytest.approx(2 * least / 3600)


@given(st.integers(2, 10), st.integers(1, 4), st.booleans(), st.booleans())
def test_rounds_are_full_and_hold_stock_vllm_once(at_once: int, repeats: int, every_load: bool, only: bool) -> None:
    asked = Asked(at_once=at_once, repeats=repeats, every_load=every_load, only_headline=only)
    rounds: dict[tuple[str, float | None, int], list[Cell]] = {}
    for cell in asked.cells():
        rounds.setdefault((cell.setting, cell.load, cell.repeat), []).append(cell)
    for cells in rounds.values():
        assert len(set(cells)) == len(cells) == at_once
        assert sum(cell.stock for cell in cells) == 1
    flat = [cell for cells in rounds.values() for cell in cells]
    assert flat == asked.cells(), "cells of a round lie beside each other"
    assert flat[0] == capacity_cell("a")
    alone = Counter((c.setting, c.load, c.policy, c.predictor) for c in asked.cells())
    wanted = Asked(repeats=repeats, every_load=every_load, only_headline=only).cells()
    assert not Counter((c.setting, c.load, c.policy, c.predictor) for c in wanted) - alone


def test_four_at_once_put_the_headline_into_one_round_and_a_policys_other_beliefs_into_another() -> None:
    rounds: dict[tuple[str, float | None, int], set[str]] = {}
    for cell in Asked(settings=["a"], at_once=4).cells():
        rounds.setdefault((cell.setting, cell.load, cell.repeat), set()).add(f"{cell.policy} {cell.predictor}")
    headline = {"fcfs none", "sjf default", "lengthwise default", "lengthwise oracle"}
    assert rounds["a", None, 0] == {"fcfs none", "sjf default", "tie default", "lengthwise default"}
    assert all(rounds["a", load, repeat] == headline for load in (0.7, 1.1) for repeat in range(3))
    assert rounds["a", 1.1, 3] == {"fcfs none", "tie fast", "tie default", "tie oracle"}
    assert rounds["a", 1.1, 4] == {"fcfs none", "sjf fast", "sjf oracle", "lengthwise fast"}
    assert len(rounds) == 1 + 3 + 3 + 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"loads": [0.0]},
        {"loads": [-1.0]},
        {"settings": ["c"]},
        {"policies": ["best"]},
        {"predictors": ["fats"]},
        {"at_once": 11},
    ],
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Asked(**wrong)
