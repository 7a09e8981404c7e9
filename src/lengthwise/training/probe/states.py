"""Hidden states with the remaining length: a folder of .npz files and a table of their prompts.

Each .npz has the columns pid (row of the table), pos (tokens generated so far), rem (remaining tokens, with the end
token; for a capped answer up to the cap), capped, test (a held-out prompt), L<n> (the state after n layers) and
optionally entropy (of the next token, nats). The table is prompts.parquet or lengths.parquet, with dataset or
corpus, prompt_id, castillo_split or split, and the prompt unless it is one of CASTILLO. A row of the table is one
answer; several answers to a prompt are several rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from zipfile import BadZipFile

import numpy as np
import xxhash
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize

from lengthwise.errors import InputError
from lengthwise.files import read_parquet_table
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.probe import Bins, left_by_age, mass_by_age
from lengthwise.predictors.resolve import load_predictor
from lengthwise.workloads import load_castillo

if TYPE_CHECKING:
    import pyarrow as pa

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]


TABLES: Final = ("prompts.parquet", "lengths.parquet")
PARTS: Final = "parts"
"""Folder of the batches of a collection that has not ended."""
NOT_TRAINED: Final = ("Alpaca",)
"""Corpora under non-commercial licences: no shipped model is trained on them."""
_COLUMNS: Final = ("pid", "pos", "rem", "capped", "test")


@dataclass(frozen=True, eq=False)
class States:
    """One row per state, in order of answer and tokens generated."""

    answer: Ints
    draw: Floats
    """In [0, 1), by hash of the prompt, for the choice of held-out prompts."""
    generated: Ints
    remaining: Ints
    capped: Mask
    held_out: Mask
    layers: Mapping[int, NDArray[np.float16]]
    entropy: Floats | None
    corpus: NDArray[np.object_]
    split: NDArray[np.object_]
    mu: Floats
    sigma: Floats
    nu: float
    """Degrees of freedom of the predictions from the prompts, which are log-t."""
    predictor: str = ""
    """Name of the predictor of mu and sigma."""

    def __len__(self) -> int:
        return len(self.answer)

    @property
    def cap(self) -> int:
        """Tokens at which answers were capped; without capped answers, the longest."""
        total = self.generated + self.remaining
        return int(total[self.capped].max() if self.capped.any() else total.max())

    @property
    def step(self) -> int:
        """Tokens between collected states."""
        ages = np.unique(self.generated)
        return int(np.diff(ages).min()) if len(ages) > 1 else 1

    @property
    def weight(self) -> Floats:
        """Number of states of its answer that a row represents: of long answers only some are collected."""
        _, inverse, collected = np.unique(self.answer, return_inverse=True, return_counts=True)
        had = np.ceil((self.generated + self.remaining) / self.step)
        return np.maximum(had / collected[inverse], 1.0)

    @property
    def trained(self) -> Mask:
        """Rows that may be trained on: not held out, not of an official test split, not of a forbidden corpus."""
        return np.asarray(~self.tested & ~np.isin(self.corpus, NOT_TRAINED))

    @property
    def tested(self) -> Mask:
        """Rows of prompts that are never trained on because they were held out or are official test prompts."""
        return np.asarray(self.held_out | (self.split == "test"))

    @property
    def new_to_predictor(self) -> Mask:
        """Rows of prompts that the packaged predictors were not trained on."""
        return np.asarray((self.split == "test") | np.isin(self.corpus, NOT_TRAINED))

    def where(self, rows: Mask) -> Self:
        """Return the selected rows."""
        columns: dict[str, Any] = {
            name: value[rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **columns, layers={layer: states[rows] for layer, states in self.layers.items()})

    def left(self, q: float = 0.5) -> Floats:
        """Return what the prompt's prediction leaves, given the tokens generated."""
        return left_by_age(self.generated, self.mu, self.sigma, self.nu, self.cap, q)

    def prior(self, bins: Bins) -> Floats:
        """Return what the prompt's prediction, given the tokens generated, puts into each bin."""
        return mass_by_age(bins, self.generated, self.mu, self.sigma, self.nu)


@dataclass(frozen=True)
class Correction:
    """A recalibration of the predictions from the prompts: `mu <- shift + slope * mu`, `sigma <- factor * sigma`."""

    shift: float = 0.0
    slope: float = 1.0
    factor: float = 1.0

    def of(self, states: States) -> States:
        """Return the states with corrected predictions from their prompts."""
        return replace(states, mu=self.shift + self.slope * states.mu, sigma=self.factor * states.sigma)


