"""The heads of the papers: their losses, and that the encoder learns with each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthwise.training.encoder.config import parse_config
from tests.training.encoder import tiny
from tests.training.encoder.test_losses import targets
from tests.training.encoder.tiny import torch

from experiments.heads import HEADS, Bins, LengthClasses, Moments, p99_of_samples  # isort: skip
from lengthwise.training.encoder.losses import HeadKind  # isort: skip
from lengthwise.training.encoder.network import LengthNetwork  # isort: skip
from lengthwise.training.encoder.pack import HELD_OUT, TRAIN  # isort: skip
from lengthwise.training.encoder.run import prepare  # isort: skip
from lengthwise.training.encoder.trainer import Trainer, TrainingTask  # isort: skip

EDGES = np.array([0.0, 30.0, 60.0, 120.0, 240.0, 15_000.0])
LOSS = parse_config({}).loss


CLASSES = LengthClasses(1_000.0, (50, 200))
MORE = {"bins": Bins(EDGES), "classes": CLASSES, "squared": Moments(2, (200, 50), (100, 50))}


@pytest.mark.parametrize("head", [*HEADS.values(), *MORE.values()], ids=[*HEADS, *MORE])
def test_the_encoder_trains_with_every_head_and_its_tau_is_known(head: HeadKind, tmp_path: Path) -> None:
    prepared = prepare(tiny.config(tmp_path, optimiser={"epochs": 6}))
    torch.manual_seed(0)
    network = LengthNetwork(prepared.loaded.module, prepared.config, prepared.pack.features, head)
    learns, held_out = (np.flatnonzero(prepared.pack.part == part) for part in (TRAIN, HELD_OUT))
    curves = Trainer(network, TrainingTask(prepared.pack, learns, held_out), prepared.config).run()
    assert curves[-1]["train_loss"] < curves[0]["train_loss"]
    assert all(-1 <= row["tau"] <= 1 for row in curves)


def test_list_mle_is_lower_for_the_right_order() -> None:
    true = targets([[100.0, 110.0], [500.0, 520.0], [40.0, 45.0]])

    def cost(places: list[float]) -> float:
        return float(HEADS["rank"].loss(torch.tensor(places)[:, None, None], true, LOSS).sum())

    assert cost([1.0, 2.0, 0.0]) < cost([0.0, 1.0, 2.0]) < cost([1.0, 0.0, 2.0])


def test_the_target_of_a_classifier_is_the_bin_of_the_mean() -> None:
    true = targets([[110.0, 120.0, 130.0, 250.0]])

    def cost(place: int) -> float:
        logits = torch.zeros(1, 1, 3)
        logits[..., place] = 3.0
        return float(Bins(np.array([0.0, 100.0, 200.0, 300.0])).loss(logits, true, LOSS).sum())

    assert min(range(3), key=cost) == 1


def test_a_classifier_ranks_by_its_expected_length() -> None:
    logits = np.log(np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]))
    place, spread = Bins(np.array([0.0, 100.0, 200.0, 300.0])).places_and_spreads(logits)
    assert np.exp(place) == pytest.approx([80.0, 220.0])
    assert spread is None


def test_the_p99_of_samples_is_numpys_and_leaves_missing_ones_out() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 900, (6, 10)).astype(float)
    lengths[1, 3:], lengths[2, 1:] = 0.0, 0.0
    true = [np.quantile(row[row > 0], 0.99) for row in lengths]
    assert p99_of_samples(targets(lengths.tolist()))[:, 0].tolist() == pytest.approx(true, rel=1e-6)


def test_length_classes_learn_the_bin_of_the_mean_and_of_the_p99_in_every_width() -> None:
    true = targets([[100.0] * 9 + [720.0]])  # mean 162, P99 664.2
    wanted = {"mean/50": 3, "mean/200": 0, "p99/50": 13, "p99/200": 3}
    assert CLASSES.names == list(wanted)
    logits = torch.zeros(1, 1, len(CLASSES.order), requires_grad=True)
    CLASSES.loss(logits, true, LOSS).sum().backward()
    assert CLASSES.predicted(-logits.grad.numpy())[0, 0].tolist() == list(wanted.values())


def test_moments_are_predicted_in_tokens_and_their_loss_is_0_at_the_truth() -> None:
    head = Moments(1, (200.0, 50.0), (100.0, 25.0))
    true = targets([[100.0, 200.0, 300.0]])
    std = float(np.std([100.0, 200.0, 300.0]))
    outputs = torch.tensor([[[0.0, (std - 50.0) / 25.0]]])
    assert float(head.loss(outputs, true, LOSS)) == pytest.approx(0.0, abs=1e-5)
    assert head.predicted(outputs.numpy())[0, 0].tolist() == pytest.approx([200.0, std], rel=1e-5)
