from __future__ import annotations

import itertools
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.training.encoder import tiny
from tests.training.encoder.tiny import torch

from lengthwise.training.encoder.pack import ASIDE, ELSEWHERE, HELD_OUT, TEST, TRAIN, Pack  # isort: skip
from lengthwise.training.encoder.run import Prepared, prepare, train  # isort: skip
from lengthwise.training.encoder.trainer import TrainingTask, Trainer  # isort: skip

from pathlib import Path


def trainer(prepared: Prepared, folder: Path | None = None, **more: Any) -> Trainer:
    torch.manual_seed(0)
    learns, held_out = (np.flatnonzero(prepared.pack.part == part) for part in (TRAIN, HELD_OUT))
    task = TrainingTask(prepared.pack, learns, held_out)
    return Trainer(prepared.network(), task, prepared.config, 0, "cpu", folder, **more)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(
    ema: float, tiny_folder: Path, tmp_path: Path
) -> None:
    prepared = prepare(
        tiny.config(tiny_folder, optimiser={"epochs": 2, "head_epochs": 1, "ema": ema}, loss={"pairwise": 0.5})
    )
    whole = trainer(prepared)
    whole.run()

    first = trainer(prepared, tmp_path, progress=_stop_after(1))
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = trainer(prepared, tmp_path)
    second.run(resume=True)

    for name, value in whole.network.state_dict().items():
        torch.testing.assert_close(second.network.state_dict()[name], value, atol=0, rtol=0, msg=name)
    assert [row["epoch"] for row in second.curves] == [1, 2, 3]


def _stop_after(epoch: int) -> Any:
    def progress(row: dict[str, Any]) -> None:
        if row["epoch"] == epoch:
            raise KeyboardInterrupt

    return progress


def test_training_lowers_the_loss_and_raises_tau(tiny_folder: Path) -> None:
    prepared = prepare(tiny.config(tiny_folder, optimiser={"epochs": 15}, early_stopping={"patience": 15}))
    curves = trainer(prepared).run()
    assert curves[-1]["train_loss"] < curves[0]["train_loss"] - 1.0
    assert max(row["tau"] for row in curves) > 0.3


def test_training_with_every_regularisation_has_a_finite_loss(tiny_folder: Path) -> None:
    settings = {"token_mask": 0.2, "row_weight": "corpus", "dropout": 0.2}
    terms = {"pairwise": 0.5, "fitted": 0.5}
    prepared = prepare(tiny.config(tiny_folder, regularisation=settings, loss=terms, optimiser={"layer_decay": 0.8}))
    assert np.isfinite(trainer(prepared).run()[0]["train_loss"])


def test_shuffling_mixes_short_and_long_prompts_in_one_batch(tiny_folder: Path) -> None:
    prepared = prepare(tiny.config(tiny_folder))
    tensors, prompts = trainer(prepared).tensors, np.flatnonzero(prepared.pack.part == TRAIN)

    def spread(together: int) -> float:
        batches = list(tensors.shuffled(prompts, 8, np.random.default_rng(0), together))
        assert sorted(np.concatenate(batches)) == sorted(prompts)
        return float(np.mean([tensors.counts[batch].std() for batch in batches]))

    assert spread(1) > 1.5 * spread(8)


def test_training_stops_when_the_held_out_score_does_not_improve(tiny_folder: Path) -> None:
    rates = {"lr": 1e-12, "head_lr": 1e-12, "epochs": 20}
    prepared = prepare(tiny.config(tiny_folder, optimiser=rates, early_stopping={"patience": 2}))
    assert len(trainer(prepared).run()) == 3


def test_training_stops_at_the_deadline(tiny_folder: Path) -> None:
    prepared = prepare(tiny.config(tiny_folder, optimiser={"epochs": 50}))
    assert len(trainer(prepared, deadline=time.monotonic()).run()) == 0


def test_the_learning_rate_decays_by_the_deadline(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("lengthwise.training.encoder.trainer.time", clock)
    prepared = prepare(tiny.config(tiny_folder, optimiser={"epochs": 500, "lr": 1e-4}))
    limited = trainer(prepared, deadline=300.0)
    limited.run()
    assert limited.step < 500 * limited.steps_per_epoch
    assert limited.optimiser.param_groups[0]["lr"] < 1e-5


def test_head_epochs_leave_the_encoder_unchanged(tiny_folder: Path) -> None:
    prepared = prepare(tiny.config(tiny_folder, optimiser={"epochs": 0, "head_epochs": 2}))
    one = trainer(prepared)
    before = {name: value.clone() for name, value in one.network.state_dict().items()}
    one.run()
    changed = {name for name, value in one.network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert not any(name.startswith("backbone") for name in changed)


def test_a_student_is_distilled_from_several_seeds(tiny_folder: Path, tmp_path: Path) -> None:
    prepared = prepare(tiny.config(tiny_folder, seeds=[0, 1], distil={"epochs": 1}))
    network = train(prepared, tmp_path, resume=False, progress=lambda *_: None)
    assert not network.training
    rows = [json.loads(line) for line in (tmp_path / "student" / "curves.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1]


def test_test_prompts_and_other_corpora_are_not_trained_on(tiny_folder: Path) -> None:
    pack = prepare(tiny.config(tiny_folder)).pack
    corpora = {part: {pack.corpora[n] for n in pack.corpus[pack.part == part]} for part in range(ASIDE + 1)}
    assert corpora[TRAIN] == corpora[TEST] == {"Mbpp", "Dolly"}
    assert corpora[ELSEWHERE] == {"Alpaca"}
    assert (pack.part == TEST).sum() == 8


def test_a_pack_is_written_and_read_back(tiny_folder: Path, tmp_path: Path) -> None:
    pack = prepare(tiny.config(tiny_folder)).pack
    pack.write(tmp_path / "pack.npz")
    again = Pack.read(tmp_path / "pack.npz")
    np.testing.assert_array_equal(again.tokens, pack.tokens)
    assert again.llms == pack.llms
    assert again.censored.any()