def learn_correction(states: States) -> Correction:
    """Fit by maximum likelihood on these answers; a capped answer is censored at the cap."""
    first = np.unique(states.answer, return_index=True)[1]
    length, cut = np.log((states.generated + states.remaining)[first]), states.capped[first]
    mu, sigma = states.mu[first], states.sigma[first]

    def loss(numbers: Any) -> float:  # an array of scipy
        shift, slope, spread = numbers
        scale = np.exp(spread) * sigma
        z = (length - shift - slope * mu) / scale
        ended = stats.t.logpdf(z, states.nu) - np.log(scale)
        return -float(np.where(cut, stats.t.logsf(z, states.nu), ended).mean())

    found = minimize(loss, np.array([0.0, 1.0, 0.0]), method="L-BFGS-B")
    shift, slope, spread = (float(number) for number in found.x)
    return Correction(shift, slope, float(np.exp(spread)))


def unfinished(folder: Path) -> bool:
    """Whether a collection of states in this folder was begun and has not ended."""
    return (folder / PARTS).is_dir() and not (folder / TABLES[0]).exists()


def read_states(folder: Path, predictor: str, llm: str) -> States:
    """Read a folder, and predict the length of the LLM's answer from each prompt."""
    columns = read_arrays(folder)
    table = _read_table(folder)
    if columns["pid"].max() >= len(table) or columns["pid"].min() < 0:
        raise InputError("a row names a prompt that the table does not have", source=folder, field="pid")
    used, row = np.unique(columns["pid"], return_inverse=True)
    table = table.take(used)
    texts, prompt = np.unique(np.array(_texts(table, folder), object), return_inverse=True)
    predictions = load_predictor(predictor).predict(texts.tolist(), [llm] * len(texts))
    if not isinstance(predictions, LogTPredictions):
        raise InputError(f"'{predictor}' predicts no log-t", field="--predictor", hint="use default or fast")
    return States(
        answer=columns["pid"].astype(np.int64),
        draw=np.array([xxhash.xxh3_64_intdigest(f"probe\n{text}".encode()) / 2.0**64 for text in texts])[prompt][row],
        generated=columns["pos"].astype(np.int64),
        remaining=columns["rem"].astype(np.int64),
        capped=columns["capped"],
        held_out=columns["test"],
        layers={int(name[1:]): columns[name] for name in columns if name[:1] == "L" and name[1:].isdigit()},
        entropy=columns["entropy"].astype(np.float64) if "entropy" in columns else None,
        corpus=_column(table, "corpus", "dataset")[row],
        split=_column(table, "split", "castillo_split")[row],
        mu=predictions.mu[prompt][row],
        sigma=predictions.sigma[prompt][row],
        nu=predictions.nu,
        predictor=Path(predictor).stem,
    )


def read_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the columns of all .npz files of a folder, in order of answer and tokens generated."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise InputError(
            "holds no whole collection of hidden states",
            source=folder,
            hint="make one with `lengthwise probe collect`, which resumes one that was stopped",
        )
    parts = []
    for path in paths:
        try:
            with np.load(path, allow_pickle=False) as stored:
                parts.append({name: stored[name] for name in stored.files})
        except (ValueError, OSError, EOFError, BadZipFile) as error:
            raise InputError("is not a whole .npz file", source=path, hint="get it again") from error
        missing = [name for name in _COLUMNS if name not in parts[-1]]
        if missing or not any(name[:1] == "L" for name in parts[-1]):
            raise InputError("has no such column", source=path, field=(missing or ["L<n>"])[0])
    shared = set.intersection(*(set(part) for part in parts))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in sorted(shared)}
    order = np.lexsort((columns["pos"], columns["pid"]))
    return {name: column[order] for name, column in columns.items()}


def _read_table(folder: Path) -> pa.Table:
    for name in TABLES:
        if (folder / name).is_file():
            return read_parquet_table(folder / name)
    raise InputError("has no table of its prompts", source=folder, hint=f"put {TABLES[0]} beside the states")


def _column(table: pa.Table, *names: str) -> NDArray[np.object_]:
    for name in names:
        if name in table.column_names:
            return np.array(table[name].to_pylist(), object)
    raise InputError("the table of prompts has no such column", field=names[0])


def _texts(table: pa.Table, folder: Path) -> list[str]:
    """The prompts; those of CASTILLO need not be in the table."""
    if "prompt" in table.column_names:
        return [str(text) for text in table["prompt"].to_pylist()]
    known = (load_castillo().table[name].to_pylist() for name in ("corpus", "prompt_id", "prompt"))
    texts = {(corpus, number): text for corpus, number, text in zip(*known, strict=True)}
    keys = zip(_column(table, "corpus", "dataset"), _column(table, "prompt_id"), strict=True)
    found = [texts.get((corpus, str(number))) for corpus, number in keys]
    if any(text is None for text in found):
        raise InputError("prompts are not in CASTILLO as it is here", source=folder, hint="set LENGTHWISE_DATA")
    return [str(text) for text in found]
