"""Runs of `lengthwise train`: one network per seed, and a student of all of them where the settings ask for it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.training.data import SMOLLM2, load_samples, make_pack, unlabelled_prompts
from lengthwise.training.encoder.ensemble import Member, soft_targets
from lengthwise.training.encoder.network import LengthNetwork, Loaded, load_backbone
from lengthwise.training.encoder.pack import HELD_OUT, TRAIN, UNLABELLED, Pack
from lengthwise.training.encoder.trainer import Trainer, TrainingTask

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import TrainingConfig

    Progress = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What all trainings of one configuration share."""

    config: TrainingConfig
    loaded: Loaded
    pack: Pack

    def network(self) -> LengthNetwork:
        """Return a network with a new head, drawn from torch's generator."""
        backbone = copy.deepcopy(self.loaded.module)
        backbone.keep_layers(self.config.layers)
        return LengthNetwork(backbone, self.config, self.pack.features)


def prepare(config: TrainingConfig) -> Prepared:
    """Load the encoder and the data."""
    loaded = load_backbone(config.backbone, config.max_tokens)
    samples = load_samples(config.data)
    extra = unlabelled_prompts(samples, config.data) if config.distil is not None else []
    pack = make_pack(samples, config.data, loaded.text, extra)
    return Prepared(config, loaded, pack)


def train(prepared: Prepared, folder: Path, *, resume: bool, progress: Progress) -> LengthNetwork:
    """Train every seed, and a student where the settings ask for one; return the network to ship."""
    config = prepared.config
    teaching = config.distil is not None and len(config.seeds) > 1
    runs = []
    for number, seed in enumerate(config.seeds):
        # Each teacher leaves out a tenth, so that every prompt has an out-of-fold prediction.
        fold = number % 10 if teaching else None
        runs.append(_one(prepared, folder / f"seed-{seed}", seed, resume=resume, progress=progress, fold=fold))
    if not teaching or config.distil is None:
        return max(runs, key=lambda run: run.score).network
    members = [Member(run.outputs, run.saw) for run in runs]
    soft = soft_targets(members, prepared.pack, disagreement=config.distil.disagreement)
    changed = {"epochs": config.distil.epochs, "lr": config.distil.lr}
    student = config.model_copy(update={"optimiser": config.optimiser.model_copy(update=changed)})
    taught = Prepared(student, prepared.loaded, prepared.pack)
    seed = config.seeds[0]
    return _one(taught, folder / "student", seed, resume=resume, progress=progress, soft=soft).network


@dataclass(frozen=True, eq=False)
class _Run:
    network: LengthNetwork
    score: float
    outputs: NDArray[Any]
    saw: NDArray[np.bool_]


def _one(
    prepared: Prepared,
    folder: Path,
    seed: int,
    *,
    resume: bool,
    progress: Progress,
    fold: int | None = None,
    soft: NDArray[Any] | None = None,
) -> _Run:
    """Train once, in one folder; with `resume` a finished training is not repeated."""
    pack, config = prepared.pack, prepared.config
    folder.mkdir(parents=True, exist_ok=True)
    if not resume:
        for old in ("checkpoint.pt", "curves.jsonl", "weights.pt"):
            (folder / old).unlink(missing_ok=True)
    torch.manual_seed(seed)
    network = prepared.network()
    learns = (pack.part == TRAIN) & (pack.fold != (-1 if fold is None else fold))
    if soft is not None:
        learns |= pack.part == UNLABELLED
    unscored = (SMOLLM2,) if any(llm != SMOLLM2 for llm in pack.llms) else ()
    task = TrainingTask(pack, np.flatnonzero(learns), np.flatnonzero(pack.part == HELD_OUT), soft, unscored=unscored)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trainer = Trainer(network, task, config, seed, device, folder, progress=lambda row: progress(folder.name, row))
    trainer.run(resume=resume)
    weights = {name: value.cpu() for name, value in network.state_dict().items()}
    torch.save(weights, folder / "weights.pt")
    teaches = config.distil is not None and soft is None
    outputs = trainer.predict(np.arange(len(pack)))[0] if teaches else np.zeros(0)
    return _Run(network.cpu().eval(), trainer.best_score, outputs, learns)


def load_weights(prepared: Prepared, path: Path) -> LengthNetwork:
    """Load the weights of a training on another machine (scripts/gpu_train.py)."""
    network = prepared.network()
    try:
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        problem = str(error).splitlines()[0]
        raise InputError(
            f"does not fit these settings: {problem}", source=path, hint="give the settings of that training"
        ) from error
    network.eval()
    return network


def settings_json(prepared: Prepared) -> bytes:
    """Return the settings that the served predictor needs."""
    return json.dumps({"llms": prepared.pack.llms, "max_tokens": prepared.config.max_tokens}).encode()
