"""One prompt sent many times: the family that generated the lengths is recovered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.one_prompt import STUDY, OnePromptGrid, analyse, draw, measure
from experiments.study import Run
from lengthwise.errors import InputError
from lengthwise.lengths.families import LOGNORMAL, LOGT, logt_family
from lengthwise.simulator.tasks import ResultCache
from lengthwise.workloads import LengthSamples
from tests.experiments.samples import check_output

LIMIT = 2000
LOGT_FIXED = logt_family(3.5).name


def samples_of(lengths: NDArray[np.float64], prompts: int = 1) -> LengthSamples:
    cut = np.minimum(np.maximum(np.rint(lengths), 1), LIMIT).astype(np.int64)
    return LengthSamples.from_table(
        {
            "corpus": ["one_prompt"] * prompts,
            "prompt_id": [str(n) for n in range(prompts)],
            "llm": ["SmolLM2-135M-Instruct"] * prompts,
            "input_tokens": [12] * prompts,
            "lengths": [cut.tolist()] * prompts,
            "capped": [(cut >= LIMIT).tolist()] * prompts,
            "prompt": ["Tell me about <b>queues</b>."] * prompts,
        },
        origin="made up",
    )


def heavy(n: int = 256, sigma: float = 0.4) -> NDArray[np.float64]:
    family = logt_family(3.5)
    return np.asarray(family.draw(np.random.default_rng(3), np.array([[5.0, sigma, 3.5]]), n)[0])


def test_lengths_of_a_log_t_are_recognised() -> None:
    found = analyse(samples_of(heavy()), LIMIT)
    logt = found.fit(LOGT.name)
    assert logt.params[0] == pytest.approx(5.0, abs=0.1)
    assert logt.params[1] == pytest.approx(0.4, rel=0.2)
    assert logt.loglik_gain > 5
    assert found.fit(LOGNORMAL.name).loglik_gain == pytest.approx(0.0)
    names = [each.name for each in found.fits]
    assert names.index(LOGT.name) < names.index(LOGNORMAL.name)


def test_lengths_of_a_log_normal_are_not_heavy_tailed() -> None:
    normal = np.exp(np.random.default_rng(4).normal(5.0, 0.5, 256))
    found = analyse(samples_of(normal), LIMIT)
    assert found.fit(LOGT.name).loglik_gain < 0
    assert found.fit(LOGNORMAL.name).ks_passes is True


def test_capped_answers_count_as_longer_and_disable_ks() -> None:
    found = analyse(samples_of(heavy(sigma=1.0)), LIMIT)
    assert found.capped.any()
    assert all(each.ks_passes is None for each in found.fits)
    assert found.fit(LOGT.name).params[1] == pytest.approx(1.0, rel=0.25)
    assert any("are cut off at 2,000" in note for note in STUDY.tables(found)[0].notes)


def test_the_shipped_predictors_prediction_is_included() -> None:
    found = analyse(samples_of(heavy()), LIMIT)
    assert 1 < found.predicted["fast"].quantile(0.5) < LIMIT


def test_tables_page_and_figure_are_complete(tmp_path: Path) -> None:
    found = analyse(samples_of(heavy()), LIMIT)
    draw(found, tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    output = STUDY.output(found)
    check_output(output)
    page = output.html()
    assert "<img" in page
    assert "log-t, nu=3.5" in page
    assert "<b>queues</b>" not in page, "a prompt is text, not HTML"


def test_lengths_without_spread_and_unlabelled_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="2 prompts"):
        analyse(samples_of(heavy(), prompts=2), LIMIT)
    with pytest.raises(InputError, match="have no spread to fit"):
        analyse(samples_of(np.full(50, 12.0)), LIMIT)


def test_answers_of_another_llm_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.parquet"
    samples_of(heavy()).write(path)
    found = measure(Run(ResultCache(tmp_path / "cache")), OnePromptGrid(path, max_tokens=LIMIT))
    assert len(found.lengths) == len(heavy())
