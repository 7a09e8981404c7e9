"""Learns the word tables from training prompts: rarity, topics, a first guess, and what words mean. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import lsqr

from lengthwise.predictors.fast.text import FEATURES, PAIRS, Tables, terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.fast.text import Page

    Floats = NDArray[np.float32]
    Doubles = NDArray[np.float64]
    Folds = NDArray[np.intp]

TOPICS: Final = 128
FOLDS: Final = 5
_GUESS: Final = FEATURES + TOPICS
_RIDGE: Final = 0.3
_SEEN_AT_LEAST: Final = 2
_STEPS: Final = 127.0


@dataclass(frozen=True, eq=False)
class Learned:
    """Tables, and for each fold of the training pages the slopes of a regression that had not seen it."""

    tables: Tables
    slopes: Doubles

    def describe(self, pages: Sequence[Page], folds: Folds) -> Floats:
        """Describe training pages, each with the first guess of the regression that had not seen its fold.

        The network must not trust the first guess more than it will deserve on new prompts.
        """
        tables = self.tables
        counts = sparse.csr_array(_counts(pages, len(tables.words)))
        weights = _weigh(counts, tables.rarity)
        size, narrow = len(tables.words), tables.pairs.shape[1]
        described = np.concatenate([[page.features for page in pages], weights[:, :size] @ tables.words], axis=1)
        described[:, FEATURES : FEATURES + narrow] += weights[:, size:] @ tables.pairs
        for fold, slope in enumerate(self.slopes):
            own = np.flatnonzero(folds == fold)
            described[own, _GUESS] = weights[own] @ slope
        return np.asarray(described, np.float32)


def learn_tables(pages: Sequence[Page], effect: Doubles, meaning: Floats, folds: Folds, seed: int) -> Learned:
    """Learn from training pages and from how much longer than usual (in logs) their answers are.

    Topics are a singular value decomposition of the weighted terms, the first guess a ridge regression on the same;
    `meaning` has a row for each word of the vocabulary, of words never seen here too.
    """
    from sklearn.utils.extmath import randomized_svd  # type: ignore[import-untyped]

    size = len(meaning)
    counts = _counts(pages, size)
    seen = np.asarray((counts > 0).sum(axis=0)).ravel()
    rarity = np.log((1.0 + len(pages)) / (1.0 + seen))
    learned = seen >= _SEEN_AT_LEAST
    rarity[size:][~learned[size:]] = 0.0
    known = sparse.csc_array(_weigh(counts, rarity))[:, learned].tocsr()
    columns, apart = np.zeros((len(seen), TOPICS + 1)), np.zeros((FOLDS, len(seen)))
    topics = randomized_svd(known, min(TOPICS, *known.shape), n_iter=4, random_state=seed)[2].T
    columns[learned, : topics.shape[1]] = topics
    columns[learned, TOPICS] = slope = _ridge(known, effect)
    for fold in range(FOLDS):
        rest = folds != fold
        apart[fold, learned] = _ridge(known[rest], effect[rest]) * (_STEPS / np.abs(slope).max())
    tables = Tables.of(np.column_stack([columns[:size], meaning]), columns[size:], rarity.astype(np.float32))
    return Learned(tables, apart)


def _counts(pages: Sequence[Page], size: int) -> Any:  # noqa: ANN401  (SciPy's sparse arrays have no public type)
    found = [terms(page.words, size) for page in pages]
    starts = np.concatenate([[0], np.cumsum([len(distinct) for distinct in found])])
    shape = (len(pages), size + PAIRS)
    return sparse.csr_array((np.ones(starts[-1]), np.concatenate(found), starts), shape=shape)


def _weigh(counts: Any, rarity: NDArray[Any]) -> Any:  # noqa: ANN401
    """Weigh terms by rarity, pages to length 1, as `Tables.describe` does."""
    weighted = counts @ sparse.diags_array(rarity.astype(np.float64))
    norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return sparse.csr_array(sparse.diags_array(1.0 / (norms + 1e-6)) @ weighted)


def _ridge(weights: Any, effect: Doubles) -> Doubles:  # noqa: ANN401
    """Slopes only: where the regression starts is taken out when the network standardises."""
    return np.asarray(lsqr(weights, effect - effect.mean(), damp=_RIDGE**0.5, iter_lim=60)[0])
