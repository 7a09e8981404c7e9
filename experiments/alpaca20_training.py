"""Two trainings of a classifier of Alpaca's answer lengths: that of length-aware Preble's authors, and our own.

The authors' training was read in their public code (inakineitor/preble at 99ea1db, empanada/length_predictor). All of
MiniLM is trained under a network of 256 and 128 units, on the mean of the token vectors, normalised to length 1; AdamW
at 5e-5 with 50 warm-up steps and a linear decay, batches of 400, 50 epochs; the best by validation loss is kept.

Needs torch, NumPy and SciPy only, so that it also runs on a bare GPU machine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from experiments import class_scores
from lengthwise.predictors.stated_length import STATED
from lengthwise.training.encoder.pack import ASIDE, HELD_OUT, TEST, TRAIN, Pack

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import TrainingConfig

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

BINS: Final = 20
LONGEST: Final = 512
"""WordPiece tokens at which the authors truncate prompts and answers, the two special tokens included."""
AUTHORS_SEED: Final = 42
"""Of their split and their training."""
BATCH: Final = 400
EVALUATION_BATCH: Final = 800
EPOCHS: Final = 50
_PATIENCE: Final = 5
"""Epochs without a smaller validation loss after which training ends. The authors train on and keep the best epoch, and
the loss does not come back: in eight trainings it was higher at epoch 20 than at 10, and higher still at 30. The
learning rate falls over all epochs as theirs does."""
_RATE: Final = 5e-5
_WARM_UP: Final = 50
_HIDDEN: Final = (256, 128)
_DROPOUT: Final = 0.2
_PASS_TOKENS: Final = 8192
"""Tokens, with padding, that go through the network at once; a batch sums the gradients of its passes."""


@dataclass(frozen=True, eq=False)
class TokenisedPrompts:
    """Prompts as WordPiece ids, and the lengths of their answers."""

    tokens: Sequence[NDArray[np.int32]]
    lengths: Rows


@dataclass(frozen=True, eq=False)
class LengthClasses:
    """Rows to train on, to choose the epoch by and to score; classes are (low, high] between edges."""

    train: Rows
    validation: Rows
    test: Rows
    edges: Floats

    def classes(self, lengths: Rows) -> Rows:
        """The class of each length."""
        return np.searchsorted(self.edges[1:-1], lengths, side="left").astype(np.int64)


def authors_classes(lengths: Rows) -> LengthClasses:
    """Split and cut as in the authors' code.

    60/20/20 by scikit-learn with seed 42, half of the training part, and percentiles of all rows, test rows included.
    Their trainer drops the last incomplete batch of an evaluation too, so part of the test rows is not scored.
    """
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    rest, test = train_test_split(np.arange(len(lengths)), test_size=0.2, random_state=AUTHORS_SEED)
    train, validation = train_test_split(rest, test_size=0.25, random_state=AUTHORS_SEED)
    _, half = train_test_split(train, test_size=0.5, random_state=AUTHORS_SEED)
    whole = (len(rows) - len(rows) % min(EVALUATION_BATCH, len(rows)) for rows in (validation, test))
    return LengthClasses(half, validation[: next(whole)], test[: next(whole)], _edges(lengths))


def fair_classes(lengths: Rows, seed: int) -> LengthClasses:
    """60/20/20 by this seed, edges from the training rows, every row used."""
    order = np.random.default_rng(seed).permutation(len(lengths))
    test, validation, train = np.split(order, [len(order) // 5, 2 * (len(order) // 5)])
    return LengthClasses(train, validation, test, _edges(lengths[train]))


def _edges(lengths: Rows) -> Floats:
    """Percentiles; fewer classes where some coincide, which none do in the authors' data."""
    inner = np.percentile(lengths, np.linspace(0, 100, BINS + 1)[1:-1])
    return np.array([0.0, *np.unique(inner), LONGEST], np.float64)


