from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import kendalltau

from experiments.study import Run
from experiments.tie.study import LLM, find
from experiments.tie_rivals import (
    KEPT,
    OWN,
    OWN_SETTING,
    STRONGER,
    STRONGER_SETTING,
    STUDY,
    RivalsGrid,
    RivalsResult,
    claims,
    columns_of,
    from_other_llms,
    keep,
    measure,
    r_squared,
    read_rows,
    rows_table,
    whole_seeds,
)
from lengthwise.errors import InputError
from lengthwise.simulator.tasks import ResultCache
from lengthwise.training.data import PromptTable
from lengthwise.workloads import LengthSamples, castillo_workload, load_castillo
from tests.experiments.samples import check_output

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(autouse=True)
def _packaged_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RivalsResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LENGTHWISE_DATA", raising=False)
        grid = RivalsGrid(seeds=2, requests=300, pool=400, predictor="noisy:0.5")
        return measure(Run(ResultCache(tmp_path_factory.mktemp("cache"))), grid)


def test_each_policy_orders_by_the_kept_predictions_of_its_own_network(small: RivalsResult) -> None:
    samples = load_castillo().where(split="test", llm=LLM)
    names = {row["prompt"]: (row["llm"], row["corpus"], row["prompt_id"]) for row in samples.table.to_pylist()}
    workload = castillo_workload(samples, LLM, requests=300, rate=1.0, seed=1, max_tokens=2048)
    kept = read_rows(KEPT, columns_of(KEPT))[1]  # traffic of seed 1 takes the networks of training seed 1
    rows = np.array([kept[names[prompt]] for prompt in workload.table["prompt"].to_pylist()])
    made = {rival: small.online.predictions[rival][1] for rival in (*OWN.values(), STRONGER)}
    np.testing.assert_array_equal(made["ssjf"].mu, rows[:, 0])
    np.testing.assert_array_equal(made["tie"].sigma, rows[:, 3])
    assert kendalltau(made["ltr"].mu, rows[:, 1]).statistic == pytest.approx(1.0)
    assert not made["ssjf"].sigma.any()
    np.testing.assert_array_equal(made[STRONGER].mu, rows[:, 4])
    np.testing.assert_array_equal(made[STRONGER].sigma, rows[:, 5])


def test_equal_predictions_make_ssjf_and_ltr_the_same_and_own_ones_do_not(small: RivalsResult) -> None:
    one, other = (find(small.online, policy, "noisy:0.5").outcomes[0].finished_s for policy in ("sjf", "ltr"))
    np.testing.assert_array_equal(one, other)
    one, other = (find(small.online, policy, OWN[policy]).outcomes[0].finished_s for policy in ("sjf", "ltr"))
    assert not np.array_equal(one, other)


def test_the_networks_predict_prompts_that_they_were_not_trained_on(small: RivalsResult) -> None:
    served = next(each for each in small.fits if each.prompts == "test")
    assert all(tau > 0.3 for tau in served.tau.values())
    assert served.sigma.ratio < served.sigma_ceiling


def test_every_kept_network_of_tie_is_scored(small: RivalsResult) -> None:
    assert small.networks[0].network == "tie"
    assert all(each.mu.low < each.mu.ratio < each.mu.high for each in small.networks)


def made_up(spread: float) -> LengthSamples:
    """Answers of three LLMs to 300 prompts: the level is the prompt's, the spread that of an LLM on a prompt."""
    rng = np.random.default_rng(0)
    level = rng.normal(5.5, spread, 300)
    columns: dict[str, list[Any]] = {name: [] for name in ("corpus", "prompt_id", "split", "llm", "prompt", "lengths")}
    for llm in (LLAMA, "a", "b"):
        for number, mu in enumerate(level):
            lengths = np.exp(mu + rng.uniform(0.1, 0.6) * rng.standard_normal(10))
            split = "test" if number % 2 else "train"
            row = ("c", str(number), split, llm, str(number), np.ceil(lengths).astype(int).tolist())
            for name, value in zip(columns, row, strict=True):
                columns[name].append(value)
    return LengthSamples.from_table({**columns, "input_tokens": [9] * len(columns["llm"])}, origin="made up")


def test_other_llms_know_a_length_and_little_of_its_spread() -> None:
    rows = made_up(spread=1.0)
    found = from_other_llms(rows)[0]
    assert found.mu.ratio > 0.8  # all LLMs answer a prompt at a length of its own
    assert found.sigma.ratio < 0.3  # and each with a spread of its own


def test_one_llm_has_no_others_to_compare_with() -> None:
    rows = made_up(spread=1.0)
    assert from_other_llms(rows.where(llm=LLAMA)) == ()


def test_offline_every_policy_finishes_the_same_answers_that_arrive_at_once(small: RivalsResult) -> None:
    cells = small.offline.grid.cells
    assert {(cell.policy, cell.predictor) for cell in cells} == {("fcfs", None), *OWN.items(), ("tie", STRONGER)}
    for cell in cells:
        assert not cell.outcomes[0].arrival_s.any()
        np.testing.assert_array_equal(cell.outcomes[0].output_tokens, cells[0].outcomes[0].output_tokens)
    statements = {row.statement for row in claims(small) if row.setting == OWN_SETTING}
    assert "offline, tie over ltr, time to the samples" in statements


