from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit
from scipy.stats import norm

from experiments.study import Run
from experiments.tie import STUDY, paper
from experiments.tie.engine import KEPT, SETTING, engine_claims, engine_note, figures_by_block
from experiments.tie.study import (
    ABLATED,
    HIGH,
    LARGE_ENGINE,
    LARGE_LLM,
    LOGNORMAL,
    LOW,
    POLICIES,
    WEAKER,
    TieGrid,
    TieResult,
    find,
    measure,
    offline_rows,
    top,
    within_prompts,
)
from experiments.tie.tables import claims, concentration, offline_figures, orders, weaker
from experiments.tie.traffic import (
    AS_IN_PAPER,
    LOG_SIGMA,
    MU,
    LogNormalPredictions,
    mean_and_cvar,
    synthetic_traffic,
    weighted,
    weighted_score,
)
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.simulator.tasks import ResultCache
from lengthwise.workloads import LengthSamples, load_castillo
from tests.experiments.samples import check_output
from tests.workloads.made_samples import made_up

NORMAL = norm.ppf((np.arange(200_000) + 0.5) / 200_000)


def predictions(mu: list[float], sigma: list[float], cap: float = 2048.0) -> RequestPredictions:
    n = len(mu)
    return RequestPredictions(
        "x", np.array(mu), np.array(sigma), np.full(n, cap), np.full(n, "", dtype=object), np.exp(np.array(mu))
    )


@given(st.floats(0, 9), st.floats(0.02, 2.5), st.integers(2, 20_000))
def test_mean_and_tail_of_a_log_normal_agree_with_quadrature(mu: float, sigma: float, cap: int) -> None:
    x = np.minimum(np.exp(mu + sigma * NORMAL), cap)
    mean, cvar = mean_and_cvar(np.array([mu]), np.array([sigma]), np.array([float(cap)]))
    assert mean[0] == pytest.approx(x.mean(), rel=2e-3)
    assert cvar[0] == pytest.approx(x[180_000:].mean(), rel=4e-3)
    assert mean[0] <= cvar[0] * (1 + 1e-9)
    assert cvar[0] <= cap * (1 + 1e-9)


def test_a_log_normal_keeps_the_spread_of_logarithms_and_has_the_lighter_far_tail() -> None:
    logt = predictions([5.0], [0.5], cap=1e7)
    lognormal = LogNormalPredictions.of(logt)
    draws = 5.0 + 0.5 * np.random.default_rng(0).standard_t(3.5, 2_000_000)
    assert lognormal.sigma[0] == pytest.approx(draws.std(), rel=0.05)
    assert lognormal.mu[0] == logt.mu[0]
    assert lognormal.expected_and_tail()[1][0] < logt.expected_and_tail()[1][0]


def test_certain_predictions_have_no_family() -> None:
    certain = predictions([5.0, 3.0], [0.0, 0.0])
    predicted, same = LogNormalPredictions.of(certain).expected_and_tail(), certain.expected_and_tail()
    np.testing.assert_array_equal(predicted, same)


def test_the_score_for_per_token_latency_is_mean_over_mean_inverse() -> None:
    predicted = predictions([4.0, 6.0], [0.3, 0.8])
    u = (np.arange(300_000) + 0.5) / 300_000
    lengths = np.clip(np.exp(predicted.mu + predicted.sigma * stdtrit(3.5, u)[:, None]), 1, 2048)
    assert weighted_score(predicted) == pytest.approx(lengths.mean(axis=0) / (1 / lengths).mean(axis=0), rel=5e-3)
    np.testing.assert_array_equal(np.argsort(weighted(predicted).mu), np.argsort(weighted_score(predicted)))


def test_a_certain_length_scores_its_square() -> None:
    assert weighted_score(predictions([np.log(20.0)], [0.0])) == pytest.approx([400.0])


def test_every_score_orders_predictions_of_equal_spread_the_same_way() -> None:
    alike = orders(predictions(np.linspace(2, 6, 40).tolist(), [0.4] * 40))
    assert vars(alike) == pytest.approx(dict.fromkeys(vars(alike), 1.0))


def test_the_median_is_nearest_to_the_best_order_for_per_token_latency() -> None:
    alike = orders(synthetic_traffic(400, seed=1).logt)
    assert alike.tie_and_median < 0.8
    assert alike.tie_and_best < alike.mean_and_best < alike.median_and_best


def test_synthetic_traffic_has_the_papers_spread_and_predictability() -> None:
    made = synthetic_traffic(8000, seed=3)
    assert made.prompt_cv == pytest.approx(paper.WITHIN_PROMPT_CV, abs=0.05)
    lengths = made.workload.output_tokens
    assert (lengths.min(), lengths.max()) == (1, paper.MAX_TOKENS)
    # A prediction that is unbiased given itself explains as much variance as it has.
    assert made.logt.mu.var() / MU[1] ** 2 == pytest.approx(paper.R_SQUARED[0], abs=0.03)
    spread = np.log1p(np.exp(np.random.default_rng(0).normal(*LOG_SIGMA, 100_000))).var()
    assert np.log1p(made.logt.sigma).var() / spread == pytest.approx(paper.R_SQUARED[1], abs=0.05)
    slope = np.polyfit(made.logt.mu, np.log(lengths), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.05)
    assert made.logt.tau > 0.55


