from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.bench.evidence.plan import ORACLE, Asked, Cell, capacity_cell, hours, seconds
from lengthwise.errors import InputError


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
def test_rounds_are_full_of_one_load_with_stock_vllm_beside_each_repeat(
    at_once: int, repeats: int, every_load: bool, only: bool
) -> None:
    cells = Asked(at_once=at_once, repeats=repeats, every_load=every_load, only_headline=only).cells()
    assert len(set(cells)) == len(cells)
    assert cells[0] == capacity_cell("a")
    assert len(cells) % at_once == 0
    for first in range(0, len(cells), at_once):
        together = cells[first : first + at_once]
        assert len({(cell.setting, cell.load) for cell in together}) == 1
        stock = [cell.repeat for cell in together if cell.stock]
        assert sorted(stock) == sorted({cell.repeat for cell in together})
    alone = Counter((c.setting, c.load, c.policy, c.predictor) for c in cells)
    wanted = Asked(repeats=repeats, every_load=every_load, only_headline=only).cells()
    assert not Counter((c.setting, c.load, c.policy, c.predictor) for c in wanted) - alone


def test_four_at_once_put_the_headline_into_one_round_and_a_policys_other_predictions_into_another() -> None:
    cells = Asked(settings=["a"], at_once=4).cells()
    rounds = [
        (cells[first].load, [f"{cell.policy} {cell.predictor} {cell.repeat}" for cell in cells[first : first + 4]])
        for first in range(0, len(cells), 4)
    ]
    headline = [
        (1.1, [f"{order} {n}" for order in ("fcfs none", "sjf default", "lengthwise default", "lengthwise oracle")])
        for n in range(3)
    ]
    calm = [f"{order} {n}" for n in (0, 1, 2) for order in ("fcfs none", "lengthwise default")]
    assert rounds == [
        (None, ["fcfs none 0", "sjf default 0", "tie default 0", "lengthwise default 0"]),
        (0.7, calm[:4]),
        headline[0],
        (0.7, [*calm[4:], "sjf default 2", "lengthwise oracle 2"]),
        *headline[1:],
        (1.1, ["fcfs none 3", "tie fast 3", "tie default 3", "tie oracle 3"]),
        (1.1, ["fcfs none 4", "sjf fast 4", "sjf oracle 4", "lengthwise fast 4"]),
    ]


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
