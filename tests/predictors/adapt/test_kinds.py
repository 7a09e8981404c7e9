"""Any text is of some kind."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.predictors.mixture import NAMES, kinds


@given(st.lists(st.text(), max_size=5))
def test_any_text_has_finite_numbers(texts: list[str]) -> None:
    found = kinds(texts)
    assert found.shape == (len(texts), len(NAMES))
    assert np.isfinite(found).all()


def test_code_questions_and_letters_are_apart() -> None:
    code, question = kinds(["import os\ndef f(x):\n    return [x]\n", "Why is the sky blue?"])
    of = dict(zip(NAMES, zip(code, question, strict=True), strict=True))
    for name in ("words of code", "signs of code", "lines"):
        assert of[name][0] > of[name][1]
    assert of["ends asking"] == (0.0, 1.0)


def test_half_a_surrogate_and_a_megabyte_are_texts() -> None:
    assert np.isfinite(kinds(["\udcff", "x" * 1_000_000, ""])).all()
