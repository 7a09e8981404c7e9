from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthwise.bench.episodes import FCFS, Arm, Kind, turns
from lengthwise.bench.store import BenchStore
from lengthwise.errors import InputError
from tests.bench.measured import measured

ARMS = (Arm(FCFS), Arm("sjf", "fast"))


def flat(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
    return np.ones(5)


def test_complete_blocks_are_known_and_others_are_missing(tmp_path: Path) -> None:
    store = measured(tmp_path, ARMS, 2, flat)
    plan = list(turns([Kind.of("burst"), Kind.of("trace")], ARMS, 3))
    missing = [(block[0].kind.name, block[0].block) for block in plan if not store.has(block)]
    assert missing == [("trace", 0), ("trace", 1), ("burst", 2), ("trace", 2)]


def test_rows_of_a_block_that_was_not_listed_are_replaced(tmp_path: Path) -> None:
    store = measured(tmp_path, ARMS, 1, flat)
    rows, episodes = store.rows(), store.episodes()
    store.add(episodes, rows)
    assert store.rows().equals(rows), "a stop between the two files doubles nothing"


def test_a_folder_keeps_the_settings_it_was_measured_with(tmp_path: Path) -> None:
    store = BenchStore(tmp_path)
    store.update({"requests": 10})
    store.update({"requests": 10, "capacity": 1.5})
    with pytest.raises(InputError, match="was measured with requests 10"):
        store.update({"requests": 20})
    assert store.settings() == {"requests": 10, "capacity": 1.5}


def test_two_measurements_do_not_share_a_folder(tmp_path: Path) -> None:
    with BenchStore(tmp_path).locked(), pytest.raises(InputError, match="is in use"), BenchStore(tmp_path).locked():
        pass


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text("{")
    with pytest.raises(InputError, match=r"bench\.json"):
        BenchStore(tmp_path).settings()
