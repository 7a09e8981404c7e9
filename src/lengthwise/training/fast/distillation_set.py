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
from lengthwise.predictors.scores import kendall_tau, mae
from lengthwise.training.data import PromptTable, pieces_and_noise
from lengthwise.workloads.files import read_parquet_table

if TYPE_CHECKING:
    from lengthwise.predictors.contract import LogTPredictions

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

_FIELDS: Final = ("prompt", "outputs")


def levels(table: PromptTable) -> Doubles:
    """Return the median over prompts of the log mean length of each LLM, and last the mean of these."""
    each = np.nanmedian(np.log(table.mean()), axis=0)
    return np.append(each, np.mean(each))


def calibration(table: PromptTable, known: LogTPredictions, unknown: LogTPredictions) -> Calibration:
    """Fit split conformal adjustments on predictions of held-out prompts x LLMs, once as known and once as unknown.

    The adjustment of the unknown LLM is fitted on all LLMs, each predicted as if unknown.
    """
    shape = (-1, table.lengths.shape[2])
    lengths, cut = table.lengths.reshape(shape), table.censored.reshape(shape)
    names = list(table.llms) * len(table)
    each, others = (fit_calibration(one, names, lengths, lengths > 0, censored=cut) for one in (known, unknown))
    return Calibration(others.others, each.by_llm, each.nu)


def figures(table: PromptTable, predictions: LogTPredictions, leave_out: str) -> dict[str, Any]:
    """Return tau, MAE and coverage of single clean samples by LLM and over LLMs, for predictions of prompts x LLMs.

    Definitions as in `evaluation`. `leave_out` names an LLM that does not count in the mean over LLMs.
    """
    true, clean = table.mean(), table.lengths > 0
    columns = (predictions.mu, predictions.sigma, predictions.sample_mean, predictions.sample_std)
    mu, sigma, mean, std = (column.reshape(true.shape) for column in columns)
    z = np.abs(np.log(np.maximum(table.lengths, 1.0)) - mu[..., None]) / sigma[..., None]
    inside = {share: z <= stats.t.ppf(0.5 + share / 2.0, predictions.nu) for share in (0.5, 0.9)}
    by_llm = {}
    for llm, name in enumerate(table.llms):
        rows = clean[:, llm].any(axis=1)
        spread = np.std(table.lengths[rows, llm], axis=1, where=clean[rows, llm], dtype=np.float64)
        by_llm[name] = {
            "tau": kendall_tau(mu[rows, llm], true[rows, llm]),
            "mae_median": mae(np.exp(mu[rows, llm]), true[rows, llm]),
            "mae_mean": mae(mean[rows, llm], true[rows, llm]),
            "mae_std": mae(std[rows, llm], spread),
            "cover50": float(inside[0.5][:, llm][clean[:, llm]].mean()),
            "cover90": float(inside[0.9][:, llm][clean[:, llm]].mean()),
        }
    counted = [found for name, found in by_llm.items() if name != leave_out]
    overall = {name: float(np.mean([found[name] for found in counted])) for name in counted[0]}
    return {"prompts": int(clean.any(axis=(1, 2)).sum()), **overall, "by_llm": by_llm}


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

    def fingerprint(self) -> str:
        """Return a hash of texts and outputs."""
        return hashlib.sha256("\x00".join(self.texts).encode("utf-8", "replace") + self.outputs.tobytes()).hexdigest()

    def write(self, path: Path) -> None:
        """Write one Parquet file."""
        flat = pa.FixedSizeListArray.from_arrays(pa.array(self.outputs.ravel()), self.outputs[0].size)
        table = pa.table({"prompt": pa.array(self.texts), "outputs": flat})
        pq.write_table(table.replace_schema_metadata({"llms": json.dumps(self.llms)}), path, compression="zstd")

    @classmethod
    def read(cls, path: Path, texts: Sequence[str] = ()) -> TeacherOutputs:
        """Read a file of `write`; raises InputError if it lacks one of the texts."""
        table = read_parquet_table(path)
        metadata = table.schema.metadata or {}
        if b"llms" not in metadata or any(name not in table.column_names for name in _FIELDS):
            raise InputError(
                "has no outputs of a teacher", source=path, hint=f"columns {', '.join(_FIELDS)}, and llms as metadata"
            )
        missing = len(set(texts) - set(table["prompt"].to_pylist()))
        if missing:
            hint = "remove it to run the teacher again"
            raise InputError(f"has no outputs for {missing} prompts", source=path, hint=hint)
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
        texts = prompts.column("prompt")
        cut = pieces_and_noise(texts, seed)
        pieces = tuple(text for text, _ in cut)
        outputs = teach(list(dict.fromkeys((*texts, *pieces))))
        return cls(prompts, pieces, np.array([origin for _, origin in cut]), outputs)

    def rows(self, keep: NDArray[np.intp]) -> DistillationSet:
        """Return the selected prompts with their pieces and all noise."""
        places = np.full(len(self.prompts) + 1, -1)
        places[keep] = np.arange(len(keep))
        places[-1] = len(keep)
        used = np.flatnonzero(places[self.origins] >= 0)
        pieces = tuple(self.pieces[i] for i in used)
        return DistillationSet(self.prompts.rows(keep), pieces, places[self.origins[used]], self.outputs)
