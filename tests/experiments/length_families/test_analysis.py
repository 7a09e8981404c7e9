"""The study of length families on data with a known truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.length_families import STUDY, LengthFamiliesGrid, measure
from experiments.length_families.analysis import LengthFamilies, study_families
from experiments.length_families.families import FAMILIES
from experiments.length_families.report import tables
from experiments.study import Run
from lengthwise.errors import InputError
from lengthwise.lengths.families import LOGNORMAL, LOGT
from lengthwise.reports.tables import to_json
from lengthwise.simulator.tasks import ResultCache
from lengthwise.workloads import LengthSamples
from tests.experiments.samples import QUICK, check_output
from tests.workloads.made_samples import made_up


@pytest.fixture(scope="module")
def progress() -> list[tuple[str, float]]:
    return []


@pytest.fixture(scope="module")
def result(progress: list[tuple[str, float]]) -> LengthFamilies:
    return study_families(made_up(), effort=QUICK, report=lambda what, done: progress.append((what, done)))


def test_left_out_samples_are_counted_with_their_rule(result: LengthFamilies) -> None:
    counts = list(result.left_out.values())
    assert counts[:3] == [6, 1, 1]
    assert "14,999" in next(iter(result.left_out))
    assert result.rows == 118


def test_every_group_has_every_family(result: LengthFamilies) -> None:
    assert [group.group for group in result.groups] == ["all", "owner/a", "owner/b"]
    for group in result.groups:
        assert [family.family for family in group.families] == [family.name for family in FAMILIES]
        for family in group.families:
            assert 0 < family.ks_refitted <= 1
            assert family.held_out_gain.low <= family.held_out_gain.estimate <= family.held_out_gain.high
    assert sum(group.rows for group in result.groups[1:]) == result.groups[0].rows == 118


def test_log_normal_is_the_zero_of_every_gain(result: LengthFamilies) -> None:
    normal = next(family for family in result.groups[0].families if family.family == LOGNORMAL.name)
    assert normal.held_out_gain.estimate == normal.loglik_gain == 0


def test_the_truth_passes_the_refitted_test(result: LengthFamilies) -> None:
    truth = next(family for family in result.groups[0].families if family.family == LOGT.name)
    assert truth.ks_refitted > 0.85
    assert 1.5 <= result.groups[0].best_nu <= 20


def test_the_same_seed_gives_the_same_study() -> None:
    few = made_up(prompts=12)
    first, second = (study_families(few, by="none", seed=3, effort=QUICK) for _ in range(2))
    assert to_json(first) == to_json(second)
    assert len(first.groups) == 1


def test_progress_grows_and_names_its_steps(progress: list[tuple[str, float]], result: LengthFamilies) -> None:
    shares = [done for _, done in progress]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1
    assert any(LOGNORMAL.name in what for what, _ in progress)
    assert result.rows


def test_an_llm_that_repeats_itself_is_detected() -> None:
    samples = made_up(prompts=20, llms=("owner/a",))
    lengths = samples.lengths_matrix().copy()
    lengths[3:11, :5] = 300
    lengths[3:11, 5:] = [500, 600, 700, 800, 900]
    repeating = LengthSamples.from_table(
        samples.table.set_column(samples.table.column_names.index("lengths"), "lengths", [lengths.tolist()]),
        origin="made up",
    )
    assert study_families(repeating, effort=QUICK).groups[0].repeats > 0.3


def test_rows_without_a_spread_are_an_error() -> None:
    constant = made_up(prompts=3, llms=("owner/a",)).table.slice(0, 1)
    with pytest.raises(InputError, match="no row has 6 clean samples of different lengths"):
        study_families(LengthSamples.from_table(constant, origin="made up"))


def test_tables_show_ours_beside_the_papers(result: LengthFamilies) -> None:
    found = tables(result)
    first = {row[0]: row for row in found[0].rows}
    assert first["log-normal"][2] == "60.3 %"
    assert first["log-t, nu free"][2] == "93.1 %"
    assert all(len(row) == len(table.columns) for table in found for row in table.rows)


def test_power_is_simulated_for_both_truths(result: LengthFamilies) -> None:
    assert [(power.truth, power.samples) for power in result.power] == [
        (truth.name, samples) for samples in QUICK.power_samples for truth in (LOGNORMAL, LOGT)
    ]
    assert np.isfinite([power.evidence_gain for power in result.power]).all()


def test_the_study_fits_a_sample_of_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.length_families.Effort", lambda critical_draws: QUICK)
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    grid = LengthFamiliesGrid(by="none", prompts=40)
    check_output(STUDY.output(measure(Run(ResultCache(tmp_path / "cache")), grid)))
