"""TRAIL on a real engine: kept rows are read, by time and in steps of the engine, and answers are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.study import Run
from experiments.trail_engine import (
    FORCED,
    KEPT,
    PROBED,
    STUDY,
    TrailEngineGrid,
    answer,
    arms,
    claims,
    compare,
    measure,
    paper_probe,
    tables,
)
from lengthwise.bench.episodes import FCFS, ORACLE, Arm
from lengthwise.bench.store import BenchStore
from lengthwise.predictors.probe import PAPER, load_probe, write_probe
from lengthwise.simulator.tasks import ResultCache
from tests.bench.measured import measured
from tests.training.probe.made import made_states

LIMITED = Arm("srpt:c=0.8", PROBED)


def halved(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
    """FCFS takes twice the time of the others."""
    return rng.uniform(1.0, 9.0, 50) * (2.0 if arm == Arm(FCFS) else 1.0)


@pytest.fixture
def store(tmp_path: Path) -> BenchStore:
    return measured(tmp_path / "kept", (Arm(FCFS), LIMITED), 3, halved)


def test_gains_over_fcfs_are_the_ratios_within_blocks(store: BenchStore) -> None:
    result = compare(store)
    assert {claim.statement: claim.ours.ratio for claim in claims([result])} == {
        "mean E2E, FCFS over c = 0.8": pytest.approx(2.0),
        "mean TTFT, FCFS over c = 0.8": pytest.approx(2.0),
    }
    assert (result.answers, result.capped, result.other_lengths) == (300, 0.0, 0)
    assert "srpt:c=0.8, default + probe" in [row[0] for row in tables([result])[0].rows]
    assert "FCFS over limited preemption (c = 0.8): 2.00x" in answer([result])


@pytest.mark.parametrize("blocks", [1, 2])
def test_too_few_blocks_are_not_compared_with_the_paper(tmp_path: Path, blocks: int) -> None:
    found = claims([compare(measured(tmp_path, (Arm(FCFS), LIMITED), blocks, halved))])
    assert {claim.verdict for claim in found} == {"–"}


def test_answers_of_different_lengths_between_arms_are_counted(store: BenchStore) -> None:
    rows = store.rows()
    lengths = rows["output_tokens"].to_numpy().copy()
    of_probe = np.flatnonzero(np.array(rows["policy"].to_pylist()) == LIMITED.policy)
    lengths[of_probe[:2]] += 1
    place = rows.schema.get_field_index("output_tokens")
    changed = rows.set_column(place, rows.schema.field(place), pa.array(lengths))
    pq.write_table(changed, store.folder / "requests.parquet")
    assert compare(store).other_lengths == 2


def test_measurements_of_several_folders_are_shown_side_by_side(store: BenchStore, tmp_path: Path) -> None:
    other = measured(tmp_path / "other", (Arm(FCFS), LIMITED), 3, halved)
    grid = TrailEngineGrid(results=(store.folder, other.folder))
    results = measure(Run(ResultCache(tmp_path)), grid)
    assert [table.title.partition(":")[0] for table in tables(results)] == ["kept", "kept", "other", "other"]
    assert {claim.setting for claim in claims(results)} == {
        "kept, default + probe, by time",
        "other, default + probe, by time",
    }
    assert STUDY.needs(TrailEngineGrid(results=(store.folder, tmp_path / "none"), measure=True)) is not None


def test_the_kept_rows_are_read_and_name_no_path_of_the_machine_that_measured_them(tmp_path: Path) -> None:
    results = measure(Run(ResultCache(tmp_path)), STUDY.grid)
    assert len(results) == len(KEPT)
    for result, folder in zip(results, KEPT, strict=True):
        predictors = ("default", ORACLE) if folder in FORCED else (PROBED,)
        assert {each.arm for each in result.bench.arms} >= {
            Arm(FCFS),
            *(Arm("srpt:c=0.8", each) for each in predictors),
        }
        assert result.in_steps.keys() == result.step_ms.keys() - {Arm(FCFS).label}
        assert all(0 < median <= high for median, high in result.step_ms.values())
        assert '"/' not in (folder / "bench.json").read_text()
        if folder in FORCED:
            assert result.other_lengths == 0
    assert results[0].other_lengths == 0, "in float32 on a CPU every arm serves the same answers"


def test_the_order_alone_is_compared_with_limited_preemption_within_blocks(tmp_path: Path) -> None:
    def slower_without(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(1.0, 9.0, 50) * {Arm(FCFS): 4.0, Arm("srpt:c=0", ORACLE): 3.0}.get(arm, 1.0)

    kept = measured(tmp_path, (Arm(FCFS), Arm("srpt:c=0", ORACLE), Arm("srpt:c=0.8", ORACLE)), 3, slower_without)
    found = {claim.statement: claim for claim in claims([compare(kept)])}
    assert found["mean E2E, c = 0 over c = 0.8"].ours.ratio == pytest.approx(3.0)
    assert found["mean E2E, c = 0 over c = 0.8"].setting.endswith("true lengths, by time")
    assert found["mean E2E, FCFS over c = 0.8"].ours.ratio == pytest.approx(4.0)


def test_every_c_has_an_arm_and_the_paper_has_its_probe(tmp_path: Path) -> None:
    found = arms(TrailEngineGrid(c=(0.0, 1.0)), tmp_path / "paper.lw")
    assert [arm.label for arm in found] == [
        "fcfs",
        "sjf, default",
        "srpt:c=0, default + probe",
        "srpt:c=1, default + probe",
        "srpt:c=0.8, default + paper",
    ]
    assert STUDY.needs(TrailEngineGrid(results=(tmp_path,))) is not None
    assert STUDY.needs(TrailEngineGrid(results=(tmp_path,), measure=True)) is None


def test_a_probe_with_the_papers_settings_can_be_read_every_token_from_its_file(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_probe(tmp_path / "paper.lw", paper_probe(made_states(), 2))
    probe = load_probe(str(tmp_path / "paper.lw"))
    assert (probe.every, probe.layer, probe.smoothing, probe.inputs, len(probe.bins)) == (1, 2, PAPER, (), 10)
    assert "Alpaca" not in probe.card["licences"]
