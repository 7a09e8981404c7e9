"""Constants and the noise ceiling."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.baselines import Ceiling, ConstantPredictor
from lengthwise.traffic.scores import kendall_tau
from lengthwise.workloads import LengthSamples, load_castillo
from tests.predictors.rows import LLMS, known_rows


def test_a_constant_is_the_same_for_every_prompt_of_an_llm() -> None:
    samples, _ = known_rows()
    predictions = ConstantPredictor.fit(samples).predict_rows(samples.where(llm=LLMS[0]))
    mine = samples.where(llm=LLMS[0])
    assert {predictions[row] for row in range(len(mine))} == {predictions[0]}
    assert predictions.sample_mean[0] == pytest.approx(np.median(mine.clean_mean()))
    assert predictions.quantile(0.5)[0] == pytest.approx(np.median(mine.lengths_matrix()), rel=0.3)


def test_an_unknown_llm_gets_the_pooled_constant() -> None:
    samples, _ = known_rows()
    constant = ConstantPredictor.fit(samples.where(llm=LLMS[0]))
    medians = constant.predict_rows(samples.where(llm=LLMS[1])).quantile(0.5)
    assert medians[0] == pytest.approx(np.exp(constant.constants[()].mu))


def test_a_corpus_has_its_own_constant_and_an_unknown_corpus_its_llms() -> None:
    samples, _ = known_rows()
    medians = ConstantPredictor.fit(samples, by_corpus=True).predict_rows(samples).quantile(0.5)
    corpus = np.array(samples.table["corpus"].to_pylist())
    assert medians[corpus == "long"].min() > 3 * medians[corpus == "short"].max()
    only_long = ConstantPredictor.fit(samples.where(corpus="long"), by_corpus=True)
    medians_of_short = only_long.predict_rows(samples.where(corpus="short")).quantile(0.5)
    assert medians_of_short[:2] == pytest.approx([np.exp(only_long.constants[(llm,)].mu) for llm in LLMS])


def test_fitting_without_a_clean_sample_is_an_error() -> None:
    samples, _ = known_rows(prompts=2)
    columns = samples.table.to_pydict() | {"lengths": [[15_000] * 10] * len(samples)}
    with pytest.raises(InputError, match="no clean sample"):
        ConstantPredictor.fit(LengthSamples.from_table(columns, origin="made up"))


def test_the_ceiling_compares_halves_of_alternate_clean_samples() -> None:
    ceiling = Ceiling.of(np.array([[10, 20, 15_000, 30, 40]]), np.array([[True, True, False, True, True]]))
    assert (ceiling.mean[0], ceiling.true_mean[0]) == (20.0, 30.0)
    assert (ceiling.std[0], ceiling.true_std[0]) == (10.0, 10.0)


def test_a_sample_is_compared_with_the_mean_of_the_others() -> None:
    ceiling = Ceiling.of(np.array([[10, 20, 60]]), np.ones((1, 3), bool))
    assert ceiling.from_the_others[0].tolist() == [30.0, 15.0, 45.0]


def test_the_ceilings_crps_is_half_the_mean_difference_of_two_samples() -> None:
    lengths = np.random.default_rng(0).integers(1, 900, (5, 10))
    clean = np.random.default_rng(1).random((5, 10)) < 0.8
    for row, mask, found in zip(lengths, clean, Ceiling.of(lengths, clean).crps, strict=True):
        pairs = [abs(int(a) - int(b)) for a, b in itertools.combinations(row[mask], 2)]
        assert found == pytest.approx(np.mean(pairs) / 2)


def test_one_clean_sample_gives_no_ceiling() -> None:
    ceiling = Ceiling.of(np.array([[10, 15_000]]), np.array([[True, False]]))
    assert np.isnan([ceiling.true_mean[0], ceiling.crps[0], *ceiling.from_the_others[0]]).all()


@pytest.mark.skipif("LENGTHWISE_DATA" not in os.environ, reason="needs the full data")
def test_castillos_ceiling_is_lower_with_degenerate_samples() -> None:
    samples = load_castillo(split="test")
    six = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != "Alpaca"])
    raw: list[float] = []
    clean: list[float] = []
    for llm in ("Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B"):
        lengths, mask = six.where(llm=llm).lengths_matrix(), six.where(llm=llm).clean_mask()
        for taus, present in ((raw, np.ones_like(mask)), (clean, mask)):
            ceiling = Ceiling.of(lengths, present)
            taus.append(kendall_tau(ceiling.mean, ceiling.true_mean))
    assert raw == pytest.approx([0.764, 0.850, 0.810], abs=6e-4)
    assert clean == pytest.approx([0.795, 0.856, 0.834], abs=6e-4)
