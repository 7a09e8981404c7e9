from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthwise.bench.analysis import analyse
from lengthwise.bench.episodes import FCFS, ORACLE, Arm
from lengthwise.bench.report import bench_document, bench_tables
from lengthwise.bench.store import BenchStore, read_measured
from lengthwise.errors import InputError
from lengthwise.reports.page import Origin
from lengthwise.simulator.metrics import LatencyLimits
from tests.bench.measured import measured

ARMS = (Arm(FCFS), Arm(FCFS, copy=1), Arm("sjf", "fast"), Arm("sjf", ORACLE))
FACTOR = {Arm(FCFS): 1.0, Arm(FCFS, copy=1): 1.0, Arm("sjf", "fast"): 0.8, Arm("sjf", ORACLE): 0.6}


def scaled(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
    """Latencies on a machine whose speed differs between blocks."""
    return FACTOR[arm] * (1 + block) * (1.0 + rng.exponential(size=50))


def test_ratios_are_within_blocks_so_the_speed_of_the_machine_cancels(tmp_path: Path) -> None:
    result = analyse(read_measured(measured(tmp_path, ARMS, 4, scaled)))
    ours = result.arm("burst", "sjf", "fast")
    for figure in ("mean", "per_token", "ttft", "p50", "p99", "max"):
        ratio = ours.ratios[figure]
        assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((0.8, 0.8, 0.8))
    assert ours.captured.ratio == pytest.approx(0.5)
    assert ours.tau == pytest.approx(1.0)
    noise = next(each for each in result.arms if each.arm == Arm(FCFS, copy=1))
    assert noise.ratios["mean"].ratio == pytest.approx(1.0)
    assert result.verdict.headline.startswith("Turn it on: sjf, fast lowers mean E2E by 20 %")


def test_the_verdict_is_negative_without_a_gain_and_names_the_tail(tmp_path: Path) -> None:
    def worse(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
        e2e = 1.0 + rng.exponential(size=50)
        return e2e * (1.0 if arm.policy == FCFS else 1.1)

    def tail(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
        e2e = 1.0 + rng.exponential(size=50)
        return e2e if arm.policy == FCFS else np.where(e2e < np.quantile(e2e, 0.95), 0.5 * e2e, 2 * e2e)

    arms = (Arm(FCFS), Arm("sjf", "fast"))
    assert analyse(read_measured(measured(tmp_path / "worse", arms, 3, worse))).verdict.headline.startswith(
        "Not worth it here"
    )
    assert analyse(read_measured(measured(tmp_path / "tail", arms, 3, tail))).verdict.headline.startswith(
        "Turn it on only if the tail"
    )


def test_the_verdict_is_of_predictions_that_a_server_can_have(tmp_path: Path) -> None:
    def better_without(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
        speed = {"none": 1.0, "fast": 0.9, "inverted": 0.5, "oracle": 0.6}[arm.predictor]
        return speed * (1.0 + rng.exponential(size=50))

    arms = (Arm(FCFS), *(Arm("sjf", name) for name in ("inverted", "oracle", "fast")))
    result = analyse(read_measured(measured(tmp_path, arms, 3, better_without)))
    assert result.verdict.headline.startswith("Turn it on: sjf, fast lowers")


def test_the_share_within_limits_and_goodput_are_means_over_blocks(tmp_path: Path) -> None:
    arms = (Arm(FCFS), Arm("sjf", "fast"))

    def tenth_late(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
        late = (5 if arm.policy == FCFS else 0) + 5 * block
        return np.concatenate([np.full(50 - late, 4.0), np.full(late, 10.0)])

    result = analyse(read_measured(measured(tmp_path, arms, 2, tenth_late)), LatencyLimits.given(3.0, None, 9.0, None))
    fcfs, ours = result.arm("burst", FCFS, "none"), result.arm("burst", "sjf", "fast")
    assert (fcfs.attained, ours.attained) == pytest.approx((0.85, 0.95))
    assert ours.goodput_per_s == pytest.approx((50 / 4.0 + 45 / 10.0) / 2)
    (table,) = bench_tables(result)
    assert [row[table.columns.index("in SLO")] for row in table.rows] == ["85.0 %", "95.0 %"]
    assert "SLO: TTFT at most 3 s, E2E at most 9 s; goodput" in " ".join(table.notes)


def test_tables_and_page_show_every_arm_and_the_verdict(tmp_path: Path) -> None:
    store = measured(tmp_path, ARMS, 2, scaled, kinds=("burst", "steady:0.7"))
    result = analyse(read_measured(store))
    page = bench_document(
        result, read_measured(store), Origin("lengthwise bench --url x", "1.0", "today", "a GPU", "7")
    ).html()
    assert [table.title for table in bench_tables(result)] == ["burst episodes", "steady:0.7 episodes"]
    assert f"<h1>{result.verdict.headline}</h1>" in page
    assert all(arm.label in page for arm in ARMS)
    assert all(
        text in page for text in ("lengthwise bench --url x", "a GPU", "Latency by output length (burst episodes)")
    )


def test_an_empty_folder_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no complete block"):
        read_measured(BenchStore(tmp_path))
