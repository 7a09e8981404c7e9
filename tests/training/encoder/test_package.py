from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.training.encoder.package import calibrate
from tests.training.encoder.test_ensemble import P, pack


def test_calibration_on_held_out_prompts_corrects_location_spread_and_tail() -> None:
    adjusted = calibrate(np.full((P, 3), 4.5), np.full((P, 3), 0.05), pack(0.4), np.arange(P))
    assert adjusted.nu == 3.5
    for llm in ("a", "b"):
        assert 4.5 + adjusted.by_llm[llm].shift == pytest.approx(5.0, abs=0.03)
        assert 0.05 * adjusted.by_llm[llm].factor == pytest.approx(0.4, abs=0.04)


def test_the_calibration_of_an_llm_with_few_held_out_prompts_shrinks_towards_the_others() -> None:
    data = pack(0.4)
    lengths = data.lengths.copy()
    lengths[10:, 1] = 0
    lengths[:10, 1] = 3000
    adjusted = calibrate(np.full((P, 3), 5.0), np.full((P, 3), 0.4), replace(data, lengths=lengths), np.arange(P))
    assert adjusted.by_llm["b"].prompts == 10
    assert abs(adjusted.by_llm["b"].shift) < np.log(3000) - 5.0 - 1.0


def test_the_unknown_llm_is_calibrated_on_the_lengths_of_all_llms() -> None:
    mu = np.full((P, 3), 5.0)
    mu[:, 2] = 7.0
    adjusted = calibrate(mu, np.full((P, 3), 0.4), pack(0.4), np.arange(P))
    assert adjusted.others.shift == pytest.approx(-2.0, abs=0.03)


def test_corpora_have_equal_weight_in_calibration() -> None:
    data = pack(0.05)
    lengths, corpus = data.lengths.copy(), np.zeros(P, np.int8)
    lengths[:40] = 2 * data.lengths[:40]
    corpus[:40] = 1
    adjusted = calibrate(
        np.full((P, 3), 5.0),
        np.full((P, 3), 0.4),
        replace(data, lengths=lengths, corpus=corpus, corpora=("c", "d")),
        np.arange(P),
    )
    assert 0.05 < adjusted.by_llm["a"].shift < np.log(2) - 0.05
