"""What a network is taught from: labelled prompts, pieces of them, noise, and a teacher's word on all of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.training.encoder.data import noise, piece

if TYPE_CHECKING:
    from lengthwise.training.fast.examples import PromptTable
    from lengthwise.training.fast.teacher import Lessons

PIECES: Final = 2
"""Pieces cut from each prompt."""


@dataclass(frozen=True, eq=False)
class DistillationSet:
    """`origins` has the number of the prompt that each piece was cut from, and for noise one past the last."""

    prompts: PromptTable
    pieces: tuple[str, ...]
    origins: NDArray[np.intp]
    lessons: Lessons

    @classmethod
    def of(cls, prompts: PromptTable, teach: Callable[[Sequence[str]], Lessons], seed: int) -> DistillationSet:
        """Cut pieces, add noise, and have all of it taught."""
        rng = np.random.default_rng(seed)
        cut = [(piece(text, rng), number) for _ in range(PIECES) for number, text in enumerate(prompts.texts)]
        cut += [(text, len(prompts)) for text in noise(rng)]
        pieces = tuple(text for text, _ in cut)
        lessons = teach(list(dict.fromkeys((*prompts.texts, *pieces))))
        return cls(prompts, pieces, np.array([origin for _, origin in cut]), lessons)

    def rows(self, keep: NDArray[np.intp]) -> DistillationSet:
        """Return some of the prompts with the pieces that are of them, or of none."""
        places = np.full(len(self.prompts) + 1, -1)
        places[keep] = np.arange(len(keep))
        places[-1] = len(keep)
        own = np.flatnonzero(places[self.origins] >= 0)
        pieces = tuple(self.pieces[i] for i in own)
        return DistillationSet(self.prompts.rows(keep), pieces, places[self.origins[own]], self.lessons)
