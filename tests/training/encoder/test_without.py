"""An LLM left out of training is unknown to the predictor, and adaptation adds it."""

from __future__ import annotations

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors import load_predictor
from lengthwise.predictors.adapt import Observed, adapt_file
from tests.training.encoder import tiny

from lengthwise.training.data import load_samples  # isort: skip
from tests.training.encoder.test_serve import predictor_file  # isort: skip

from pathlib import Path


def test_an_llm_left_out_has_no_rows(tiny_folder: Path) -> None:
    kept = load_samples(tiny.config(tiny_folder, data={"without": ["llama-3.1-8B"]}).data)
    assert set(kept.llms) == set(tiny.LLMS[1:])
    with pytest.raises(InputError, match="LLM 'unknown-llm' is not known"):
        load_samples(tiny.config(tiny_folder, data={"without": ["unknown-llm"]}).data)


@pytest.mark.usefixtures("few_strengths")
def test_an_encoder_is_adapted_to_an_llm_left_out_of_training(tiny_folder: Path, tmp_path: Path) -> None:
    file = predictor_file(tiny_folder, tmp_path, data={"without": ["llama-3.1-8B"]})
    rows = tiny.samples().where(llm="llama-3.1-8B").table
    texts, lengths = rows["prompt"].to_pylist(), [each[0] * 20 for each in rows["lengths"].to_pylist()]
    report = adapt_file(file, Observed.of(tiny.LLMS[0], texts, lengths, origin="tiny"), tmp_path / "adapted.lw")
    assert not report.replaced
    assert report.after.crps < report.before.crps
    adapted = load_predictor(tmp_path / "adapted.lw")
    medians = adapted.predict(texts, [tiny.LLMS[0]] * len(texts)).quantile(0.5)
    assert np.median(medians / np.array(lengths)) == pytest.approx(1.0, abs=0.4)
