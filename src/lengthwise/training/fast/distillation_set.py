"""The training set of the fast predictor: labelled prompts, pieces of them, noise, and a teacher's outputs for all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from lengthwise.errors import InputError
from lengthwise.predictors.calibration import Calibration, fit_calibration
from lengthwise.predictors.encoder.readout import log_sigma
from lengthwise.predictors.fast import OUTPUTS
from lengthwise.training.encoder.data import noise, piece
from lengthwise.workloads.files import read_parquet_table

if TYPE_CHECKING:
    from lengthwise.predictors.contract import LogTPredictions
    from lengthwise.workloads import LengthSamples

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

PIECES: Final = 2
"""Pieces cut from each prompt."""
_FIELDS: Final = ("prompt", "outputs")


@dataclass(frozen=True, eq=False)
class PromptTable:
    """One row per prompt; lengths (prompts, LLMs, samples) are `clean` where present and valid, `cut` where capped."""

    keys: tuple[tuple[str, str], ...]
    splits: tuple[str, ...]
    texts: tuple[str, ...]
    llms: tuple[str, ...]
    lengths: Doubles
    clean: NDArray[np.bool_]
    cut: NDArray[np.bool_]

    @classmethod
    def of(cls, samples: LengthSamples) -> PromptTable:
        """Arrange length samples by prompt and LLM."""
        lengths, clean, cut = samples.lengths_matrix(), samples.clean_mask(), samples.capped_matrix()
        columns = (samples.table[name].to_pylist() for name in ("corpus", "prompt_id", "split", "prompt", "llm"))
        places: dict[tuple[str, str, str], int] = {}
        texts: list[str] = []
        cells = []
        for corpus, prompt_id, split, text, llm in zip(*columns, strict=True):
            key = (corpus, prompt_id, split)
            if key not in places:
                places[key] = len(places)
                texts.append(text)
            cells.append((places[key], samples.llms.index(llm)))
        shape = (len(places), len(samples.llms), lengths.shape[1])
        all_lengths, all_clean, all_cut = np.ones(shape), np.zeros(shape, bool), np.zeros(shape, bool)
        where = tuple(np.array(cells).T)
        all_lengths[where], all_clean[where], all_cut[where] = lengths, clean, cut & clean
        keys = tuple((corpus, prompt_id) for corpus, prompt_id, _ in places)
        splits = tuple(split for _, _, split in places)
        return cls(keys, splits, tuple(texts), samples.llms, all_lengths, all_clean, all_cut)

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, keep: Sequence[int] | NDArray[np.intp]) -> PromptTable:
        """Return the selected prompts."""
        keys, splits, texts = (tuple(column[i] for i in keep) for column in (self.keys, self.splits, self.texts))
        index = np.asarray(keep, np.intp)
        arrays = (self.lengths[index], self.clean[index], self.cut[index])
        return PromptTable(keys, splits, texts, self.llms, *arrays)  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence[PromptTable]) -> PromptTable:
        """Concatenate tables of the same LLMs."""
        keys, splits, texts = (
            tuple(x for part in parts for x in getattr(part, n)) for n in ("keys", "splits", "texts")
        )
        arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in ("lengths", "clean", "cut"))
        return cls(keys, splits, texts, parts[0].llms, *arrays)

    @property
    def has(self) -> NDArray[np.bool_]:
        """Mask (prompts, LLMs) of pairs with a clean sample."""
        return np.asarray(self.clean.any(axis=2))

    def clean_mean(self) -> Doubles:
        """Return the mean of the clean samples; NaN without one."""
        count = self.clean.sum(axis=2)
        total = np.where(self.clean, self.lengths, 0.0).sum(axis=2)
        return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0))

    def levels(self) -> Doubles:
        """Return the median over prompts of the log mean length of each LLM, and last the mean of these."""
        each = np.nanmedian(np.log(self.clean_mean()), axis=0)
        return np.append(each, np.mean(each))

    def effect(self, levels: Doubles) -> Doubles:
        """Return the log ratio of a prompt's answers to the levels, averaged over the LLMs that answered it."""
        excess = np.log(self.clean_mean()) - levels[:-1]
        known = np.isfinite(excess)
        return np.asarray(np.where(known, excess, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1))


def calibration(table: PromptTable, known: LogTPredictions, unknown: LogTPredictions) -> Calibration:
    """Fit split conformal adjustments on predictions of held-out prompts x LLMs, once as known and once as unknown.

    The adjustment of the unknown LLM is fitted on all LLMs, each predicted as if unknown.
    """
    shape = (-1, table.lengths.shape[2])
    lengths, clean, cut = (each.reshape(shape) for each in (table.lengths, table.clean, table.cut))
    names = list(table.llms) * len(table)
    each, others = (fit_calibration(one, names, lengths, clean, censored=cut) for one in (known, unknown))
    return Calibration(others.others, each.by_llm, each.nu)


