"""Learns the word tables from training prompts: rarity, topics and a first guess. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import lsqr, svds

from lengthwise.predictors.fast.tables import PAIRS, Packed, Tables, terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.fast.text import Page

    Floats = NDArray[np.float32]
    Rows = NDArray[np.intp]

TOPICS: Final = 128
_RIDGE: Final = 0.3
_FOLDS: Final = 5
_SEEN_AT_LEAST: Final = 2


@dataclass(frozen=True, eq=False)
class Learned:
    """Tables, and the first guess for each training prompt by a regression that had not seen it."""

    tables: Tables
    first_guess: Floats


def learn_tables(
    pages: Sequence[Page], effect: NDArray[np.float64], meaning: Packed, rng: np.random.Generator
) -> Learned:
    """Learn from training pages and from how much longer than usual (in logs) their answers are.

    The network must not trust the first guess more than it will deserve on new prompts: in training it gets the
    guess of a regression on the other folds.
    """
    counts = _counts(pages, meaning.shape[0])
    seen = np.asarray((counts > 0).sum(axis=0)).ravel()
    rarity = np.log((1.0 + len(pages)) / (1.0 + seen))
    rarity[seen < _SEEN_AT_LEAST] = 0.0
    weighted = counts @ sparse.diags_array(rarity)
    norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    tf_idf = sparse.csr_array(sparse.diags_array(1.0 / np.maximum(norms, 1e-6)) @ weighted)
    topics: NDArray[np.float64] = svds(tf_idf, k=TOPICS, random_state=rng)[2].T
    fold = rng.integers(0, _FOLDS, len(pages))
    guess = np.empty(len(pages))
    for number in range(_FOLDS):
        rest, own = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        slope, intercept = _ridge(tf_idf[rest], effect[rest])
        guess[own] = tf_idf[own] @ slope + intercept
    slope, intercept = _ridge(tf_idf, effect)
    tables = Tables(meaning, Packed.of(topics), rarity.astype(np.float32), slope.astype(np.float32), intercept)
    return Learned(tables, guess.astype(np.float32))


def _counts(pages: Sequence[Page], size: int) -> Any:  # noqa: ANN401  (SciPy's sparse arrays have no public type)
    found = [terms(page.words, size) for page in pages]
    starts = np.concatenate([[0], np.cumsum([len(distinct) for distinct, _ in found])])
    columns = np.concatenate([distinct for distinct, _ in found])
    values = np.concatenate([counts for _, counts in found]).astype(np.float64)
    return sparse.csr_array((values, columns, starts), shape=(len(pages), size + PAIRS))


def _ridge(tf_idf: Any, effect: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:  # noqa: ANN401
    centre = float(effect.mean())
    slope = lsqr(tf_idf, effect - centre, damp=_RIDGE**0.5, iter_lim=60)[0]
    return np.asarray(slope), centre
