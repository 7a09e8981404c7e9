from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from experiments.study import Run
from experiments.tie.study import LLM, find
from experiments.tie_rivals import (
    KEPT,
    OWN,
    STUDY,
    RivalsGrid,
    RivalsResult,
    claims,
    measure,
    r_squared,
    read_rows,
    write_rows,
)
from lengthwise.simulator.tasks import ResultCache
from lengthwise.training.data import PromptTable
from lengthwise.workloads import castillo_workload, load_castillo
from tests.experiments.samples import check_output


@pytest.fixture(autouse=True)
def _packaged_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RivalsResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LENGTHWISE_DATA", raising=False)
        grid = RivalsGrid(seeds=2, requests=300, predictor="noisy:0.5")
        return measure(Run(ResultCache(tmp_path_factory.mktemp("cache"))), grid)


def test_each_policy_orders_by_the_kept_predictions_of_its_own_network(small: RivalsResult) -> None:
    samples = load_castillo().where(split="test", llm=LLM)
    names = {row["prompt"]: (row["llm"], row["corpus"], row["prompt_id"]) for row in samples.table.to_pylist()}
    workload = castillo_workload(samples, LLM, requests=300, rate=1.0, seed=1, max_tokens=2048)
    kept = read_rows(KEPT)[0]
    rows = np.array([kept[names[prompt]] for prompt in workload.table["prompt"].to_pylist()])
    made = {rival: small.online.predictions[rival][1] for rival in OWN.values()}
    np.testing.assert_array_equal(made["ssjf"].mu, rows[:, 0])
    np.testing.assert_array_equal(made["tie"].sigma, rows[:, 3])
    assert kendalltau(made["ltr"].mu, rows[:, 1]).statistic == pytest.approx(1.0)
    assert not made["ssjf"].sigma.any()


def test_equal_predictions_make_ssjf_and_ltr_the_same_and_own_ones_do_not(small: RivalsResult) -> None:
    one, other = (find(small.online, policy, "noisy:0.5").outcomes[0].finished_s for policy in ("sjf", "ltr"))
    np.testing.assert_array_equal(one, other)
    one, other = (find(small.online, policy, OWN[policy]).outcomes[0].finished_s for policy in ("sjf", "ltr"))
    assert not np.array_equal(one, other)


def test_the_networks_predict_prompts_that_they_were_not_trained_on(small: RivalsResult) -> None:
    served = next(each for each in small.fits if each.prompts == "test")
    assert all(tau > 0.3 for tau in served.tau.values())
    assert served.sigma.ratio < served.sigma_ceiling


def test_r_squared_is_1_for_the_truth_and_0_for_its_mean() -> None:
    true = np.random.default_rng(0).normal(size=500)
    assert r_squared(true, true[None]).ratio == 1.0
    flat = r_squared(true, np.full((2, 500), true.mean()))
    assert flat.ratio == pytest.approx(0.0, abs=1e-12)
    assert flat.low <= flat.ratio + 1e-12


def test_both_definitions_are_claimed_in_every_setting(small: RivalsResult) -> None:
    rows = [row for row in claims(small) if row.statement.startswith("tie over sjf")]
    assert {row.setting for row in rows} == {"own predictors", "TIE's for all", "`noisy:0.5` for all"}
    assert len(rows) == 6


def test_tables_are_complete(small: RivalsResult) -> None:
    check_output(STUDY.output(small))


def test_outputs_of_a_training_are_kept_as_rows(tmp_path: Path) -> None:
    table = PromptTable.of(load_castillo())
    prompts = np.arange(5, 25)
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {
        f"{rival}_{seed}": rng.normal(5, 1, (len(prompts), len(table.llms) + 1, width)).astype(np.float16)
        for seed, rivals in ((0, ("ssjf", "ltr", "tie")), (1, ("ssjf",)))
        for rival, width in (("ssjf", 2), ("ltr", 1), ("tie", 4))
        if rival in rivals
    }
    np.savez(tmp_path / "rivals.npz", prompts=prompts, **made)
    count = write_rows(tmp_path / "rivals.npz", tmp_path / "rows.parquet")
    kept = read_rows(tmp_path / "rows.parquet")
    assert len(kept) == 1  # a seed with one network of three is left out
    llm = next(number for number, name in enumerate(table.llms) if "Llama-3.1-8B" in name)
    assert count == len(kept[0]) == (table.lengths[prompts, llm] > 0).any(axis=1).sum()
    corpora, names = table.column("corpus"), table.column("prompt_id")
    for place, prompt in enumerate(prompts):
        row = kept[0].get((table.llms[llm], corpora[prompt], names[prompt]))
        assert row is None or row[0] == made["ssjf_0"][place, llm, 0]


def test_a_study_without_kept_rows_names_the_command_that_makes_them(tmp_path: Path) -> None:
    assert "configs/rivals.yaml" in str(STUDY.needs(RivalsGrid(rows=tmp_path / "none.parquet")))
    assert STUDY.needs(RivalsGrid()) is None
