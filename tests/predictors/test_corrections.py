"""Corrections by LLM and tenant."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.predictors.calibration import Adjustment
from lengthwise.predictors.corrections import (
    adjustment_of,
    corrected,
    fit_corrections,
    from_part,
    to_part,
)

NUMBERS = st.floats(-5, 5)
CORRECTIONS = st.dictionaries(
    st.tuples(st.text(max_size=8), st.none() | st.text(max_size=8)),
    st.builds(Adjustment, NUMBERS, st.floats(0.1, 10), st.integers(0, 10**6)),
    max_size=5,
)


@given(CORRECTIONS)
def test_corrections_are_stored_and_read_back(corrections: dict[tuple[str, str | None], Adjustment]) -> None:
    assert from_part(to_part(corrections), "x") == corrections


def test_a_correction_is_the_tenants_or_the_llms_or_none() -> None:
    of_llm, of_tenant = Adjustment(1.0, 1.0, 50), Adjustment(2.0, 1.0, 30)
    corrections = {("m", None): of_llm, ("m", "a"): of_tenant}
    assert adjustment_of(corrections, "m", "a") == of_tenant
    assert adjustment_of(corrections, "m", "b") == adjustment_of(corrections, "m", None) == of_llm
    assert adjustment_of(corrections, "other", "a") == Adjustment()


def test_a_tenant_with_few_lengths_has_no_correction() -> None:
    rng = np.random.default_rng(0)
    n = 210
    prediction = np.stack([rng.normal(5, 1, n), np.full(n, 0.5)], axis=1)
    tenants = ["a"] * 100 + ["b"] * 100 + ["c"] * 10
    shift = np.repeat([0.0, 1.0, 2.0], [100, 100, 10])
    tokens = np.exp(prediction[:, 0] + shift + 0.5 * rng.standard_t(3.5, n))
    found = fit_corrections(["m"] * n, tenants, prediction, tokens, np.zeros(n, bool))
    assert found.keys() == {("m", None), ("m", "a"), ("m", "b")}
    assert found[("m", "b")].shift - found[("m", "a")].shift == pytest.approx(1.0, abs=0.25)
    after = corrected(found, ["m"] * n, tenants, prediction)
    assert np.median(np.log(tokens) - after[:, 0]) == pytest.approx(0.0, abs=0.15)
    assert fit_corrections(["m"] * 5, ["a"] * 5, prediction[:5], tokens[:5], np.zeros(5, bool)) == {}


@pytest.mark.parametrize(
    "rows",
    [
        "not json",
        [{"llm": "m", "tenant": None, "shift": 1.0}],
        [{"llm": "m", "tenant": None, "shift": 1.0, "factor": 0.0, "prompts": 3}],
        [{"llm": "m", "tenant": None, "shift": float("inf"), "factor": 1.0, "prompts": 3}],
        {"llm": "m"},
    ],
)
def test_an_invalid_part_is_refused(rows: object) -> None:
    data = rows if isinstance(rows, str) else json.dumps(rows)
    with pytest.raises(InputError, match=r"part .corrections\.json. is invalid"):
        from_part(data.encode(), "my.lw")
