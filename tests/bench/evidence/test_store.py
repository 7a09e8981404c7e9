from __future__ import annotations

from pathlib import Path

import pytest

from lengthwise.bench.evidence.plan import Cell, capacity_cell
from lengthwise.bench.evidence.store import Store
from lengthwise.errors import InputError
from tests.bench.evidence.cells import SETTINGS, put


def test_a_cell_is_there_once_its_last_file_is(tmp_path: Path) -> None:
    store, cell = Store(tmp_path), Cell("a", "sjf", "fast", 1.1, 2)
    put(store, cell)
    assert store.has(cell)
    assert [result.cell for result in store.results()] == [cell]
    (store.place(cell) / "cell.json").unlink()
    assert not store.has(cell)
    assert store.results() == []


def test_a_fresh_attempt_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    store, cell = Store(tmp_path), capacity_cell("a")
    (store.fresh(cell) / "steps.parquet").write_text("half")
    assert list(store.fresh(cell).iterdir()) == []


def test_results_of_other_sizes_do_not_mix(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    store.begin(SETTINGS)
    store.begin(SETTINGS)
    with pytest.raises(InputError, match="slots 1, now 8"):
        store.begin({**SETTINGS, "slots": 8})


def test_a_setting_that_came_later_is_taken_in(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin(SETTINGS)
    store.begin({**SETTINGS, "later": 5})
    assert store.settings["later"] == 5


def test_no_results_and_broken_ones_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no measurement"):
        _ = Store(tmp_path).settings
    store, cell = Store(tmp_path), capacity_cell("b")
    put(store, cell)
    (store.place(cell) / "cell.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        store.results()


def test_two_commands_at_once_do_not_share_a_folder(tmp_path: Path) -> None:
    with Store(tmp_path).alone(), pytest.raises(InputError, match="another command"), Store(tmp_path).alone():
        pass
    with Store(tmp_path).alone():
        pass
