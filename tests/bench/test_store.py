from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthwise.bench.analysis import analyse
from lengthwise.bench.episodes import FCFS, Arm, Kind, turns
from lengthwise.bench.store import BenchStore, read_measured
from lengthwise.errors import InputError
from tests.bench.measured import measured

ARMS = (Arm(FCFS), Arm("sjf", "fast"))


def flat(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
    return np.ones(5)


def test_has_is_true_for_complete_blocks_only(tmp_path: Path) -> None:
    store = measured(tmp_path, ARMS, 2, flat)
    plan = list(turns([Kind.of("burst"), Kind.of("trace")], ARMS, 3))
    missing = [(block[0].kind.name, block[0].block) for block in plan if not store.has(block)]
    assert missing == [("trace", 0), ("trace", 1), ("burst", 2), ("trace", 2)]


def test_rows_of_a_block_that_is_added_again_are_replaced(tmp_path: Path) -> None:
    store = measured(tmp_path, ARMS, 1, flat)
    rows, episodes = store.rows(), store.episodes()
    store.add(episodes, rows)
    assert store.rows().equals(rows), "an interruption between the two files duplicates no row"


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


def test_folders_of_the_same_server_are_pooled_block_by_block(tmp_path: Path) -> None:
    def halved(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
        return np.full(5, 1.0 if arm.policy == FCFS else 0.5)

    stores = [measured(tmp_path / "a", ARMS, 2, flat), measured(tmp_path / "b", ARMS, 3, halved)]
    result = analyse(read_measured(*stores)).arm("burst", "sjf", "fast")
    assert result.blocks == 5
    assert result.by_block["mean"] == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.5])


def test_folders_of_other_servers_are_not_pooled(tmp_path: Path) -> None:
    stores = [measured(tmp_path / "a", ARMS, 1, flat), BenchStore(tmp_path / "b")]
    stores[1].update({"engine": {"max_num_seqs": 256}})
    with pytest.raises(InputError, match="only measurements of the same server"):
        read_measured(*stores)