def test_r_squared_is_1_for_the_truth_and_0_for_its_mean() -> None:
    true = np.random.default_rng(0).normal(size=500)
    assert r_squared(true, true[None]).ratio == 1.0
    flat = r_squared(true, np.full((2, 500), true.mean()))
    assert flat.ratio == pytest.approx(0.0, abs=1e-12)
    assert flat.low <= flat.ratio + 1e-12


def test_both_definitions_are_claimed_in_every_setting(small: RivalsResult) -> None:
    rows = [row for row in claims(small) if row.statement.startswith("tie over sjf")]
    assert {row.setting for row in rows} == small.settings.keys()
    assert len(rows) == 2 * len(small.settings) == 10
    stronger = [row.statement for row in claims(small) if row.setting == STRONGER_SETTING]
    assert len(stronger) == 11
    assert not [each for each in stronger if each.startswith(("sjf", "ltr"))], "they are in the other setting"


def test_tables_are_complete(small: RivalsResult) -> None:
    check_output(STUDY.output(small))


def trainings(names: list[str], llms: tuple[str, ...], prompts: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what scripts/gpu_papers.py writes, with random outputs."""
    rng = np.random.default_rng(0)
    widths = {"ssjf": 2, "ltr": 1}
    arrays: dict[str, Any] = {"prompts": np.arange(5, 5 + prompts)}
    for name in names:
        shape = (prompts, len(llms), widths.get(name.split("_")[0], 4))
        arrays[name] = rng.normal(5, 1, shape).astype(np.float16)
    return [{"name": name, "llms": llms} for name in names], arrays


def test_outputs_of_trainings_are_kept_as_rows_of_the_served_llm() -> None:
    table = PromptTable.of(load_castillo())
    results, arrays = trainings(["ssjf_0", "ltr_0", "tie_0", "tie-all_0", "ssjf_1", "classes_0"], table.llms, 20)
    kept = rows_table(results, arrays, table.about)
    assert len(kept) == 40
    kept = whole_seeds(kept)
    assert len(kept) == 20  # the seed with one network of three is left out
    llm = next(number for number, name in enumerate(table.llms) if "Llama-3.1-8B" in name)
    assert set(kept["llm"].to_pylist()) == {table.llms[llm]}
    assert kept["prompt_id"].to_pylist() == table.column("prompt_id")[5:25]
    assert kept["ssjf"].to_pylist() == arrays["ssjf_0"][:, llm, 0].tolist()
    assert kept["mu tie-all"].to_pylist() == arrays["tie-all_0"][:, llm, 0].tolist()
    assert (kept["sigma"].to_numpy() > 0).all()


def test_a_network_that_a_seed_lacks_is_missing_there() -> None:
    table = PromptTable.of(load_castillo())
    names = [f"{network}_{seed}" for seed in (0, 1) for network in ("ssjf", "ltr", "tie")]
    kept = rows_table(*trainings([*names, "tie-mpnet_1"], (table.llms[0], LLAMA), 4), table.about)
    assert kept["mu tie-mpnet"].null_count == 4


def test_the_stronger_network_is_compared_where_every_seed_has_it(tmp_path: Path) -> None:
    names = [f"{network}_{seed}" for seed in (0, 1) for network in ("ssjf", "ltr", "tie", "tie-mpnet")]
    about, path = PromptTable.of(load_castillo()).about, tmp_path / "rows.parquet"
    pq.write_table(rows_table(*trainings(names, (LLAMA,), 4), about), path)
    assert columns_of(path)[4:] == ("mu tie-mpnet", "sigma tie-mpnet")
    pq.write_table(rows_table(*trainings(names[:-1], (LLAMA,), 4), about), path)
    assert len(columns_of(path)) == 4


def test_results_without_a_whole_seed_are_refused() -> None:
    table = PromptTable.of(load_castillo())
    with pytest.raises(InputError, match="no seed with all of ssjf, ltr, tie"):
        whole_seeds(rows_table(*trainings(["ssjf_0"], (LLAMA,), 4), table.about))
    with pytest.raises(InputError, match="has none of ssjf, ltr, tie"):
        rows_table(*trainings(["classes_0"], (LLAMA,), 4), table.about)


def test_a_later_training_is_added_to_the_rows_that_are_kept(tmp_path: Path) -> None:
    names = ["ssjf_0", "ltr_0", "tie_0", "tie-mpnet_0", "tie-mpnet_1"]
    results, arrays = trainings(names, (LLAMA,), 4)
    retrained = {**arrays, "tie-mpnet_0": arrays["tie-mpnet_0"] + np.float16(1.0)}
    for found, of_found in ((results[:4], arrays), (results[3:], retrained)):
        (tmp_path / "results.json").write_text(json.dumps(found))
        np.savez(tmp_path / "predictions.npz", **of_found)
        keep(tmp_path, tmp_path / "kept.parquet")
    kept = pq.read_table(tmp_path / "kept.parquet")
    assert kept["seed"].to_pylist() == [0] * 4  # seed 1 has one network only
    assert kept["ssjf"].to_pylist() == arrays["ssjf_0"][:, 0, 0].tolist()
    assert kept["mu tie-mpnet"].to_pylist() == retrained["tie-mpnet_0"][:, 0, 0].tolist()


def test_a_study_without_kept_rows_names_the_command_that_makes_them(tmp_path: Path) -> None:
    assert "configs/papers.yaml" in str(STUDY.needs(RivalsGrid(rows=tmp_path / "none.parquet")))
    assert STUDY.needs(RivalsGrid()) is None
