"""Loss curves as in figures 6 and 9 and the appendix of the BERT-on-CASTILLO paper, of trainings here.

Each training uses MiniLM in one way; after every epoch it is evaluated on training prompts and on held-out prompts
(dropout off), so that the gap between the two shows overfitting. Needs torch and NumPy only: scripts/gpu_studies.py
runs all trainings, and experiments/castillo/curves.json holds what it measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.alpaca20_training import fast_half
from lengthwise.training.encoder.config import TrainingConfig
from lengthwise.training.encoder.network import LengthNetwork
from lengthwise.training.encoder.pack import HELD_OUT, TRAIN, Pack

LLAMAS: Final = ("Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B")
_SHORT: Final = 128  # tokens of a prompt in a small version
_LOOKED_AT: Final = 474  # training prompts evaluated: about as many as are held out
_PLAIN: Final[Mapping[str, Any]] = {
    "regularisation.dropout": 0.0,
    "head.dropout": 0.0,
    "optimiser.weight_decay": 0.0,
    "optimiser.ema": 0.0,
    "identity.drop": 0.0,
    "loss.pairwise": 0.0,
}
_PAPER: Final[Mapping[str, Any]] = {**_PLAIN, "regularisation.dropout": 0.1, "head.dropout": 0.1}
_REGULARISED: Final[Mapping[str, Any]] = {
    "regularisation.dropout": 0.1,
    "head.dropout": 0.3,
    "regularisation.token_mask": 0.15,
    "optimiser.layer_decay": 0.85,
    "optimiser.ema": 0.995,
    "loss.pairwise": 0.0,
}
_CLASSES: Final[Mapping[str, Any]] = {"head.kind": "bins", "head.bins": "width", "head.bin_width": 200}
_HOW: Final = "one LLM, dropout (the paper's)"
_REGRESSION: Final[Mapping[str, Any]] = {"head.kind": "mean_std"}


@dataclass(frozen=True)
class TrainingRun:
    """One training: changed settings, the LLM whose lengths it sees, and the LLMs it is evaluated on."""

    name: str
    head: str
    """classes, regression or logt."""
    how: str
    llm: str | None
    """The only LLM trained on; None for all of them."""
    watched: tuple[str, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)


TRAININGS: Final = (
    TrainingRun(
        "classes_plain", "classes", "one LLM, no regularisation", LLAMAS[0], LLAMAS[:1], {**_CLASSES, **_PLAIN}
    ),
    TrainingRun("classes_paper", "classes", _HOW, LLAMAS[0], LLAMAS[:1], {**_CLASSES, **_PAPER}),
    TrainingRun("classes_reg", "classes", "one LLM, regularised", LLAMAS[0], LLAMAS[:1], {**_CLASSES, **_REGULARISED}),
    TrainingRun("classes_all", "classes", "all LLMs, regularised", None, LLAMAS[:1], {**_CLASSES, **_REGULARISED}),
    *(TrainingRun(f"regression_{llm}", "regression", _HOW, llm, (llm,), {**_REGRESSION, **_PAPER}) for llm in LLAMAS),
    TrainingRun("regression_all", "regression", "all LLMs, regularised", None, LLAMAS, {**_REGRESSION, **_REGULARISED}),
    TrainingRun("logt_plain", "logt", "all LLMs, no regularisation", None, LLAMAS, _PLAIN),
    TrainingRun("logt_reg", "logt", "all LLMs, regularised", None, LLAMAS, _REGULARISED),
)


def only(pack: Pack, llm: str | None) -> Pack:
    """The pack with the lengths of one LLM only, given by a part of its name."""
    if llm is not None:
        others = [number for number, name in enumerate(pack.llms) if llm not in name]
        pack.lengths[:, others] = 0
    return pack


def run(
    training: TrainingRun,
    network: LengthNetwork,
    pack: Pack,
    config: TrainingConfig,
    edges: NDArray[np.float64] | None,
    *,
    device: str,
    deadline: float,
    limit: int = 0,
    progress: Callable[[dict[str, Any]], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Run one training; return a row per epoch.

    A row is {"epoch", "watched": {llm: {"train": figures, "held_out": figures}}}.
    """
    import torch

    from lengthwise.training.encoder.losses import label_loss
    from lengthwise.training.encoder.trainer import Trainer, TrainingTask

    class Watcher(Trainer):
        """Evaluates training and held-out prompts with the weights that would be saved."""

        def evaluate(self) -> dict[str, Any]:
            """Return the figures of each watched LLM."""
            looks: dict[str, dict[str, Any]] = {llm: {} for llm in training.watched}
            for part, prompts in (("train", looked_at), ("held_out", held_out)):
                predicted, _ = self.predict(prompts, self.kept)
                for llm, look in looks.items():
                    look[part] = self._figures(predicted, prompts, next(i for i, n in enumerate(pack.llms) if llm in n))
            return {"watched": looks}

        def _figures(self, predicted: NDArray[Any], prompts: NDArray[np.int64], number: int) -> dict[str, float]:
            at = np.sort(prompts[(pack.lengths[prompts, number] > 0).any(1)])
            with torch.no_grad():
                targets = self.tensors.batch(at).targets
                outputs = torch.as_tensor(predicted[at, :-1], device=self.device)
                each = label_loss(outputs, targets, self.config, self._edges)
                loss = float(each[:, number].mean())
            lengths = pack.lengths[at, number].astype(np.float64)
            mean = lengths.sum(1) / (lengths > 0).sum(1)
            return {"loss": round(loss, 4), **_figure(predicted[at, number], mean, training.head, edges)}

    learns, held_out = (np.flatnonzero(pack.part == part) for part in (TRAIN, HELD_OUT))
    some = learns if training.llm is None else learns[(pack.lengths[learns] > 0).any((1, 2))]
    rng = np.random.default_rng(0)
    if limit:  # short prompts, for a CPU, answered by every watched LLM
        watched = [i for i, name in enumerate(pack.llms) if any(llm in name for llm in training.watched)]
        answered = np.all(np.any(pack.lengths[:, watched] > 0, axis=2), axis=1)
        answered &= np.diff(pack.offsets) <= _SHORT
        some, held_out = (rng.permutation(part[answered[part]])[:limit] for part in (some, held_out))
    looked_at = np.sort(rng.permutation(some)[:_LOOKED_AT])
    task = TrainingTask(pack, some, held_out, edges=edges)
    trainer = Watcher(network, task, config, 0, device, deadline=deadline, progress=progress)
    trainer.half = fast_half(device)
    return trainer.run()


def _figure(
    predicted: NDArray[Any], mean: NDArray[np.float64], head: str, edges: NDArray[np.float64] | None
) -> dict[str, float]:
    """Accuracy of classes, else the absolute error of the mean."""
    if head == "classes" and edges is not None:
        right = np.argmax(predicted, axis=1) == np.searchsorted(edges[1:-1], mean)
        return {"accuracy": round(float(right.mean()), 4)}
    place = predicted[:, 2] if head == "logt" else predicted[:, 0]
    return {"mae": round(float(np.abs(np.exp(np.minimum(place, 9.7)) - mean).mean()), 2)}