def score(found: LengthClasses, lengths: Rows, predicted: Floats) -> dict[str, Any]:
    """Score probabilities (test rows, classes) as the authors do: AUROC is the plain mean over classes.

    `constant` is the most frequent class of the training rows, `confusion` counts (true, predicted).
    """
    true, chosen = found.classes(lengths[found.test]), np.argmax(predicted, axis=1)
    bins = len(found.edges) - 1
    confusion = np.zeros((bins, bins), np.int64)
    np.add.at(confusion, (true, chosen), 1)
    most = int(np.bincount(found.classes(lengths[found.train])).argmax())
    return {
        "trained_on": len(found.train),
        "tested_on": len(found.test),
        "edges": found.edges.tolist(),
        "scores": {**_scores(true, chosen), "auroc": _macro_auroc(true, predicted)},
        "constant": {**_scores(true, np.full(len(true), most)), "auroc": 0.5},
        "confusion": confusion.tolist(),
    }


def _scores(true: Rows, chosen: NDArray[np.int64]) -> dict[str, float]:
    found = class_scores.classification(true, chosen)
    return {name: getattr(found, name) for name in ("accuracy", "f1", "precision", "recall", "mcc")}


def _macro_auroc(true: Rows, predicted: Floats) -> float:
    shown = np.unique(true)
    areas = [
        class_scores.auroc((true == k).astype(np.intp), np.stack([1 - predicted[:, k], predicted[:, k]], 1))
        for k in shown
    ]
    return float(np.mean(areas))


def train_as_authors(
    backbone: Any,  # a module of torch, whose types are not seen
    prompts: TokenisedPrompts,
    found: LengthClasses,
    *,
    seed: int,
    epochs: int = EPOCHS,
    device: str = "cpu",
) -> tuple[Floats, list[float]]:
    """Train the authors' network; return probabilities for the test rows and the validation loss of each epoch."""
    import torch
    from torch.nn import functional

    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    network = _authors_network(copy.deepcopy(backbone), len(found.edges) - 1).to(device)
    size = min(BATCH, len(found.train))
    steps = epochs * (len(found.train) // size)
    optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(step / _WARM_UP, max(0.0, (steps - step) / max(1, steps - _WARM_UP)))
    )
    data = _Padded(prompts.tokens, device)
    classes = torch.as_tensor(found.classes(prompts.lengths), device=device)
    rng = np.random.default_rng(seed)
    curve: list[float] = []
    best: dict[str, Any] = {}
    for _ in range(epochs):
        network.train()
        order = rng.permutation(found.train)
        for first in range(0, len(order) - size + 1, size):
            batch = order[first : first + size]
            for rows in (batch[at] for at in data.passes(batch)):
                logits = network(*data.inputs(rows))
                (functional.cross_entropy(logits, classes[rows], reduction="sum") / size).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
        outputs = _outputs(network, data, found.validation)
        loss = float(functional.cross_entropy(outputs, classes[found.validation].cpu()))
        if not curve or loss < min(curve):
            best = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
        curve.append(loss)
        if len(curve) > _PATIENCE and min(curve[-_PATIENCE:]) > min(curve):
            break
    network.load_state_dict(best)
    return softmax(_outputs(network, data, found.test).numpy().astype(np.float64), axis=-1), curve


