"""Groups left out of training: every group is scored by a predictor that has not seen it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments import left_out_groups
from experiments.left_out_groups import STUDY, LeftOutGroupsGrid, LeftOutGroupsResult, measure
from experiments.study import Run
from lengthwise.simulator.tasks import ResultCache
from lengthwise.training.fast.train import FastTrainer
from lengthwise.training.pairs import PairTable, score_pairs
from tests.experiments.samples import check_output
from tests.training.fast.test_training import table, words

GROUPS = ("castillo-code", "castillo-chat", "chat", "writing")


def pairs() -> PairTable:
    made = table(480)
    group = np.arange(480) % 4
    return replace(made, groups=GROUPS, group=group, test=(group == 0) & (np.arange(480) % 3 == 0))


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LeftOutGroupsResult:
    seen: list[set[str]] = []
    fit = FastTrainer.fit

    def watched(self: FastTrainer, train: PairTable, seed: int = 0) -> object:
        assert not train.test.any()
        seen.append({train.groups[number] for number in train.group})
        return fit(replace(self, recipe=replace(self.recipe, hidden=16, joint=8)), train, seed)

    made = words()
    vectors = tmp_path / "words.npz"
    joined = np.frombuffer(b"\n".join(sorted(made.own)), np.uint8)
    np.savez(vectors, meaning=made.meaning, words=joined, own=joined)
    monkeypatch.setattr(left_out_groups, "training_pairs", lambda ships: pairs())
    monkeypatch.setattr(FastTrainer, "fit", watched)
    grid = LeftOutGroupsGrid(networks=2, epochs=3, prompts_per_group=100, vectors=vectors)
    cache = ResultCache(tmp_path)
    found = measure(Run(cache), grid)
    check_output(STUDY.output(found))
    trainings, again = len(seen), Run(cache)
    assert measure(again, grid).rows == found.rows
    assert again.counts == (trainings, 0), "a study that was stopped trains nothing twice"
    assert {"castillo-code", "castillo-chat"} in seen
    for name in GROUPS:
        assert set(GROUPS) - {name} in seen
    return found


def test_every_group_is_left_out_once_and_scored_beside_castillo_alone(result: LeftOutGroupsResult) -> None:
    assert {row.group for row in result.rows} == set(GROUPS)
    assert all(row.others.llms == 2 and row.prompts <= 120 for row in result.rows)
    assert set(result.official) == {"CASTILLO alone", "without chat", "without writing"}


def test_fewer_prompts_of_castillo_leave_the_other_groups_unchanged() -> None:
    every = pairs()
    few = left_out_groups.sampled(every, LeftOutGroupsGrid(castillo_prompts=50))
    castillo = few.in_groups(["castillo-code", "castillo-chat"])
    assert castillo.sum() == 50
    assert (~castillo).sum() == 240


def test_online_calibration_covers_a_group_whose_lengths_are_all_shorter_than_predicted() -> None:
    every = pairs()
    table = every.take(np.arange(len(every)) < 240)
    mu, sigma = table.log_mean() + 2.0, np.full(len(table.prompt), 0.4)
    assert score_pairs(table, mu, sigma, 3.5).coverage_90 < 0.2
    assert left_out_groups.online_coverage(table, mu, sigma, 3.5) > 0.8
