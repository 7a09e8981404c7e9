"""Train MiniLM on Alpaca's length classes and write its predictions for the test prompts to a small file.

Needs torch and NumPy only, so that it also runs on a bare GPU machine (scripts/gpu_alpaca20.py). `alpaca20.py` scores
the file and checks that it belongs to the data.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lengthwise.predictors.encoder.readout import probabilities
from lengthwise.training.encoder.pack import HELD_OUT, TEST, TRAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lengthwise.training.encoder.config import TrainingConfig
    from lengthwise.training.encoder.network import LengthNetwork
    from lengthwise.training.encoder.pack import Pack

    Floats = NDArray[np.float64]

BINS: Final = 20
BINNINGS: Final[Mapping[str, str]] = {"equal_mass": "20 bins of equal mass", "width": "20 bins of equal width"}


@dataclass(frozen=True, eq=False)
class BinPredictions:
    """Probabilities of bins for test prompts, by one network or by several."""

    rows: NDArray[np.int64]
    """Which prompts, by their place among all that have an answer."""
    lengths: NDArray[np.int64]
    """How long their answers are: to see that a file and the data belong together, never to score by."""
    edges: Floats
    """One more than bins; a bin is (low, high]."""
    members: Floats
    """(networks, prompts, bins)."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Settings, curves and held-out figures of the training."""

    @property
    def probabilities(self) -> Floats:
        """(prompts, bins): the mean of the networks."""
        return np.asarray(self.members.mean(axis=0))


def together(made: Sequence[BinPredictions]) -> BinPredictions:
    """Networks of one binning as one; `about` is the first one's, with the held-out figures of all."""
    about = {**made[0].about, "each": [one.about["held_out"] for one in made]}
    return replace(made[0], members=np.concatenate([one.members for one in made]), about=about)


def write_predictions(path: Path, made: Mapping[str, BinPredictions]) -> None:
    """Write one file for all binnings."""
    arrays: dict[str, Any] = {}
    for name, each in made.items():
        arrays[f"{name}_rows"], arrays[f"{name}_lengths"] = each.rows.astype(np.int32), each.lengths.astype(np.int32)
        arrays[f"{name}_edges"], arrays[f"{name}_members"] = each.edges, each.members.astype(np.float16)
    about = json.dumps({name: dict(each.about) for name, each in made.items()})
    np.savez_compressed(path, about=np.array(about), **arrays)


def read_predictions(path: Path) -> dict[str, BinPredictions]:
    """Read what `write_predictions` wrote; ValueError where it is something else."""
    try:
        with np.load(path) as archive:
            about = json.loads(str(archive["about"]))
            return {
                name: BinPredictions(
                    archive[f"{name}_rows"].astype(np.int64),
                    archive[f"{name}_lengths"].astype(np.int64),
                    archive[f"{name}_edges"].astype(np.float64),
                    archive[f"{name}_members"].astype(np.float64),
                    about[name],
                )
                for name in about
            }
    except (KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError("not a file of predictions") from error


def width_settings(pack: Pack) -> dict[str, Any]:
    """What of `head` to set for 20 bins of equal width up to the longest answer trained on."""
    width = math.ceil(int(pack.lengths[pack.part == TRAIN].max()) / BINS)
    return {"bins": "width", "bin_width": width, "bin_cap": width * (BINS - 1)}


def thinned(pack: Pack, limit: int) -> Pack:
    """Only this many prompts of each part, by chance; all of them where `limit` is 0."""
    if not limit:
        return pack
    part = pack.part.copy()
    rng = np.random.default_rng(0)
    for number in (TRAIN, HELD_OUT, TEST):
        here = rng.permutation(np.flatnonzero(part == number))
        part[here[limit:]] = -1
    return replace(pack, part=part)


def fast_half(device: str) -> bool:
    """Whether this is a CPU with matrix units for bf16 (AMX)."""
    import torch

    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return device == "cpu" and bool(capabilities.get("amx_bf16"))


def train_bins(
    network: LengthNetwork,
    pack: Pack,
    config: TrainingConfig,
    edges: Floats,
    *,
    seed: int = 0,
    device: str = "cpu",
    deadline: float = math.inf,
    progress: Callable[[dict[str, Any]], None] = lambda _: None,
) -> BinPredictions:
    """Train on the training prompts, watched on the held-out ones, and predict the test prompts."""
    from lengthwise.training.encoder.trainer import Trainer, TrainingTask

    learns, held_out, test = (np.flatnonzero(pack.part == part) for part in (TRAIN, HELD_OUT, TEST))
    task = TrainingTask(pack, learns, held_out, edges=edges)
    trainer = Trainer(network, task, config, seed, device, deadline=deadline, progress=progress)
    trainer.half = fast_half(device)
    curves = trainer.run()
    outputs, loss = trainer.predict(held_out, with_loss=True)
    right = np.argmax(outputs[held_out, 0], axis=1) == np.searchsorted(edges[1:-1], pack.lengths[held_out, 0, 0])
    about = {
        "curves": curves,
        "held_out": {"prompts": len(held_out), "loss": round(loss, 4), "accuracy": round(float(right.mean()), 4)},
        "trained_on": len(learns),
    }
    outputs, _ = trainer.predict(test)
    lengths = pack.lengths[test, 0, 0].astype(np.int64)
    return BinPredictions(test, lengths, edges, probabilities(outputs[test, 0].astype(np.float64))[None], about)
