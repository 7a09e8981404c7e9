"""The word tables of the fast predictor: vocabulary, word vectors of an encoder, rarity, topics, a first guess."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import lsqr

from lengthwise.files import atomic_path
from lengthwise.predictors.fast import (
    FEATURES,
    PAIRS,
    RESERVED,
    FastPredictor,
    PromptText,
    Reader,
    WordTables,
    terms,
)
from lengthwise.predictors.model_file import read_model_file
from lengthwise.predictors.prompt_words import SIGNS, as_bytes, excerpt, split
from lengthwise.predictors.resolve import packaged_predictors
from lengthwise.training.encoder.network import package_folder

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Folds = NDArray[np.intp]

MEANING: Final = 48
WORD_IN_PROMPTS: Final = 3
TOPICS: Final = 128
FOLDS: Final = 5
_GUESS: Final = FEATURES + TOPICS
_RIDGE: Final = 0.3
_MIN_SEEN: Final = 2
_STEPS: Final = 127.0


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The words, and a vector of a sentence encoder for each row of the word table."""

    reader: Reader
    meaning: Floats
    own: frozenset[bytes]
    """Words of the encoder's vocabulary."""

    @classmethod
    def of(cls, texts: Sequence[str], encoder: Path | None = None) -> Vocabulary:
        """Take words of the encoder's vocabulary and of the training prompts, and compute their vectors.

        `encoder` is the folder of the encoder; by default that of the installed package.
        """
        folder = package_folder() if encoder is None else encoder
        known = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        words = frozenset(word.encode() for word in known if word.isascii() and word.isalnum())
        vocabulary = sorted(words | _frequent(texts))
        vectors = _word_vectors(folder, [word.decode("utf-8", "replace") for word in (*vocabulary, *SIGNS)])
        centred = vectors - vectors.mean(axis=0)
        main = centred @ np.linalg.svd(centred[::8], full_matrices=False)[2][:MEANING].T
        meaning = np.zeros((RESERVED + len(vocabulary), MEANING), np.float32)
        meaning[1 : 1 + len(SIGNS)], meaning[RESERVED:] = main[len(vocabulary) :], main[: len(vocabulary)]
        return cls(Reader.of(vocabulary), meaning, words)

    @classmethod
    def stored(cls, path: Path | None, texts: Sequence[str], encoder: Path | None = None) -> Vocabulary:
        """Read the vocabulary from a file; without one, build it and write the file."""
        if path is not None and path.is_file():
            with np.load(path) as archive:
                words, own = (archive[name].tobytes().split(b"\n") for name in ("words", "own"))
                return cls(Reader.of(words), archive["meaning"], frozenset(own))
        made = cls.of(texts, encoder)
        if path is not None:
            rows = made.reader.rows
            words = sorted((word for word in rows if rows[word] >= RESERVED), key=rows.__getitem__)
            joined = [np.frombuffer(b"\n".join(part), np.uint8) for part in (words, sorted(made.own))]
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                np.savez(file, meaning=made.meaning, words=joined[0], own=joined[1])
        return made

    @classmethod
    def of_packaged(cls, packaged: FastPredictor) -> Vocabulary:
        """Return the words of a model file with their vectors, without an encoder: `default` has its vocabulary."""
        tokenizer = json.loads(read_model_file(packaged_predictors()["default"]).part("tokenizer.json"))
        own = frozenset(word.encode() for word in tokenizer["model"]["vocab"] if word.isascii() and word.isalnum())
        return cls(packaged.reader, packaged.tables.words[:, TOPICS + 1 :].astype(np.float32), own)

    def of_texts(self, texts: Sequence[str]) -> Vocabulary:
        """Return the words of the encoder and those frequent in these texts; the vectors are not computed again."""
        frequent = _frequent(texts)
        kept = sorted(word for word in self.reader.rows if word in self.own or word in frequent)
        rows = [self.reader.rows[word] for word in kept]
        meaning = np.concatenate([self.meaning[:RESERVED], self.meaning[rows]])
        return Vocabulary(Reader.of(kept), meaning, self.own)


def _frequent(texts: Sequence[str]) -> set[bytes]:
    seen = Counter(word for text in texts for word in set(split(as_bytes(excerpt(text)))))
    return {word for word, prompts in seen.items() if prompts >= WORD_IN_PROMPTS and not word.startswith(b"\x01")}


