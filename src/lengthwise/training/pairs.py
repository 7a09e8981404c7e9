"""Length samples of several sources as pairs of a prompt and an LLM: most prompts have answers of few of the LLMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import LogTColumns
from lengthwise.traffic.scores import Forecast, PredictionScores, average, coverage, mean, score_predictions
from lengthwise.workloads import LengthSamples
from lengthwise.workloads.datasets import CASTILLO_GROUPS, prompt_key
from lengthwise.workloads.length_samples import NEVER_ENDED

SAMPLES: Final = 10
"""Most answers kept of a pair."""
MIN_PROMPTS: Final = 30
"""An LLM with fewer prompts in a group has no tau there."""
_GROUP_OF: Final = {corpus: group for group, corpora in CASTILLO_GROUPS.items() for corpus in corpora}
_OFFSET_PRIOR: Final = 20.0
"""Shared prompts at which an LLM's own offset and the common one have equal weight."""
_ROUNDS: Final = 30


@dataclass(frozen=True, eq=False)
class PairTable:
    """P prompts and N pairs of a prompt and an LLM, sorted by prompt."""

    texts: tuple[str, ...]
    groups: tuple[str, ...]
    group: NDArray[np.intp]
    """(P): number of the group."""
    test: NDArray[np.bool_]
    """(P): of the test split, never trained on."""
    llms: tuple[str, ...]
    prompt: NDArray[np.intp]
    llm: NDArray[np.intp]
    lengths: NDArray[np.int32]
    """(N, SAMPLES): tokens of an answer, 0 where there is none."""
    censored: NDArray[np.bool_]

    @classmethod
    def of(cls, *sources: LengthSamples) -> PairTable:
        """Join sources; a prompt that an earlier source has is left out of later ones, unless it is the same corpus.

        Degenerate samples are left out. Raises InputError where a prompt has no text.
        """
        texts: list[str] = []
        groups: dict[str, int] = {}
        group: list[int] = []
        test: list[bool] = []
        llms = sorted({llm for source in sources for llm in source.llms})
        number_of = {llm: number for number, llm in enumerate(llms)}
        places: dict[tuple[str, str], int] = {}
        seen: dict[str, int] = {}
        pairs: dict[tuple[int, int], tuple[list[int], list[bool]]] = {}
        for part, source in enumerate(sources):
            names = ("corpus", "prompt_id", "split", "llm", "prompt", "lengths", "capped")
            for corpus, ident, split, llm, text, lengths, capped in zip(
                *(source.table[name].to_pylist() for name in names), strict=True
            ):
                if text is None:
                    raise InputError("has prompts without text", source=source.origin, field="prompt")
                if seen.setdefault(prompt_key(text), part) != part:
                    continue
                place = places.setdefault((corpus, ident), len(texts))
                if place == len(texts):
                    texts.append(text)
                    group.append(groups.setdefault(_GROUP_OF.get(corpus, corpus.lower()), len(groups)))
                    test.append(split == "test")
                clean = [(n, cut) for n, cut in zip(lengths, capped, strict=True) if n < NEVER_ENDED]
                if clean:
                    own = pairs.setdefault((place, number_of[llm]), ([], []))
                    own[0].extend(n for n, _ in clean)
                    own[1].extend(cut for _, cut in clean)
        keys = sorted(pairs)
        filled = np.zeros((len(keys), SAMPLES), np.int32)
        censored = np.zeros(filled.shape, bool)
        for row, key in enumerate(keys):
            own_lengths, own_cut = (column[:SAMPLES] for column in pairs[key])
            filled[row, : len(own_lengths)], censored[row, : len(own_cut)] = own_lengths, own_cut
        prompt, llm_of = (np.array(column, np.intp) for column in (zip(*keys, strict=True) if keys else ((), ())))
        return cls(
            tuple(texts), tuple(groups), np.array(group, np.intp), np.array(test, bool), tuple(llms), prompt, llm_of,
            filled, censored,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, keep: NDArray[Any]) -> PairTable:
        """Return the selected prompts (numbers or a mask) with their pairs, and all LLMs."""
        chosen = np.flatnonzero(keep) if keep.dtype == bool else keep
        place = np.full(len(self), -1, np.intp)
        place[chosen] = np.arange(len(chosen))
        rows = np.flatnonzero(place[self.prompt] >= 0)
        rows = rows[np.argsort(place[self.prompt[rows]], kind="stable")]
        return replace(
            self,
            texts=tuple(self.texts[i] for i in chosen),
            group=self.group[chosen],
            test=self.test[chosen],
            prompt=place[self.prompt[rows]],
            llm=self.llm[rows],
            lengths=self.lengths[rows],
            censored=self.censored[rows],
        )

    def trainable(self) -> NDArray[np.bool_]:
        """Return which prompts may be trained on: no test split, no text of one, not Alpaca."""
        unseen = {prompt_key(self.texts[i]) for i in np.flatnonzero(self.test)}
        fresh = np.array([prompt_key(text) not in unseen for text in self.texts], bool)
        aside = [self.groups.index(name) for name in ("alpaca",) if name in self.groups]
        return np.asarray(~self.test & fresh & ~np.isin(self.group, aside), bool)

    def in_groups(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which prompts are of these groups."""
        return np.isin(self.group, [self.groups.index(name) for name in names])

    def log_mean(self) -> NDArray[np.float64]:
        """Return the log of the mean length of each pair."""
        return np.asarray(np.log(self.lengths.sum(axis=1) / (self.lengths > 0).sum(axis=1)))

    def prompts_per_llm(self) -> NDArray[np.intp]:
        """Return the number of prompts of each LLM."""
        return np.bincount(self.llm, minlength=len(self.llms))

    def levels(self) -> NDArray[np.float64]:
        """Return the usual log length of each LLM, and last that of an unknown one.

        log mean length = level of the LLM + effect of the prompt. The levels differ as the LLMs do on prompts that
        several have answered, shrunk towards each other where these are few: a few lengths shift a level little.
        """
        y = self.log_mean()
        offset, effect = np.zeros(len(self.llms)), np.zeros(len(self))
        answers = np.bincount(self.prompt, minlength=len(self))
        # A prompt that one LLM answered says nothing about differences.
        shared = answers[self.prompt] > 1
        count = np.bincount(self.llm[shared], minlength=len(self.llms))
        for _ in range(_ROUNDS):
            effect = np.bincount(self.prompt, y - offset[self.llm], len(self)) / np.maximum(answers, 1)
            rest = np.where(shared, y - effect[self.prompt], 0.0)
            offset = np.bincount(self.llm, rest, len(self.llms)) / (count + _OFFSET_PRIOR)
        centre = float(np.average(effect[answers > 0], weights=self.prompt_weights()[answers > 0]))
        return np.append(offset + centre, centre)

    def prompt_weights(self) -> NDArray[np.float64]:
        """Return weights of mean 1 over the prompts: a group weighs as the square root of its number of prompts."""
        sizes = np.bincount(self.group, minlength=len(self.groups))
        weights = 1.0 / np.sqrt(sizes[self.group])
        return np.asarray(weights / weights.mean())


def coverage_90(table: PairTable, mu: NDArray[np.float64], sigma: NDArray[np.float64], nu: float) -> float:
    """Return the share of lengths inside 90 % intervals, as `score_pairs` does, without the other scores."""
    low, high = Forecast.of(LogTColumns.of(mu, sigma, np.inf, nu), crps=False).interval(0.9)
    lengths, counted = table.lengths.astype(np.float64), (table.lengths > 0) & ~table.censored
    by_llm = (np.flatnonzero(table.llm == number) for number in range(len(table.llms)))
    shares = [
        coverage(low[rows], high[rows], lengths[rows], counted[rows]) for rows in by_llm if len(rows) >= MIN_PROMPTS
    ]
    return mean(np.array(shares))


def score_pairs(
    table: PairTable, mu: NDArray[np.float64], sigma: NDArray[np.float64], nu: float, only: Sequence[str] | None = None
) -> PredictionScores:
    """Score predictions of all pairs within each LLM of at least MIN_PROMPTS prompts, averaged over these LLMs.

    Capped samples count in a pair's mean length, and not in the coverage.
    """
    forecast = Forecast.of(LogTColumns.of(mu, sigma, np.inf, nu), crps=False)
    parts = []
    for number, llm in enumerate(table.llms):
        rows = np.flatnonzero(table.llm == number)
        if len(rows) >= MIN_PROMPTS and (only is None or llm in only):
            lengths, censored = table.lengths[rows], table.censored[rows]
            parts.append(score_predictions(forecast.take(rows), lengths, present=lengths > 0, censored=censored))
    return average(parts)
