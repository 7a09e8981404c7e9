"""MiniLM, 20 bins, Alpaca: scores, files and a small training."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.alpaca20 import FIGURES, PAPER, STUDY, compare, load_predictions, tables
from experiments.alpaca20_training import (
    BINS,
    BinPredictions,
    thinned,
    together,
    train_bins,
    width_settings,
    write_predictions,
)
from lengthwise.errors import InputError
from lengthwise.reports.tables import to_json
from lengthwise.workloads import LengthSamples
from lengthwise.workloads.datasets import load_alpaca_lengths


def write_alpaca(folder: Path, count: int = 400) -> LengthSamples:
    """Instructions that say how long the answer is."""
    rng = np.random.default_rng(0)
    long = rng.random(count) < 0.5
    table = {
        "instruction": [f"write a {'long' if each else 'short'} story ." for each in long],
        "input": [""] * count,
        "prompt_tokens": [5] * count,
        "out_tokens": np.where(long, rng.integers(50, 200, count), rng.integers(1, 20, count)).tolist(),
    }
    pq.write_table(pa.table(table), folder / "alpaca52k.parquet")
    return load_alpaca_lengths(folder)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> LengthSamples:
    return write_alpaca(tmp_path_factory.mktemp("alpaca"))


def predictions(samples: LengthSamples, sure: float, seed: int = 0) -> BinPredictions:
    """Right with probability `sure`, else any bin."""
    rng = np.random.default_rng(seed)
    lengths = samples.lengths_matrix()[:, 0]
    rows = np.flatnonzero(np.array(samples.table["split"].to_pylist()) == "test")
    inner = np.unique(np.quantile(lengths, np.linspace(0, 1, BINS + 1)[1:-1]))
    edges = np.array([0.0, *inner, 15_000.0])
    bins = len(edges) - 1
    true = np.searchsorted(inner, lengths[rows])
    drawn = np.where(rng.random(len(rows)) < sure, true, rng.integers(0, bins, len(rows)))
    noise = rng.random((len(rows), bins))
    probabilities = np.where(np.arange(bins) == drawn[:, None], 10.0, noise)
    return BinPredictions(rows, lengths[rows], edges, (probabilities / probabilities.sum(1, keepdims=True))[None])


def test_perfect_predictions_beat_all_six_figures(samples: LengthSamples) -> None:
    found = compare({"equal_mass": predictions(samples, 1.0)}, samples).binned["equal_mass"]
    assert found.beaten == FIGURES
    assert [getattr(found.ours, name) for name in FIGURES] == pytest.approx([1.0] * 6)
    assert np.all(found.confusion == np.diag(np.diag(found.confusion)))


def test_guesses_beat_none_and_a_constant_has_no_correlation(samples: LengthSamples) -> None:
    found = compare({"equal_mass": predictions(samples, 0.0)}, samples).binned["equal_mass"]
    assert found.beaten == ()
    assert (found.constant.mcc, found.constant.auroc) == (0.0, 0.5)


@settings(max_examples=20)
@given(sure=st.floats(0, 1), seed=st.integers(0, 99))
def test_every_prompt_is_in_one_cell_of_the_confusion(samples: LengthSamples, sure: float, seed: int) -> None:
    made = predictions(samples, sure, seed)
    found = compare({"equal_mass": made}, samples).binned["equal_mass"]
    true = np.searchsorted(made.edges[1:-1], made.lengths)
    assert found.confusion.sum(axis=1).tolist() == np.bincount(true, minlength=len(made.edges) - 1).tolist()
    assert np.trace(found.confusion) / len(true) == pytest.approx(found.ours.accuracy)


def test_a_file_holds_what_was_predicted(samples: LengthSamples, tmp_path: Path) -> None:
    made = dataclasses.replace(predictions(samples, 0.5), about={"held_out": {"accuracy": 0.5}})
    write_predictions(tmp_path / "a.npz", {"equal_mass": made})
    read = load_predictions(tmp_path / "a.npz")["equal_mass"]
    assert read.about == made.about
    assert np.array_equal(read.edges, made.edges)
    np.testing.assert_allclose(read.members, made.members, atol=1e-3)
    one, other = (compare({"equal_mass": each}, samples).binned["equal_mass"] for each in (made, read))
    assert one.ours.accuracy == other.ours.accuracy


def test_a_file_about_other_prompts_or_of_another_kind_is_refused(samples: LengthSamples, tmp_path: Path) -> None:
    made = predictions(samples, 1.0)
    for wrong in (
        dataclasses.replace(made, lengths=made.lengths + 1),
        dataclasses.replace(made, rows=made.rows + len(samples)),
        dataclasses.replace(made, rows=np.setdiff1d(np.arange(len(samples)), made.rows)[: len(made.rows)]),
    ):
        with pytest.raises(InputError, match=r"a\.npz: is about other prompts"):
            compare({"equal_mass": wrong}, samples, source="a.npz")
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", a=np.arange(3))
    for name in ("text.npz", "other.npz", "missing.npz"):
        with pytest.raises(InputError, match="is not a file of predictions"):
            load_predictions(tmp_path / name)


def test_the_table_marks_what_is_beaten_and_the_page_shows_both_binnings(samples: LengthSamples) -> None:
    made = dataclasses.replace(predictions(samples, 1.0), about={"trained_on": 240})
    found = compare({"equal_mass": made, "width": predictions(samples, 0.5)}, samples)
    (table,) = tables(found)
    assert [row[1] for row in table.rows] == ["paper", "ours", "constant", "ours", "constant"]
    assert table.rows[0][2:] == tuple(f"{PAPER[name]:.2f}" for name in FIGURES)
    assert all(cell.endswith("*") for cell in table.rows[1][2:])
    assert not any("*" in cell for row in table.rows[2:] for cell in row)
    assert STUDY.output(found).html().count("data:image/png") == 1
    assert '"confusion"' in to_json(STUDY.output(found).facts)


def test_a_small_training_learns_both_binnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, tiny = pytest.importorskip("torch"), pytest.importorskip("tests.training.encoder.tiny")
    from lengthwise.training.encoder.pack import bin_edges
    from lengthwise.training.encoder.run import prepare

    (tmp_path / "alpaca52k").mkdir()
    samples = write_alpaca(tmp_path / "alpaca52k")
    monkeypatch.setenv("LENGTHWISE_DATA", str(tmp_path))
    config = tiny.config(
        tmp_path,
        head={"kind": "bins", "bins": "equal_mass"},
        optimiser={"epochs": 4},
        data={"source": "alpaca52k", "corpora": ["alpaca52k"], "splits": ["train"], "held_out": 0.25},
    )
    ready = prepare(config)
    made = {}
    for binning, changes in {"equal_mass": {}, "width": width_settings(ready.pack)}.items():
        settings = config.model_copy(update={"head": config.head.model_copy(update=changes)})
        edges = bin_edges(settings.head, ready.pack)
        assert edges is not None
        torch.manual_seed(0)
        network = dataclasses.replace(ready, config=settings, edges=edges).network()
        made[binning] = train_bins(network, thinned(ready.pack, 150), settings, edges)
    found = compare(made, samples)
    mass, width = found.binned.values()
    assert len(mass.edges) > 15
    assert len(width.edges) == BINS + 1
    assert mass.prompts == min(150, found.test_prompts)
    # Two kinds of prompts: the network must at least separate them, a constant cannot.
    assert mass.ours.auroc > 0.6
    assert [row["epoch"] for row in mass.about["curves"]][:2] == [1, 2]


def test_several_networks_are_shown_alone_and_together(samples: LengthSamples) -> None:
    networks = [
        dataclasses.replace(predictions(samples, 0.3, seed), about={"held_out": {"accuracy": 0.1 * seed}})
        for seed in (1, 2, 3)
    ]
    made = together(networks)
    np.testing.assert_allclose(made.probabilities, np.mean([each.members[0] for each in networks], axis=0))
    found = compare({"equal_mass": made}, samples)
    alone = [each.accuracy for each in found.binned["equal_mass"].alone]
    assert found.binned["equal_mass"].ours.accuracy > max(alone)
    (table,) = tables(found)
    assert [row[1] for row in table.rows] == ["paper", "ours, one network", "ours, 3 together", "constant"]
    assert table.rows[1][2] == f"{np.mean(alone):.3f}"
    assert "held-out accuracy of one network 0.200" in table.notes[1]
