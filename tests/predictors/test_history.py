"""The running log-t learns from complete and censored answers and forgets old ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import LogT, fit_logt, wide_prior
from lengthwise.predictors import LengthPredictor, PredictionInput
from lengthwise.predictors.history import MAX_LLMS, History, Tracker

NU = 3.5


def draws(seed: int, n: int, mu: float = 5.5, sigma: float = 0.6) -> list[int]:
    rng = np.random.default_rng(seed)
    return [max(1, round(x)) for x in np.exp(mu + sigma * rng.standard_t(NU, n)).clip(max=1e6)]


def prediction(history: History, llm: str, max_tokens: int | None = None) -> LogT:
    request = PredictionInput("x", llm, max_tokens)
    found = history.predict([request])[0]
    assert found == history.prediction(llm, request.cap)
    assert isinstance(found, LogT)
    return found


def test_without_any_history_the_wide_prior_is_predicted() -> None:
    assert isinstance(History(), LengthPredictor)
    assert prediction(History(), "any") == wide_prior()
    assert prediction(History(), "any", 100) == wide_prior(100)
    assert len(History().predict([])) == 0


def test_an_unknown_llm_has_the_pooled_history() -> None:
    history = History()
    for length in draws(0, 300):
        history.observe("seen", length)
    unknown = prediction(history, "unknown")
    assert unknown.mu == pytest.approx(history.pooled.location)
    assert unknown.mu == pytest.approx(5.5, abs=0.2)


def test_each_llm_has_its_own_history() -> None:
    history = History()
    for short, long in zip(draws(1, 400, mu=3.0), draws(2, 400, mu=7.0), strict=True):
        history.observe("short", short)
        history.observe("long", long)
    assert prediction(history, "short").mu == pytest.approx(3.0, abs=0.2)
    assert prediction(history, "long").mu == pytest.approx(7.0, abs=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_the_running_estimate_is_near_the_maximum_likelihood_of_recent_lengths(seed: int) -> None:
    history, lengths = History(), draws(seed, 450)
    for length in lengths:
        history.observe("m", length)
    fitted = fit_logt(lengths[-300:])
    assert prediction(history, "m").mu == pytest.approx(fitted.mu, abs=0.12)
    assert prediction(history, "m").sigma == pytest.approx(fitted.sigma, rel=0.15)


@pytest.mark.parametrize("seed", range(3))
def test_censored_answers_do_not_shorten_the_history(seed: int) -> None:
    cut, naive = History(), History()
    for length in draws(seed, 600):
        cut.observe("m", min(length, 300), censored=length > 300)
        naive.observe("m", min(length, 300))
    assert prediction(cut, "m").mu == pytest.approx(5.5, abs=0.17)
    assert prediction(cut, "m").sigma == pytest.approx(0.6, rel=0.3)
    assert prediction(naive, "m").quantile(0.95) < 0.75 * prediction(cut, "m").quantile(0.95)


def test_one_outlier_hardly_moves_the_prediction() -> None:
    history = History()
    for length in draws(3, 200):
        history.observe("m", length)
    before = prediction(history, "m").mu
    history.observe("m", 1_000_000)
    assert abs(prediction(history, "m").mu - before) < 0.02


def test_the_number_of_llms_with_a_history_is_bounded() -> None:
    history = History()
    for n in range(MAX_LLMS + 50):
        history.observe(f"llm {n}", 100)
    assert len(history.by_llm) == MAX_LLMS
    assert "llm 0" not in history.by_llm


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(-3, 10**9), st.booleans()), max_size=30))
def test_the_prediction_stays_within_the_cap_for_any_observations(observed: list[tuple[int, bool]]) -> None:
    history = History()
    for length, censored in observed:
        history.observe("m", length, censored=censored)
    assert 1.0 <= prediction(history, "m").mean() <= 8192


def test_stationary_values_raise_no_alarm() -> None:
    tracker = Tracker.starting(0.0, 1.0, 20.0)
    for y in np.random.default_rng(5).standard_t(NU, 10_000):
        tracker.observe(float(y))
    assert tracker.alarms == 0
    assert tracker.seen == 10_000


def test_a_saved_history_continues_as_if_nothing_had_happened() -> None:
    history, again = History(), History()
    for n, length in enumerate(draws(5, 60)):
        history.observe(f"llm {n % 3}", length, censored=n % 7 == 0)
    again.restore(history.state())
    assert again == history
    for each in (history, again):
        each.observe("llm 1", 77)
    assert again == history


@pytest.mark.parametrize(
    "state", [b"", b"[]", b'{"format": 2}', b'{"format": 1, "pooled": {}, "llms": {}}', History().state()[:-9]]
)
def test_a_broken_state_of_a_history_is_refused_and_changes_nothing(state: bytes) -> None:
    history = History()
    history.observe("m", 40)
    before = prediction(history, "m")
    with pytest.raises(InputError, match="is not a saved history"):
        history.restore(state)
    assert prediction(history, "m") == before