def _word_vectors(folder: Path, words: Sequence[str]) -> Floats:
    """Mean hidden state of the encoder for each word alone."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for start in range(0, len(words), 512):
            batch = tokenizer(
                list(words[start : start + 512]), padding=True, truncation=True, max_length=12, return_tensors="pt"
            )
            mask = batch["attention_mask"][..., None].float()
            hidden = model(**batch).last_hidden_state
            found.append(((hidden * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class Learned:
    """WordTables, and for each fold of the training pages the slopes of a regression fitted without it."""

    tables: WordTables
    slopes: Doubles

    def describe(self, pages: Sequence[PromptText], folds: Folds) -> Floats:
        """Describe training pages, each with the first guess of the regression fitted without its fold.

        The network then learns the accuracy that the first guess has on new prompts.
        """
        tables = self.tables
        counts = sparse.csr_array(_counts(pages, len(tables.words)))
        weights = _weigh(counts, tables.rarity)
        size, narrow = len(tables.words), tables.pairs.shape[1]
        described = np.concatenate([[page.features for page in pages], weights[:, :size] @ tables.words], axis=1)
        described[:, FEATURES : FEATURES + narrow] += weights[:, size:] @ tables.pairs
        for fold, slope in enumerate(self.slopes):
            rows = np.flatnonzero(folds == fold)
            described[rows, _GUESS] = weights[rows] @ slope
        return np.asarray(described, np.float32)


def learn_tables(
    pages: Sequence[PromptText],
    effect: Doubles,
    meaning: Floats,
    folds: Folds,
    seed: int,
    weight: Doubles | None = None,
    given: WordTables | None = None,
) -> Learned:
    """Learn the tables from training pages and the log ratio of their answers to the usual length.

    Topics are a singular value decomposition of the weighted terms, the first guess a ridge regression on the same;
    `meaning` has a row for each word of the vocabulary, including words that no page contains. `given` tables, learned
    from such pages, are kept: only the slopes are fitted.
    """
    from sklearn.utils.extmath import randomized_svd  # type: ignore[import-untyped]

    size = len(meaning)
    counts = _counts(pages, size)
    seen = np.asarray((counts > 0).sum(axis=0)).ravel()
    rarity = np.log((1.0 + len(pages)) / (1.0 + seen)) if given is None else given.rarity.astype(np.float64)
    learned = seen >= _MIN_SEEN
    rarity[size:][~learned[size:]] = 0.0
    known = sparse.csc_array(_weigh(counts, rarity))[:, learned].tocsr()
    scale = np.ones(len(effect)) if weight is None else np.sqrt(weight)
    columns, out_of_fold = np.zeros((len(seen), TOPICS + 1)), np.zeros((FOLDS, len(seen)))
    columns[learned, TOPICS] = slope = _ridge(known, effect, scale)
    for fold in range(FOLDS):
        rest = folds != fold
        out_of_fold[fold, learned] = _ridge(known[rest], effect[rest], scale[rest]) * (_STEPS / np.abs(slope).max())
    if given is not None:
        return Learned(given, out_of_fold)
    topics = randomized_svd(sparse.diags_array(scale) @ known, min(TOPICS, *known.shape), n_iter=4, random_state=seed)[
        2
    ].T
    columns[learned, : topics.shape[1]] = topics
    tables = WordTables.of(np.column_stack([columns[:size], meaning]), columns[size:], rarity.astype(np.float32))
    return Learned(tables, out_of_fold)


def _counts(pages: Sequence[PromptText], size: int) -> Any:  # SciPy's sparse arrays have no public type
    found = [terms(page.words, size) for page in pages]
    starts = np.concatenate([[0], np.cumsum([len(distinct) for distinct in found])])
    shape = (len(pages), size + PAIRS)
    return sparse.csr_array((np.ones(starts[-1]), np.concatenate(found), starts), shape=shape)


def _weigh(counts: Any, rarity: NDArray[Any]) -> Any:
    """Weigh terms by rarity, pages to length 1, as `WordTables.describe` does."""
    weighted = counts @ sparse.diags_array(rarity.astype(np.float64))
    norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return sparse.csr_array(sparse.diags_array(1.0 / (norms + 1e-6)) @ weighted)


def _ridge(weights: Any, effect: Doubles, scale: Doubles) -> Doubles:
    """Slopes without the intercept, which the network's standardisation removes; a row counts by its squared scale."""
    centred = scale * (effect - np.average(effect, weights=scale**2))
    return np.asarray(lsqr(sparse.diags_array(scale) @ weights, centred, damp=_RIDGE**0.5, iter_lim=60)[0])
