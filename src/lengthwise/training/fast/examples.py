"""Length samples as prompts x LLMs x samples, how good predictions about them are, and what calibrates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from lengthwise.predictors.calibration import Calibration, fit_calibration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.contract import LogTPredictions
    from lengthwise.workloads import LengthSamples

    Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PromptTable:
    """One row per prompt; lengths are (prompts, LLMs, samples), not `clean` where no row is, `cut` where capped."""

    keys: tuple[tuple[str, str], ...]
    splits: tuple[str, ...]
    texts: tuple[str, ...]
    llms: tuple[str, ...]
    lengths: Doubles
    clean: NDArray[np.bool_]
    cut: NDArray[np.bool_]

    @classmethod
    def of(cls, samples: LengthSamples) -> PromptTable:
        """Bring all rows of one prompt together."""
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
        """Return some of the prompts."""
        keys, splits, texts = (tuple(column[i] for i in keep) for column in (self.keys, self.splits, self.texts))
        index = np.asarray(keep, np.intp)
        arrays = (self.lengths[index], self.clean[index], self.cut[index])
        return PromptTable(keys, splits, texts, self.llms, *arrays)  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence[PromptTable]) -> PromptTable:
        """Put prompts of several tables into one; all have the same LLMs."""
        keys, splits, texts = (
            tuple(x for part in parts for x in getattr(part, n)) for n in ("keys", "splits", "texts")
        )
        arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in ("lengths", "clean", "cut"))
        return cls(keys, splits, texts, parts[0].llms, *arrays)

    @property
    def has(self) -> NDArray[np.bool_]:
        """Where a prompt has a clean sample of an LLM."""
        return np.asarray(self.clean.any(axis=2))

    def clean_mean(self) -> Doubles:
        """Mean of the clean samples; NaN where none is."""
        count = self.clean.sum(axis=2)
        total = np.where(self.clean, self.lengths, 0.0).sum(axis=2)
        return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0))

    def levels(self) -> Doubles:
        """Usual log length of each LLM, and last the usual one of all: the median over prompts of the log mean."""
        each = np.nanmedian(np.log(self.clean_mean()), axis=0)
        return np.append(each, np.mean(each))

    def effect(self, levels: Doubles) -> Doubles:
        """How much longer than usual, in logs, a prompt's answers are over the LLMs that answered it."""
        excess = np.log(self.clean_mean()) - levels[:-1]
        known = np.isfinite(excess)
        return np.asarray(np.where(known, excess, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1))


def calibration(table: PromptTable, known: LogTPredictions, unknown: LogTPredictions) -> Calibration:
    """Split conformal adjustments from predictions about held-out prompts x LLMs, as known LLMs and as unknown ones.

    An unknown LLM may be any: its adjustment is what all LLMs need when they are predicted as strangers.
    """
    shape = (-1, table.lengths.shape[2])
    lengths, clean, cut = (each.reshape(shape) for each in (table.lengths, table.clean, table.cut))
    names = list(table.llms) * len(table)
    each, others = (fit_calibration(one, names, lengths, clean, censored=cut) for one in (known, unknown))
    return Calibration(others.others, each.by_llm, each.nu)


def figures(table: PromptTable, predictions: LogTPredictions, leave_out: str) -> dict[str, Any]:
    """Return tau and MAE by LLM and over LLMs, and coverage of single clean samples, of predictions about prompts x LLMs.

    Definitions as in `evaluation`. An LLM that is left out of the mean over LLMs has its own figures all the same.
    """
    true, has = table.clean_mean(), table.has
    columns = (predictions.mu, predictions.sigma, predictions.sample_mean, predictions.sample_std)
    mu, sigma, mean, std = (column.reshape(has.shape) for column in columns)
    z = np.abs(np.log(table.lengths) - mu[..., None]) / sigma[..., None]
    inside = {share: z <= stats.t.ppf(0.5 + share / 2.0, predictions.columns.nu) for share in (0.5, 0.9)}
    count = np.maximum(table.clean.sum(axis=2), 1)
    off = np.where(table.clean, table.lengths - true[..., None], 0.0)
    spread = np.sqrt(np.square(off).sum(axis=2) / count)
    by_llm = {}
    for llm, name in enumerate(table.llms):
        own, clean = has[:, llm], table.clean[:, llm]
        by_llm[name] = {
            "tau": float(stats.kendalltau(mu[own, llm], true[own, llm]).statistic),
            "mae_median": float(np.abs(np.exp(mu) - true)[own, llm].mean()),
            "mae_mean": float(np.abs(mean - true)[own, llm].mean()),
            "mae_std": float(np.abs(std - spread)[own, llm].mean()),
            "cover50": float(inside[0.5][:, llm][clean].mean()),
            "cover90": float(inside[0.9][:, llm][clean].mean()),
        }
    counted = [own for name, own in by_llm.items() if name != leave_out]
    overall = {name: float(np.mean([own[name] for own in counted])) for name in counted[0]}
    return {"prompts": int(has.any(axis=1).sum()), **overall, "by_llm": by_llm}
