"""TRAIL's probe against the prompt: recalibration across halves, what is needed and what is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.trail_probe import (
    KEPT,
    SHIPPED,
    STUDY,
    Grid,
    Measured,
    claims,
    cross_fitted,
    draw,
    tables,
)
from lengthwise.files import data_home
from lengthwise.predictors.probe import DEFAULT, Probe, ProbeNetwork, load_probe, log_bins
from lengthwise.training.probe.errors_by_age import JOINT_SMOOTH, PROMPT_BY_AGE, PROMPT_ONLY, compare_with_prompt
from lengthwise.training.probe.states import States, read_states
from tests.training.probe.made import made_states


def reading(states: States) -> Probe:
    """A probe for made states: the first number of a state is the logarithm of the remaining tokens."""
    bins = log_bins(states.cap)
    middles = np.log((np.array(bins.edges[1:]) + np.array(bins.edges[:-1])) / 2)
    width = states.layers[2].shape[1]
    a = np.zeros((width + 2, 1))
    a[0] = 1.0
    # -(x - m)^2 up to a constant in m: 2 m x - m^2, sharp.
    network = ProbeNetwork.of(
        {
            "centre": np.zeros(width), "spread": np.full(width, 2.0), "a": a, "a_bias": np.zeros(1),
            "b": 40.0 * 2 * 2 * middles[None], "b_bias": -40.0 * middles**2, "skip": np.zeros((2, len(bins))),
        }
    )  # fmt: skip
    return Probe(2, bins, network, inputs=())


@pytest.fixture(scope="module")
def found() -> Measured:
    states = made_states()
    return Measured(SHIPPED, 120, len(states), 0.3, *compare_with_prompt(states, reading(states)))


def test_a_probe_that_reads_the_remaining_length_is_far_ahead_of_the_prompt(found: Measured) -> None:
    assert [way.name for way in found.ways] == [PROMPT_ONLY, PROMPT_BY_AGE, JOINT_SMOOTH]
    (claim,) = claims([found])
    assert claim.ours.low > 2.0
    ratio = found.way(PROMPT_ONLY).overall.mae / found.way(JOINT_SMOOTH).overall.mae
    assert claim.ours.ratio == pytest.approx(ratio)
    assert found.way(JOINT_SMOOTH).over_joint == (1.0, 1.0, 1.0)


def test_the_table_names_the_setting_and_the_error_of_each_way(found: Measured) -> None:
    (table,) = tables([found])
    assert table.title.startswith(f"{SHIPPED}: 120 prompts")
    assert [row[0] for row in table.rows] == [PROMPT_ONLY, PROMPT_BY_AGE, JOINT_SMOOTH]
    assert table.rows[2][2] == "1.00 [1.00, 1.00]"


def test_the_prompts_predictions_are_corrected_on_the_other_half_only() -> None:
    states = made_states(prompts=300)
    lower = states.draw < np.median(np.unique(states.draw))
    other = replace(states, remaining=np.where(lower, 5, states.remaining))
    before, after = cross_fitted(states), cross_fitted(other)
    assert (before.mu[lower] == after.mu[lower]).all()
    assert (before.mu[~lower] > after.mu[~lower]).all()


def test_the_heatmaps_are_drawn(found: Measured, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    draw([found], tmp_path / "heat.svg")
    assert "truly remaining" in (tmp_path / "heat.svg").read_text(encoding="utf-8")


def test_it_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is an extra")
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    missing = "needs smollm2/ and castillo/ in the folder that LENGTHWISE_DATA names"
    assert STUDY.needs(Grid()) == missing
    monkeypatch.setenv("LENGTHWISE_DATA", str(tmp_path))
    (tmp_path / "smollm2").mkdir()
    assert STUDY.needs(Grid()) == missing
    (tmp_path / "castillo").mkdir()
    assert STUDY.needs(Grid()) is None
    assert STUDY.needs(Grid(states=tmp_path / "none")) == f"needs the folder {tmp_path / 'none'}"


def test_the_kept_states_are_of_prompts_that_no_packaged_model_has_seen() -> None:
    home = data_home()
    if home is None or not (home / "castillo").is_dir():
        pytest.skip("the kept states are without the texts of their prompts, which are in LENGTHWISE_DATA/castillo")
    probe = load_probe(DEFAULT)
    states = read_states(KEPT, "fast", probe.llm)
    assert len(np.unique(states.draw)) == 160
    assert (states.tested).all()
    assert set(states.layers) == {probe.layer}
