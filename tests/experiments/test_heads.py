"""The heads of the papers: their losses, and that the encoder learns with each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthwise.training.encoder.config import parse_config
from tests.training.encoder import tiny
from tests.training.encoder.test_losses import targets
from tests.training.encoder.tiny import torch

from experiments.heads import HEADS, Bins  # isort: skip
from lengthwise.training.encoder.losses import HeadKind  # isort: skip
from lengthwise.training.encoder.network import LengthNetwork  # isort: skip
from lengthwise.training.encoder.pack import HELD_OUT, TRAIN  # isort: skip
from lengthwise.training.encoder.run import prepare  # isort: skip
from lengthwise.training.encoder.trainer import Trainer, TrainingTask  # isort: skip

EDGES = np.array([0.0, 30.0, 60.0, 120.0, 240.0, 15_000.0])
LOSS = parse_config({}).loss


@pytest.mark.parametrize("head", [*HEADS.values(), Bins(EDGES)], ids=[*HEADS, "bins"])
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
