from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.workloads import Workload, load_trace, redraw, replay
from lengthwise.workloads.arrivals import daily, gamma, poisson, rescale, spread_ticks


def trace(n: int = 50) -> Workload:
    rng = np.random.default_rng(0)
    return Workload.from_table(
        {"arrival_s": poisson(n, 4.0, rng), "input_tokens": np.arange(1, n + 1), "output_tokens": np.ones(n)},
        name="trace",
    )


@given(st.floats(0.1, 1e3), st.floats(0, 4), st.integers(0, 99))
def test_arrivals_are_nonnegative_and_sorted(rate: float, cv: float, seed: int) -> None:
    arrivals = gamma(100, rate, cv, np.random.default_rng(seed))
    assert len(arrivals) == 100
    assert (arrivals >= 0).all()
    assert (np.diff(arrivals) >= 0).all()


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_given_rate_and_cv(cv: float) -> None:
    gaps = np.diff(gamma(200_000, 8.0, cv, np.random.default_rng(1)))
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03, abs=1e-9)


def test_poisson_is_gamma_with_cv_one() -> None:
    assert poisson(9, 2.0, np.random.default_rng(3)).tolist() == gamma(9, 2.0, 1.0, np.random.default_rng(3)).tolist()


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_rate_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="field 'rate'"):
        poisson(1, rate, np.random.default_rng(0))


def test_a_negative_cv_is_refused() -> None:
    with pytest.raises(InputError, match="field 'cv'"):
        gamma(1, 1.0, -0.1, np.random.default_rng(0))


@given(st.floats(0.01, 1e4))
def test_rescaling_gives_the_rate_and_keeps_the_burstiness(rate: float) -> None:
    before = load_trace("azure_sample").head(200)
    after = rescale(before, rate)
    assert after.rate == pytest.approx(rate)
    assert after.arrival_s[0] == 0
    assert after.describe().arrival_cv == pytest.approx(before.describe().arrival_cv)
    assert after.output_tokens.tolist() == before.output_tokens.tolist()


def test_a_batch_cannot_be_rescaled() -> None:
    batch = trace().replace(arrival_s=np.zeros(50))
    with pytest.raises(InputError, match="no arrivals of its own"):
        rescale(batch, 1.0)


def test_spreading_ticks_keeps_every_request_inside_its_tick() -> None:
    ticked = trace().replace(arrival_s=np.sort(np.arange(50) % 5) * 3.0)
    spread = spread_ticks(ticked, 3.0, np.random.default_rng(0))
    before = dict(zip(ticked.input_tokens.tolist(), ticked.arrival_s.tolist(), strict=True))
    for tokens, arrival in zip(spread.input_tokens.tolist(), spread.arrival_s.tolist(), strict=True):
        assert before[tokens] <= arrival < before[tokens] + 3.0
    assert len(set(spread.arrival_s.tolist())) == 50


def test_resampling_repeats_a_request_only_after_all_were_drawn() -> None:
    drawn = redraw(trace(), requests=120, rate=8.0, seed=1)
    times = np.bincount(drawn.input_tokens)[1:]
    assert set(times.tolist()) == {2, 3}
    assert drawn.input_tokens[:50].tolist() != drawn.input_tokens[50:100].tolist()


def test_the_rate_changes_only_the_arrivals() -> None:
    slow, fast = (redraw(trace(), requests=80, rate=rate, seed=1) for rate in (1.0, 10.0))
    assert slow.input_tokens.tolist() == fast.input_tokens.tolist()
    assert slow.arrival_s == pytest.approx(fast.arrival_s * 10)


def test_a_replay_has_the_first_requests_of_the_trace() -> None:
    assert replay(trace(), requests=10) == trace().head(10)
    assert replay(trace(), requests=10, rate=2.0).rate == pytest.approx(2.0)
    with pytest.raises(InputError, match="51 requests of a trace that has 50"):
        replay(trace(), requests=51)


@pytest.mark.parametrize("minutes", [0.5, 6.0])
def test_a_day_has_its_peak_at_15_h_and_a_tenth_of_it_at_3_h_at_the_rates_of_a_real_day(minutes: float) -> None:
    arrivals = daily(200.0, minutes, np.random.default_rng(0))
    assert (np.diff(arrivals) >= 0).all()
    assert 0 <= arrivals[0] < arrivals[-1] <= 24 * 60 * minutes
    per_hour = np.bincount((arrivals // (60 * minutes)).astype(int), minlength=24) / (60 * minutes)
    assert per_hour[15] == pytest.approx(200.0, rel=0.05)
    assert per_hour[3] == pytest.approx(20.0, rel=0.1)
    assert per_hour[9] == pytest.approx(per_hour[21], rel=0.05)


@pytest.mark.parametrize(("rate", "minutes", "problem"), [(0.0, 1.0, "rate"), (1.0, 0.0, "minutes"), (1.0, 61.0, "60")])
def test_a_day_needs_a_rate_and_hours_of_at_most_60_minutes(rate: float, minutes: float, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        daily(rate, minutes, np.random.default_rng(0))
