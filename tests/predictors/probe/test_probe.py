from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.lengths import Histogram, LengthDistribution, LogT, Point
from lengthwise.predictors.probe import Probe, Smoothing, load_probe, log_bins, write_probe
from lengthwise.predictors.probe.bins import left_by_age, mass_by_age, mass_of, of_prediction
from lengthwise.predictors.probe.probe import ProbeNetwork

CARD = {"name": "made", "data": "made up", "licences": {}, "limits": []}
PREDICTION = LogT(5.0, 0.7, 1024)


def made_probe(inputs: tuple[str, ...] = ("prompt",), *, seed: int = 0, told: int = 5) -> Probe:
    rng = np.random.default_rng(seed)
    bins = log_bins(1024)
    shapes = {"centre": (8,), "spread": (8,), "a": (8 + told, 4), "a_bias": (4,), "b": (4, len(bins)),
              "b_bias": (len(bins),), "skip": (told, len(bins))}  # fmt: skip
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    arrays["spread"] = np.ones(8)
    return Probe(3, bins, ProbeNetwork.of(arrays), inputs, Smoothing(0.5, 0.5, 0.7), llm="tiny", card=CARD)


def test_a_reading_is_a_prediction_about_what_remains() -> None:
    reading = made_probe().follow(PREDICTION, cap=1024)
    assert reading.due(0)
    said = reading.read(np.zeros(8), 0)
    assert isinstance(said, Histogram)
    assert isinstance(said, LengthDistribution)
    assert said.cap == 1024
    assert not reading.due(15)
    assert reading.due(16)
    assert reading.remaining(10).mean() == pytest.approx(said.remaining(10).mean())
    assert reading.read(np.ones(8), 16).cap == 1008


def test_before_the_first_reading_the_prompt_speaks() -> None:
    reading = made_probe().follow(PREDICTION)
    assert reading.remaining(20).quantile(0.5) == PREDICTION.remaining(20).quantile(0.5)


def test_a_request_at_its_cap_has_nothing_to_come() -> None:
    reading = made_probe().follow(PREDICTION, cap=16)
    reading.read(np.zeros(8), 0)
    assert isinstance(reading.read(np.zeros(8), 16), Point)


def test_readings_are_smoothed_as_rows_are() -> None:
    probe = made_probe()
    states, ages = np.random.default_rng(1).standard_normal((3, 8)), np.array([0, 16, 48])
    mu, sigma = np.full(3, PREDICTION.mu), np.full(3, PREDICTION.sigma)
    left = left_by_age(ages, mu, sigma, PREDICTION.nu, PREDICTION.cap)
    raw = probe.probabilities(states, ages, mu=mu, sigma=sigma, left=left)
    prior = mass_by_age(probe.bins, ages, mu, sigma, PREDICTION.nu)
    rows = probe.smoothing.rows(probe.bins, raw, prior, np.zeros(3, np.int64), ages)
    reading = probe.follow(PREDICTION)
    for row, state, age in zip(rows, states, ages.tolist(), strict=True):
        said = reading.read(state, age)
        assert isinstance(said, Histogram)
        # A log-t cut at the cap has its last mass there; the columns' does not know the cap.
        assert np.allclose(said.probabilities, row, atol=1e-6)


def test_what_age_leaves_is_the_same_for_one_and_for_many() -> None:
    ages = np.array([0, 1, 50, 900])
    mu, sigma = np.full(4, 5.0), np.full(4, 0.7)
    one = [PREDICTION.remaining(int(age)).quantile(0.5) for age in ages]
    assert np.allclose(left_by_age(ages, mu, sigma, PREDICTION.nu, 1024), one, rtol=1e-6)
    bins = log_bins(600)
    assert np.allclose(
        mass_by_age(bins, ages[:3], mu[:3], sigma[:3], PREDICTION.nu),
        [mass_of(bins, PREDICTION.remaining(int(age))) for age in ages[:3]],
    )


def test_a_prediction_that_is_no_log_t_is_described_by_its_quartiles() -> None:
    mu, sigma = of_prediction(Histogram((0.0, 100.0, 200.0), (0.5, 0.5)))
    assert mu == pytest.approx(np.log(100.0))
    assert sigma > 0
    assert of_prediction(Point(50))[0] == pytest.approx(np.log(50.0))


def test_the_mean_of_networks_says_the_mean_of_their_logits() -> None:
    one, other = made_probe(seed=0).network, made_probe(seed=1).network
    other = ProbeNetwork.of({**other.arrays(), "centre": one.centre, "spread": one.spread})
    state, told = np.ones((1, 8)), np.ones((1, 5), np.float32)
    logs = [np.log(network.probabilities(state, told)) for network in (one, other, ProbeNetwork.mean([one, other]))]
    mean = (logs[0] + logs[1]) / 2
    assert np.allclose(logs[2], mean - np.log(np.exp(mean).sum()), atol=1e-5)


def test_a_probe_survives_its_file(tmp_path: Path) -> None:
    path, probe = tmp_path / "made.lw", made_probe()
    write_probe(path, probe)
    back = load_probe(path)
    assert (back.layer, back.bins, back.inputs, back.smoothing, back.every, back.llm) == (
        probe.layer, probe.bins, probe.inputs, probe.smoothing, probe.every, probe.llm,
    )  # fmt: skip
    assert back.card["name"] == "made"
    state = np.linspace(-1, 1, 8)
    assert np.allclose(back.probabilities(state, 5), probe.probabilities(state, 5), atol=0.01)


def test_another_predictors_file_and_a_misfit_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fast"):
        load_probe("fast")
    odd = made_probe()
    path = tmp_path / "odd.lw"
    write_probe(path, Probe(odd.layer, log_bins(50), odd.network, card=CARD))
    with pytest.raises(InputError, match="do not fit"):
        load_probe(path)