def test_synthetic_traffic_is_the_same_twice_and_differs_by_seed() -> None:
    one, again, other = synthetic_traffic(50, 1), synthetic_traffic(50, 1), synthetic_traffic(50, 2)
    assert one.workload.content_hash == again.workload.content_hash != other.workload.content_hash
    np.testing.assert_array_equal(one.logt.mu, again.logt.mu)


def test_the_papers_figures_give_the_factors_of_its_abstract() -> None:
    main = paper.ONLINE[paper.MAIN]
    assert main["ltr"] / main["tie"] == pytest.approx(2.31, abs=0.01)
    assert paper.OFFLINE["ltr"][0] / paper.OFFLINE["tie"][0] == pytest.approx(1.42, abs=0.01)
    assert paper.ABLATION["full"][0] == main["tie"]


def test_the_implied_capacity_reproduces_the_growth() -> None:
    low, high = paper.RATES
    capacity = paper.implied_capacity()
    assert (1 / capacity - 1 / high) / (1 / capacity - 1 / low) == pytest.approx(paper.GROWTH["fcfs"])
    assert low > capacity  # above it already at the lowest rate, as the formula assumes


PREDICTOR = "noisy:0.5"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TieResult:
    grid = TieGrid(seeds=2, requests=200, loads=(0.9, LOW, HIGH), pool=400, predictor=PREDICTOR)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LENGTHWISE_DATA", raising=False)
        return measure(Run(ResultCache(tmp_path_factory.mktemp("cache"))), grid)


@pytest.mark.parametrize("grid", ["online", "synthetic", "offline"])
def test_within_a_seed_every_policy_gets_the_same_arrivals_and_lengths(grid: str, small: TieResult) -> None:
    found = small.offline.grid if grid == "offline" else getattr(small, grid)
    for offered in found.offered_loads:
        cells = [cell for cell in found.cells if cell.offered == offered]
        assert len(cells) > len(POLICIES)
        for seed in range(2):
            first = cells[0].outcomes[seed]
            for cell in cells:
                np.testing.assert_array_equal(cell.outcomes[seed].arrival_s, first.arrival_s)
                np.testing.assert_array_equal(cell.outcomes[seed].output_tokens, first.output_tokens)
                assert not np.isnan(cell.outcomes[seed].finished_s).any()
        assert not np.array_equal(cells[0].outcomes[0].output_tokens, cells[0].outcomes[1].output_tokens)


def test_the_ablation_is_run_at_every_load_and_weaker_predictions_at_the_highest(small: TieResult) -> None:
    found = small.online
    for offered in found.offered_loads:
        there = {(cell.policy, cell.predictor) for cell in found.cells if cell.offered == offered}
        assert {(policy, PREDICTOR) for policy in ABLATED.values()} | {("tie", LOGNORMAL)} <= there
        assert (("sjf", WEAKER[0]) in there) == (offered == top(found))


def test_ssjf_and_ltr_give_the_same_order_with_the_same_predictions_and_enough_memory(small: TieResult) -> None:
    found = small
    for one, other in zip(
        find(found.online, "sjf", PREDICTOR).outcomes, find(found.online, "ltr", PREDICTOR).outcomes, strict=True
    ):
        np.testing.assert_array_equal(one.finished_s, other.finished_s)


def test_with_true_lengths_offline_tie_equals_sjf(small: TieResult) -> None:
    # Online, aging makes them differ; offline all requests wait equally long.
    found = offline_figures(small.offline)
    assert found["tie", "oracle"] == found["sjf", "oracle"]
    assert found["sjf", "oracle"][0][0] < found["fcfs", None][0][0]


def test_offline_counts_agree_with_finished_requests(small: TieResult) -> None:
    found = small.offline
    assert (found.samples, found.window_s) == (200, 12.0)  # half of the pool, and as much less than 3 minutes
    outcome = find(found.grid, "fcfs", "").outcomes[0]
    assert outcome.arrival_s.max() == 0
    times, counts = offline_figures(found)["fcfs", None]
    assert (outcome.finished_s <= times[0]).sum() >= found.samples
    assert (outcome.finished_s < times[0]).sum() < found.samples
    assert counts[0] == (outcome.finished_s <= 12.0).sum()


def test_the_band_of_the_heatmap_is_narrowest_with_true_lengths_and_absent_under_fcfs(small: TieResult) -> None:
    found = small.offline.grid
    true, predicted, none = (
        concentration(find(found, *name)) for name in (("sjf", "oracle"), ("sjf", PREDICTOR), ("fcfs", ""))
    )
    assert min(true) > 0.99 > max(predicted)
    assert min(predicted) > 0.2 > max(map(abs, none))
    shown = next(row for row in claims(small) if row.statement.endswith("correlation of length and time"))
    assert shown.ours.ratio == pytest.approx(1.0)  # predictions of equal width give both the same order


