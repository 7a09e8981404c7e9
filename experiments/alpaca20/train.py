"""Train MiniLM on Alpaca's classes where the package is installed: `lengthwise reproduce alpaca20` without a file."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.alpaca20.run import (
    BINNINGS,
    BinPredictions,
    fast_half,
    thinned,
    together,
    train_bins,
    width_settings,
)
from lengthwise.errors import InputError
from lengthwise.training.encoder.config import TrainingConfig
from lengthwise.training.encoder.run import Prepared

_TRAINING_OVER_READING: Final = 3.0  # a step back costs two forward
_LOOK: Final = 64


def train_here(
    config: TrainingConfig,
    *,
    limit: int = 0,
    start: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, BinPredictions]:
    """Train a network of each seed for each binning on the GPU, or the CPU where there is none.

    `start` are weights of a network of the same encoder (`lengthwise train`): its encoder is started from.
    """
    try:
        import torch

        from lengthwise.training.encoder.pack import bin_edges
        from lengthwise.training.encoder.run import Prepared, prepare
    except ModuleNotFoundError as error:
        raise InputError(f"training needs {error.name}", hint="pip install 'lengthwise[train]'") from error
    if config.head.kind != "bins":
        raise InputError(f"has a head of kind '{config.head.kind}'", field="head.kind", hint="classes need 'bins'")
    whole = prepare(config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made = {}

    def say(row: dict[str, Any]) -> None:
        progress("  ".join(f"{key} {value:g}" for key, value in row.items()))

    for name in BINNINGS:
        changes = width_settings(whole.pack) if name == "width" else {}
        settings = config.model_copy(update={"head": config.head.model_copy(update=changes)})
        pack = thinned(whole.pack, limit)
        ready = Prepared(settings, whole.loaded, pack, bin_edges(settings.head, whole.pack))
        found: list[BinPredictions] = []
        for seed in settings.seeds:
            torch.manual_seed(seed)
            network = ready.network()
            if start is not None:
                start_from(network, start)
            if not found:
                took = _seconds(ready, network, device)
                times = f", {len(settings.seeds)} times" if len(settings.seeds) > 1 else ""
                progress(f"{BINNINGS[name]}: {device}, {_duration(took)}{times} by a first look")
            edges = np.asarray(ready.edges, np.float64)
            found.append(train_bins(network, pack, settings, edges, seed=seed, device=device, progress=say))
        made[name] = together(found)
        made[name] = replace(made[name], about={**made[name].about, "settings": settings.model_dump(mode="json")})
    return made


def start_from(network: Any, path: Path) -> None:  # noqa: ANN401  (torch's types are not seen)
    """Take the encoder of another training's weights."""
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        encoder = {key.removeprefix("backbone."): value for key, value in state.items() if key.startswith("backbone.")}
        network.backbone.load_state_dict(encoder)
    except (OSError, RuntimeError, AttributeError, LookupError, EOFError, pickle.UnpicklingError) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"cannot be started from: {problem}", source=path, hint="give weights of the same encoder"
        ) from error


def _seconds(ready: Prepared, network: Any, device: str) -> float:  # noqa: ANN401  (torch's types are not seen)
    """How long all epochs will take, from reading a few training prompts once."""
    from lengthwise.training.encoder.pack import TRAIN
    from lengthwise.training.encoder.trainer import Task, Trainer

    learns = np.flatnonzero(ready.pack.part == TRAIN)
    some = learns[:: max(1, len(learns) // _LOOK)]
    trainer = Trainer(network, Task(ready.pack, some, some, edges=ready.edges), ready.config, 0, device)
    trainer.half = fast_half(device)
    began = time.monotonic()
    trainer.predict(some)
    each = (time.monotonic() - began) / len(some)
    return _TRAINING_OVER_READING * each * len(learns) * ready.config.optimiser.epochs


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 2:
        return f"about {max(seconds, 1):.0f} s"
    return f"about {minutes:.0f} minutes" if minutes < 120 else f"about {minutes / 60:.1f} hours"
