from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import LogT, LogTColumns
from tests.lengths.strategies import logts


def columns(predictions: list[LogT]) -> LogTColumns:
    return LogTColumns.of([b.mu for b in predictions], [b.sigma for b in predictions], [b.cap for b in predictions])


@given(st.lists(logts(), min_size=1, max_size=20))
def test_columns_agree_with_single_predictions(predictions: list[LogT]) -> None:
    many = columns(predictions)
    mean, cvar = many.mean_and_cvar(0.9)
    assert mean == pytest.approx([b.mean() for b in predictions], rel=1e-4)
    assert cvar == pytest.approx([b.cvar(0.9) for b in predictions], rel=1e-4)
    assert many.quantile(0.5) == pytest.approx([b.quantile(0.5) for b in predictions], rel=1e-9)
    lengths = [0, 1, 57.5, 300, 131_072]
    assert many.survival(lengths) == pytest.approx(np.array([[b.survival(n) for n in lengths] for b in predictions]))
    assert [many[i] for i in range(len(many))] == predictions


@pytest.mark.parametrize("alpha", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("nu", [2.0, 3.5, 30.0])
def test_tables_are_accurate_for_other_levels_and_tails(nu: float, alpha: float) -> None:
    rng = np.random.default_rng(7)
    mu, sigma = rng.uniform(0, 9.5, 300), np.exp(rng.uniform(np.log(0.01), np.log(2.5), 300))
    many = LogTColumns.of(mu, sigma, rng.integers(16, 131_073, 300), nu)
    mean, cvar = many.mean_and_cvar(alpha)
    exact = np.array([many[i].mean_and_cvar(alpha) for i in range(300)])
    assert mean == pytest.approx(exact[:, 0], rel=1e-4)
    assert cvar == pytest.approx(exact[:, 1], rel=1e-4)


def test_predictions_outside_the_table_are_integrated_one_by_one() -> None:
    predictions = [LogT(5, 0.0001, 8192), LogT(5, 1, 8192), LogT(5, 9, 8192), LogT(-40, 1, 8192), LogT(40, 1, 8)]
    mean, cvar = columns(predictions).mean_and_cvar(0.9)
    assert mean == pytest.approx([b.mean() for b in predictions], rel=1e-4)
    assert cvar == pytest.approx([b.cvar(0.9) for b in predictions], rel=1e-4)


def test_one_cap_applies_to_all_rows() -> None:
    assert LogTColumns.of([4, 5], [1, 1], 512).quantile(0.999).tolist() == [512, 512]


def test_cvar_at_zero_is_the_mean_and_at_one_the_cap() -> None:
    many = LogTColumns.of([4, 5], [1, 0.3], 512)
    assert many.mean_and_cvar(0.0)[1] == pytest.approx(many.mean(), rel=1e-4)
    assert many.mean_and_cvar(1.0)[1].tolist() == [512, 512]


def test_a_bad_prediction_is_named_by_its_row() -> None:
    with pytest.raises(InputError, match=r"row 2: mu 5\.0, sigma 0\.0, cap 100\.0"):
        LogTColumns.of([4, 5], [1, 0], 100)