def figures(table: PromptTable, predictions: LogTPredictions, leave_out: str) -> dict[str, Any]:
    """Return tau, MAE and coverage of single clean samples by LLM and over LLMs, for predictions of prompts x LLMs.

    Definitions as in `evaluation`. `leave_out` names an LLM that does not count in the mean over LLMs.
    """
    true, has = table.clean_mean(), table.has
    columns = (predictions.mu, predictions.sigma, predictions.sample_mean, predictions.sample_std)
    mu, sigma, mean, std = (column.reshape(has.shape) for column in columns)
    z = np.abs(np.log(table.lengths) - mu[..., None]) / sigma[..., None]
    inside = {share: z <= stats.t.ppf(0.5 + share / 2.0, predictions.nu) for share in (0.5, 0.9)}
    count = np.maximum(table.clean.sum(axis=2), 1)
    off = np.where(table.clean, table.lengths - true[..., None], 0.0)
    spread = np.sqrt(np.square(off).sum(axis=2) / count)
    by_llm = {}
    for llm, name in enumerate(table.llms):
        rows, clean = has[:, llm], table.clean[:, llm]
        by_llm[name] = {
            "tau": float(stats.kendalltau(mu[rows, llm], true[rows, llm]).statistic),
            "mae_median": float(np.abs(np.exp(mu) - true)[rows, llm].mean()),
            "mae_mean": float(np.abs(mean - true)[rows, llm].mean()),
            "mae_std": float(np.abs(std - spread)[rows, llm].mean()),
            "cover50": float(inside[0.5][:, llm][clean].mean()),
            "cover90": float(inside[0.9][:, llm][clean].mean()),
        }
    counted = [found for name, found in by_llm.items() if name != leave_out]
    overall = {name: float(np.mean([found[name] for found in counted])) for name in counted[0]}
    return {"prompts": int(has.any(axis=1).sum()), **overall, "by_llm": by_llm}


class Teacher(Protocol):
    """A log-t encoder."""

    llms: tuple[str, ...]

    def outputs(self, texts: Sequence[str]) -> Floats:
        """Return mu, raw log sigma, log mean and log std for every known LLM and the unknown one."""


@dataclass(frozen=True, eq=False)
class TeacherOutputs:
    """Log median, log sigma, log mean and log std of prompts x LLMs."""

    texts: tuple[str, ...]
    llms: tuple[str, ...]
    outputs: Floats

    @classmethod
    def of(
        cls, teacher: Teacher, texts: Sequence[str], progress: Callable[[int], None] = lambda _: None
    ) -> TeacherOutputs:
        """Compute the outputs of a teacher for each text."""
        found = []
        for number, text in enumerate(texts):
            found.append(teacher.outputs([text])[0, : len(teacher.llms)])
            progress(number + 1)
        outputs = np.stack(found)
        outputs[..., 1] = log_sigma(outputs[..., 1])
        return cls(tuple(texts), teacher.llms, outputs)

    def select(self, texts: Sequence[str], llms: Sequence[str]) -> Floats:
        """Return the outputs for these texts and LLMs, (texts, LLMs, 4); NaN where there are none."""
        places = {text: place for place, text in enumerate(self.texts)}
        rows = np.array([places.get(text, -1) for text in texts])
        found = np.full((len(texts), len(llms), OUTPUTS), np.nan, np.float32)
        for column, llm in enumerate(llms):
            if llm in self.llms:
                found[rows >= 0, column] = self.outputs[rows[rows >= 0], self.llms.index(llm)]
        return found

    def covering(self, texts: Sequence[str], source: Path) -> TeacherOutputs:
        """Return the outputs if they include all of the texts; raises InputError otherwise."""
        missing = len(set(texts) - set(self.texts))
        if missing:
            raise InputError(
                f"has no outputs for {missing} prompts", source=source, hint="remove it to run the teacher again"
            )
        return self

    def fingerprint(self) -> str:
        """Return a hash of texts and outputs."""
        return hashlib.sha256("\x00".join(self.texts).encode("utf-8", "replace") + self.outputs.tobytes()).hexdigest()

    def write(self, path: Path) -> None:
        """Write one Parquet file."""
        flat = pa.FixedSizeListArray.from_arrays(pa.array(self.outputs.ravel()), self.outputs[0].size)
        table = pa.table({"prompt": pa.array(self.texts), "outputs": flat})
        pq.write_table(table.replace_schema_metadata({"llms": json.dumps(self.llms)}), path, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> TeacherOutputs:
        """Read a file of `write`."""
        table = read_parquet_table(path)
        metadata = table.schema.metadata or {}
        if b"llms" not in metadata or any(name not in table.column_names for name in _FIELDS):
            raise InputError(
                "has no outputs of a teacher", source=path, hint=f"columns {', '.join(_FIELDS)}, and llms as metadata"
            )
        llms = tuple(json.loads(metadata[b"llms"]))
        outputs = np.asarray(table["outputs"].combine_chunks().flatten(), np.float32)
        return cls(tuple(table["prompt"].to_pylist()), llms, outputs.reshape(-1, len(llms), OUTPUTS))


@dataclass(frozen=True, eq=False)
class DistillationSet:
    """Prompts, pieces and noise. `origins` is the prompt number of each piece, and for noise one past the last."""

    prompts: PromptTable
    pieces: tuple[str, ...]
    origins: NDArray[np.intp]
    outputs: TeacherOutputs

    @classmethod
    def of(cls, prompts: PromptTable, teach: Callable[[Sequence[str]], TeacherOutputs], seed: int) -> DistillationSet:
        """Cut pieces, add noise, and compute the outputs of `teach` for all texts."""
        rng = np.random.default_rng(seed)
        cut = [(piece(text, rng), number) for _ in range(PIECES) for number, text in enumerate(prompts.texts)]
        cut += [(text, len(prompts)) for text in noise(rng)]
        pieces = tuple(text for text, _ in cut)
        outputs = teach(list(dict.fromkeys((*prompts.texts, *pieces))))
        return cls(prompts, pieces, np.array([origin for _, origin in cut]), outputs)

    def rows(self, keep: NDArray[np.intp]) -> DistillationSet:
        """Return the selected prompts with their pieces and all noise."""
        places = np.full(len(self.prompts) + 1, -1)
        places[keep] = np.arange(len(keep))
        places[-1] = len(keep)
        used = np.flatnonzero(places[self.origins] >= 0)
        pieces = tuple(self.pieces[i] for i in used)
        return DistillationSet(self.prompts.rows(keep), pieces, places[self.origins[used]], self.outputs)
