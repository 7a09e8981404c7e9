"""One prompt asked many times: the family that made the lengths is the one that is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.one_prompt.plot import draw
from experiments.one_prompt.study import study_one_prompt
from experiments.one_prompt.view import html_report, plain, tables
from lengthwise.errors import InputError
from lengthwise.lengths.families import LOGNORMAL, LOGT, logt_family
from lengthwise.reports.tables import to_json
from lengthwise.workloads import LengthSamples

LIMIT = 2000


def asked(lengths: NDArray[np.float64], prompts: int = 1) -> LengthSamples:
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


def test_lengths_of_a_log_t_are_found_to_be_those_of_a_log_t() -> None:
    found = study_one_prompt(asked(heavy()), LIMIT)
    logt = found.fit(LOGT.name)
    assert logt.params[0] == pytest.approx(5.0, abs=0.1)
    assert logt.params[1] == pytest.approx(0.4, rel=0.2)
    assert logt.loglik_gain > 5
    assert found.fit(LOGNORMAL.name).loglik_gain == pytest.approx(0.0)
    names = [each.name for each in found.fits]
    assert names.index(LOGT.name) < names.index(LOGNORMAL.name)


def test_lengths_of_a_log_normal_are_not_called_heavy_tailed() -> None:
    normal = np.exp(np.random.default_rng(4).normal(5.0, 0.5, 256))
    found = study_one_prompt(asked(normal), LIMIT)
    assert found.fit(LOGT.name).loglik_gain < 0
    assert found.fit(LOGNORMAL.name).ks_passes is True


def test_answers_that_were_cut_off_count_as_longer_and_silence_ks() -> None:
    found = study_one_prompt(asked(heavy(sigma=1.0)), LIMIT)
    assert found.capped.any()
    assert all(each.ks_passes is None for each in found.fits)
    assert found.fit(LOGT.name).params[1] == pytest.approx(1.0, rel=0.25)
    assert any("were cut off at 2,000" in note for note in tables(found)[0].notes)


def test_what_the_shipped_predictor_predicts_stands_beside() -> None:
    found = study_one_prompt(asked(heavy()), LIMIT)
    assert 1 < found.predicted["fast"].quantile(0.5) < LIMIT


def test_it_can_be_drawn_and_told(tmp_path: Path) -> None:
    found = study_one_prompt(asked(heavy()), LIMIT)
    draw(found, tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    page = html_report(found)
    assert "<img" in page
    assert "log-t, nu=3.5" in page
    assert "<b>queues</b>" not in page, "a prompt is text, not HTML"
    assert len(to_json(plain(found))) > 500


def test_what_has_no_spread_or_more_prompts_is_refused() -> None:
    with pytest.raises(InputError, match="2 prompts"):
        study_one_prompt(asked(heavy(), prompts=2), LIMIT)
    with pytest.raises(InputError, match="have no spread to fit"):
        study_one_prompt(asked(np.full(50, 12.0)), LIMIT)