def _authors_network(backbone: Any, bins: int) -> Any:
    import torch
    from torch import nn

    class AuthorsNetwork(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.backbone = backbone
            first, second = _HIDDEN
            self.head = nn.Sequential(
                nn.Linear(backbone.width, first), nn.ReLU(), nn.LayerNorm(first), nn.Dropout(_DROPOUT),
                nn.Linear(first, second), nn.ReLU(), nn.Linear(second, bins),
            )  # fmt: skip

        def forward(self, ids: Any, mask: Any) -> Any:
            here = mask.unsqueeze(-1).float()
            mean = (self.backbone(ids, mask)[0] * here).sum(1) / here.sum(1).clamp(min=1e-9)
            return self.head(torch.nn.functional.normalize(mean, dim=1))

    return AuthorsNetwork()


class _Padded:
    """All prompts on one device, in passes of similar length."""

    def __init__(self, tokens: Sequence[NDArray[np.int32]], device: str) -> None:
        import torch

        self._counts = np.array([len(each) for each in tokens])
        ids = np.zeros((len(tokens), int(self._counts.max())), np.int32)  # 0 is [PAD], which the mask hides
        ids[np.arange(ids.shape[1]) < self._counts[:, None]] = np.concatenate(tokens)
        self._ids = torch.as_tensor(ids, device=device)
        self._count = torch.as_tensor(self._counts, device=device)

    def passes(self, rows: Rows) -> Iterator[Rows]:
        """Positions in `rows`, in groups of similar length with little padding."""
        order = np.argsort(self._counts[rows], kind="stable")
        first = 0
        for last, width in enumerate(self._counts[rows][order]):
            if (last + 1 - first) * width > _PASS_TOKENS and last > first:
                yield order[first:last]
                first = last
        yield order[first:]

    def inputs(self, rows: Rows) -> tuple[Any, Any]:
        import torch

        width = int(self._counts[rows].max())
        at = torch.as_tensor(rows, device=self._ids.device)
        return self._ids[at, :width], torch.arange(width, device=at.device) < self._count[at].unsqueeze(1)


def _outputs(network: Any, data: _Padded, rows: Rows) -> Any:
    """Logits on the CPU, in the order of `rows`."""
    import torch

    network.eval()
    passes = list(data.passes(rows))
    with torch.no_grad():
        parts = [network(*data.inputs(rows[at])).float().cpu() for at in passes]
    return torch.cat(parts)[np.argsort(np.concatenate(passes))]


def train_ours(
    backbone: Any,
    prompts: TokenisedPrompts,
    found: LengthClasses,
    config: TrainingConfig,
    *,
    seed: int,
    mask_id: int,
    device: str = "cpu",
) -> tuple[Floats, list[float]]:
    """Train the package's network with `config`; return as `train_as_authors` does."""
    import torch

    from experiments.heads import Bins
    from lengthwise.training.encoder.network import LengthNetwork
    from lengthwise.training.encoder.trainer import Trainer, TrainingTask

    pack = _pack(prompts, found, mask_id)
    torch.manual_seed(seed)
    network = LengthNetwork(copy.deepcopy(backbone), config, pack.features, Bins(found.edges))
    task = TrainingTask(pack, found.train, found.validation)
    trainer = Trainer(network, task, config, seed, device)
    curves = trainer.run()
    outputs, _ = trainer.predict(found.test)
    return softmax(outputs[found.test, 0].astype(np.float64), axis=-1), [row["held_out_loss"] for row in curves]


def _pack(prompts: TokenisedPrompts, found: LengthClasses, mask_id: int) -> Pack:
    count = np.array([len(each) for each in prompts.tokens], np.int32)
    part = np.full(len(count), ASIDE, np.int8)
    for number, rows in ((TRAIN, found.train), (HELD_OUT, found.validation), (TEST, found.test)):
        part[rows] = number
    lengths = prompts.lengths.astype(np.int16)[:, None, None]
    return Pack(
        tokens=np.concatenate(prompts.tokens),
        offsets=np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
        sizes=count,
        lengths=lengths,
        censored=np.zeros(lengths.shape, bool),
        fitted=np.full((len(count), 1, 2), np.nan, np.float16),
        corpus=np.zeros(len(count), np.int8),
        part=part,
        fold=np.zeros(len(count), np.int8),
        features=np.zeros((2, 1), np.float32),
        stated=np.zeros((len(count), STATED), np.float32),
        llms=("alpaca",),
        corpora=("alpaca",),
        pad_id=0,
        mask_id=mask_id,
    )
