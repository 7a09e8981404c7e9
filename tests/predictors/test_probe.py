"""Probes: bins, smoothing, files and readings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import Histogram, LengthDistribution, LogT, Point
from lengthwise.predictors.probe import (
    NONE,
    PAPER,
    Bins,
    Probe,
    ProbeNetwork,
    Smoothing,
    left_by_age,
    load_probe,
    log_bins,
    mass_by_age,
    mass_of,
    of_prediction,
    paper_bins,
    write_probe,
)


def test_bins_and_transition_are_those_of_the_trail_paper() -> None:
    bins = paper_bins()
    assert len(bins) == 10
    assert bins.edges[-1] == 512
    once = bins.after(1)
    width = 51.2
    assert once[3, 3] == pytest.approx(1 - 1 / width)
    assert once[3, 2] == pytest.approx(1 / width)
    assert once[0, 0] == 1.0
    assert np.count_nonzero(once) == 19


def test_a_length_is_in_the_bin_that_ends_at_or_after_it() -> None:
    bins = Bins((0.0, 4.0, 10.0, 100.0))
    assert bins.of([1, 4, 5, 10, 11, 100, 5000]).tolist() == [0, 0, 1, 1, 2, 2, 2]


def test_bins_that_do_not_increase_are_refused() -> None:
    for edges in ((0.0,), (1.0, 2.0), (0.0, 5.0, 5.0)):
        with pytest.raises(InputError, match="not increasing from 0"):
            Bins(edges)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(10, 5000))
def test_the_transition_moves_mass_to_shorter_bins_and_preserves_it(first: int, second: int, cap: int) -> None:
    bins = log_bins(cap)
    moved = bins.after(first) @ bins.after(second)
    assert np.allclose(moved, bins.after(first + second))
    assert np.allclose(moved.sum(axis=1), 1.0)
    assert np.allclose(np.triu(moved, k=1), 0.0)


@given(st.lists(st.floats(0.01, 1.0), min_size=9, max_size=9), st.floats(0.01, 0.99), st.integers(1, 900))
def test_quantiles_are_those_of_the_histogram(mass: list[float], q: float, cap: int) -> None:
    bins = log_bins(600, count=9)
    row = np.array(mass)[: len(bins)] / sum(mass[: len(bins)])
    assert bins.quantile(row[None], q, cap)[0] == pytest.approx(Histogram(bins.edges, row, cap).quantile(q), rel=1e-6)


def test_smoothing_with_trails_weights_is_prior_times_reading() -> None:
    bins = Bins((0.0, 10.0, 20.0))
    before, reading = np.array([0.2, 0.8]), np.array([0.5, 0.5])
    prior = before @ bins.after(3)
    assert np.allclose(PAPER.step(bins, before, 3, reading), prior)
    reading = np.array([0.9, 0.1])
    assert np.allclose(PAPER.step(bins, before, 3, reading), prior * reading / (prior @ reading))
    assert np.allclose(NONE.step(bins, before, 3, reading), reading)


def test_rows_are_smoothed_within_an_answer_only() -> None:
    bins = Bins((0.0, 10.0, 20.0))
    readings = np.array([[0.3, 0.7], [0.9, 0.1], [0.5, 0.5]])
    prior = np.full((3, 2), 0.5)
    # Rows of answer 7 out of order: age 16 comes first.
    smooth = PAPER.rows(bins, readings, prior, np.array([7, 7, 8]), np.array([16, 0, 16]))
    assert np.allclose(smooth[1:], readings[1:])
    assert np.allclose(smooth[0], PAPER.step(bins, readings[1], 16, readings[0]))


def test_the_first_reading_can_be_combined_with_the_prompts_prediction() -> None:
    prior, reading = np.array([0.9, 0.1]), np.array([0.5, 0.5])
    assert np.allclose(Smoothing(start=1.0).first(prior, reading), prior)
    assert np.allclose(Smoothing(start=0.0).first(prior, reading), reading)
    between = Smoothing(start=0.5).first(prior, reading)[0]
    assert 0.5 < between < 0.9


CARD = {"name": "made", "data": "made up", "licences": {}, "limits": []}
PREDICTION = LogT(5.0, 0.7, 1024)


def made_probe(inputs: tuple[str, ...] = ("prompt",), *, seed: int = 0, features: int = 5) -> Probe:
    rng = np.random.default_rng(seed)
    bins = log_bins(1024)
    shapes = {"centre": (8,), "spread": (8,), "a": (8 + features, 4), "a_bias": (4,), "b": (4, len(bins)),
              "b_bias": (len(bins),), "skip": (features, len(bins))}  # fmt: skip
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    arrays["spread"] = np.ones(8)
    return Probe(3, bins, ProbeNetwork.of(arrays), inputs, Smoothing(0.5, 0.5, 0.7), llm="tiny", card=CARD)


def test_a_reading_is_a_distribution_of_the_remaining_tokens() -> None:
    reading = made_probe().follow(PREDICTION, cap=1024)
    assert reading.due(0)
    found = reading.read(np.zeros(8), 0)
    assert isinstance(found, Histogram)
    assert isinstance(found, LengthDistribution)
    assert found.cap == 1024
    assert not reading.due(15)
    assert reading.due(16)
    assert reading.remaining(10).mean() == pytest.approx(found.remaining(10).mean())
    assert reading.read(np.ones(8), 16).cap == 1008


def test_before_the_first_reading_the_prompts_prediction_is_used() -> None:
    reading = made_probe().follow(PREDICTION)
    assert reading.remaining(20).quantile(0.5) == PREDICTION.remaining(20).quantile(0.5)


def test_a_request_at_its_cap_has_no_remaining_tokens() -> None:
    reading = made_probe().follow(PREDICTION, cap=16)
    reading.read(np.zeros(8), 0)
    assert isinstance(reading.read(np.zeros(8), 16), Point)


def test_readings_are_smoothed_like_rows() -> None:
    probe = made_probe()
    states, ages = np.random.default_rng(1).standard_normal((3, 8)), np.array([0, 16, 48])
    mu, sigma = np.full(3, PREDICTION.mu), np.full(3, PREDICTION.sigma)
    left = left_by_age(ages, mu, sigma, PREDICTION.nu, PREDICTION.cap)
    raw = probe.probabilities(states, ages, mu=mu, sigma=sigma, left=left)
    prior = mass_by_age(probe.bins, ages, mu, sigma, PREDICTION.nu)
    rows = probe.smoothing.rows(probe.bins, raw, prior, np.zeros(3, np.int64), ages)
    reading = probe.follow(PREDICTION)
    for row, state, age in zip(rows, states, ages.tolist(), strict=True):
        found = reading.read(state, age)
        assert isinstance(found, Histogram)
        # A log-t censored at the cap has mass there; the columns are not censored.
        assert np.allclose(found.probabilities, row, atol=1e-6)


def test_remaining_lengths_by_age_match_those_of_single_distributions() -> None:
    ages = np.array([0, 1, 50, 900])
    mu, sigma = np.full(4, 5.0), np.full(4, 0.7)
    one = [PREDICTION.remaining(int(age)).quantile(0.5) for age in ages]
    assert np.allclose(left_by_age(ages, mu, sigma, PREDICTION.nu, 1024), one, rtol=1e-6)
    bins = log_bins(600)
    assert np.allclose(
        mass_by_age(bins, ages[:3], mu[:3], sigma[:3], PREDICTION.nu),
        [mass_of(bins, PREDICTION.remaining(int(age))) for age in ages[:3]],
    )


def test_a_prediction_of_another_family_is_described_by_its_quartiles() -> None:
    mu, sigma = of_prediction(Histogram((0.0, 100.0, 200.0), (0.5, 0.5)))
    assert mu == pytest.approx(np.log(100.0))
    assert sigma > 0
    assert of_prediction(Point(50))[0] == pytest.approx(np.log(50.0))


def test_the_mean_of_networks_returns_the_mean_of_their_logits() -> None:
    one, other = made_probe(seed=0).network, made_probe(seed=1).network
    other = ProbeNetwork.of({**other.arrays(), "centre": one.centre, "spread": one.spread})
    state, features = np.ones((1, 8)), np.ones((1, 5), np.float32)
    logs = [np.log(network.probabilities(state, features)) for network in (one, other, ProbeNetwork.mean([one, other]))]
    mean = (logs[0] + logs[1]) / 2
    assert np.allclose(logs[2], mean - np.log(np.exp(mean).sum()), atol=1e-5)


def test_a_probe_is_written_and_read_back(tmp_path: Path) -> None:
    path, probe = tmp_path / "made.lw", made_probe()
    write_probe(path, probe)
    back = load_probe(path)
    assert (back.layer, back.bins, back.inputs, back.smoothing, back.every, back.llm) == (
        probe.layer, probe.bins, probe.inputs, probe.smoothing, probe.every, probe.llm,
    )  # fmt: skip
    assert back.card["name"] == "made"
    state = np.linspace(-1, 1, 8)
    assert np.allclose(back.probabilities(state, 5), probe.probabilities(state, 5), atol=0.01)


def test_a_file_of_another_kind_or_of_other_bins_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fast"):
        load_probe("fast")
    odd = made_probe()
    path = tmp_path / "odd.lw"
    write_probe(path, Probe(odd.layer, log_bins(50), odd.network, card=CARD))
    with pytest.raises(InputError, match="do not fit"):
        load_probe(path)
