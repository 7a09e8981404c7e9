"""Length samples as prompts x LLMs x samples, and how good beliefs about them are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from lengthwise.lengths import TIE_NU

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lengthwise.workloads import LengthSamples

    Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PromptTable:
    """One row per prompt; lengths and `clean` are (prompts, LLMs, samples), not clean where there is no row."""

    keys: tuple[tuple[str, str], ...]
    splits: tuple[str, ...]
    texts: tuple[str, ...]
    llms: tuple[str, ...]
    lengths: Doubles
    clean: NDArray[np.bool_]

    @classmethod
    def of(cls, samples: LengthSamples) -> PromptTable:
        """Bring all rows of one prompt together."""
        lengths, clean = samples.lengths_matrix(), samples.clean_mask()
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
        all_lengths, all_clean = np.ones(shape), np.zeros(shape, bool)
        where = tuple(np.array(cells).T)
        all_lengths[where], all_clean[where] = lengths, clean
        keys = tuple((corpus, prompt_id) for corpus, prompt_id, _ in places)
        return cls(keys, tuple(split for _, _, split in places), tuple(texts), samples.llms, all_lengths, all_clean)

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, keep: Sequence[int] | NDArray[np.intp]) -> PromptTable:
        """Return some of the prompts."""
        keys, splits, texts = (tuple(column[i] for i in keep) for column in (self.keys, self.splits, self.texts))
        index = np.asarray(keep, np.intp)
        return PromptTable(keys, splits, texts, self.llms, self.lengths[index], self.clean[index])  # type: ignore[arg-type]

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


def sigma_factors(table: PromptTable, mu: Doubles, sigma: Doubles) -> Doubles:
    """Return the factor per LLM that makes 50 and 90 % intervals cover as much of held-out single samples.

    Split conformal quantiles of |z| over those of Student's t; one factor must serve both, so their geometric mean.
    """
    z = np.abs(np.log(table.lengths) - mu[..., None]) / sigma[..., None]
    factors = []
    for llm in range(z.shape[1]):
        own = z[:, llm][table.clean[:, llm]]
        half, most = np.quantile(own, [0.5, 0.9]) / stats.t.ppf([0.75, 0.95], TIE_NU)
        factors.append(float(np.sqrt(half * most)))
    return np.array(factors)


def figures(table: PromptTable, mu: Doubles, sigma: Doubles, mean: Doubles, std: Doubles) -> dict[str, Any]:
    """Return tau and MAE by LLM and over LLMs, and coverage of single clean samples (DESIGN.md's definitions)."""
    true, has = table.clean_mean(), table.has
    z = np.abs(np.log(table.lengths) - mu[..., None]) / sigma[..., None]
    inside = {share: z <= stats.t.ppf(0.5 + share / 2.0, TIE_NU) for share in (0.5, 0.9)}
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
    overall = {name: float(np.mean([one[name] for one in by_llm.values()])) for name in next(iter(by_llm.values()))}
    return {"prompts": int(has.any(axis=1).sum()), **overall, "by_llm": by_llm}