def test_alpaca_is_served_offline_if_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    assert offline_rows(load_castillo())[1] == "all test prompts"  # the packaged sample has none
    renamed = made_up().table.to_pydict()
    renamed["corpus"] = ["Alpaca" if corpus == "Mbpp" else corpus for corpus in renamed["corpus"]]
    rows, corpus = offline_rows(LengthSamples.from_table(renamed, origin="made up"))
    assert (corpus, set(rows.corpora)) == ("Alpaca", {"Alpaca"})


def test_the_70b_llm_is_compared_on_each_corpus_that_the_data_has(
    small: TieResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(small.large) <= {"ShareGPT"}  # the packaged sample has no Alpaca
    renamed = made_up(llms=("meta-llama/Llama-3.1-8B-Instruct", LARGE_LLM)).table.to_pydict()
    renamed["corpus"] = ["Alpaca" if corpus == "Mbpp" else corpus for corpus in renamed["corpus"]]
    monkeypatch.setattr(Run, "castillo", lambda _: LengthSamples.from_table(renamed, origin="made up"))
    grid = TieGrid(seeds=2, requests=60, loads=(LOW, HIGH), pool=40, predictor=PREDICTOR)
    found = measure(Run(ResultCache(tmp_path)), grid)
    assert {str(each.fleet) for each in found.large.values()} == {LARGE_ENGINE}
    assert all(each.workload.name.endswith(LARGE_LLM) for each in found.large.values())
    compared = {row.statement: row.paper for row in claims(found) if "70B" in row.statement}
    assert compared["Alpaca, 70B: tie over ltr"] == pytest.approx(1.54 / 2.36)
    assert len(compared) == 10 * len(found.large)
    check_output(STUDY.output(found))


def test_spread_within_prompts_leaves_out_degenerate_samples() -> None:
    samples = made_up(llms=("meta-llama/Llama-3.1-8B-Instruct",))
    rows = samples.lengths_matrix()
    clean = [np.minimum(row[keep], paper.MAX_TOKENS) for row, keep in zip(rows, samples.clean_mask(), strict=True)]
    expected = np.mean([row.std(ddof=1) / row.mean() for row in clean if len(row) > 1])
    assert within_prompts(samples, "llama-3.1-8b") == pytest.approx(expected)


def test_every_claim_has_our_value_in_its_settings(small: TieResult) -> None:
    rows = claims(small)
    assert len({(row.statement, row.setting) for row in rows}) == len(rows)
    assert all(np.isfinite(row.ours.ratio) for row in rows)
    tie_over_fcfs = next(row for row in rows if (row.statement, row.setting) == ("tie over fcfs", "synthetic"))
    ours = find(small.synthetic, "tie", AS_IN_PAPER).figures("per_token_s", "mean")
    base = find(small.synthetic, "fcfs", "").figures("per_token_s", "mean")
    assert tie_over_fcfs.ours.ratio == pytest.approx(np.exp(np.mean(np.log(np.array(ours) / base))))


def test_figure_4_on_a_real_engine_is_paired_by_block() -> None:
    rows = {row.statement: row for row in engine_claims()}
    assert all(row.setting == SETTING for row in rows.values())
    found = figures_by_block()
    tie, sjf = (np.array([each["per_token"] for each in found[name]]) for name in ("tie", "sjf"))
    ours = rows["tie over sjf"].ours
    assert ours.ratio == pytest.approx(np.exp(np.log(tie / sjf).mean()))
    assert (tie / sjf).min() - 1e-9 <= ours.low <= ours.ratio <= ours.high <= (tie / sjf).max() + 1e-9
    assert rows["tie over sjf"].paper == pytest.approx(0.67 / 1.95)
    assert rows["tie over fcfs, total E2E / total tokens"].ours.ratio == pytest.approx(
        np.exp(np.mean([np.log(t["mean"] / f["mean"]) for t, f in zip(found["tie"], found["fcfs"], strict=True)]))
    )
    assert KEPT.name in engine_note()
    assert f"{len(tie)} blocks" in engine_note()


def test_noisy_predictions_have_the_tau_of_their_name(small: TieResult) -> None:
    found = weaker(small)
    assert [each["predictor"] for each in found] == list(WEAKER)  # the study's own is one of them
    assert [each["tau"] for each in found] == pytest.approx(
        [float(name.removeprefix("noisy:")) for name in WEAKER], abs=0.02
    )
    assert found[-1]["ratio"].ratio < found[0]["ratio"].ratio


def test_tables_are_complete_and_plotly_accepts_every_figure(small: TieResult) -> None:
    check_output(STUDY.output(small))


def test_json_holds_every_policy_and_claim(small: TieResult) -> None:
    found = json.loads(STUDY.output(small).json())
    assert {row[0] for row in found["tables"][0]["rows"]} == set(POLICIES)
    assert len(found["claims"]) == len(claims(small))
