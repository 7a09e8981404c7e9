"""Prompts as token ids and the lengths of their answers, as arrays in one file: the input of a training run.

Reading a pack needs neither pydantic nor the data, so that a run can train on another machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

TRAIN: Final = 0
HELD_OUT: Final = 1
TEST: Final = 2
ELSEWHERE: Final = 3
"""Test prompts of a corpus that is never trained on (Alpaca)."""
UNLABELLED: Final = 4
"""Prompts without lengths, for which only an ensemble has predictions."""
ASIDE: Final = 5
"""Prompts that are neither trained on nor scored."""

MADE: Final = "made"
"""The corpus and the group of prompts made from templates (`training/stated_rows.py`)."""
MADE_WEIGHT: Final = 0.25
"""Weight of a made prompt relative to a real one of a group of the same size: more costs tau on held-out prompts."""


@dataclass(frozen=True, eq=False)
class Pack:
    """P prompts, L LLMs, up to K answers each."""

    tokens: NDArray[Any]
    """All prompts' token ids in a row, cut to what the encoder takes."""
    offsets: NDArray[np.int64]
    """(P + 1): index of the first token of each prompt."""
    sizes: NDArray[np.int32]
    """(P): tokens before the cut."""
    lengths: NDArray[np.int16]
    """(P, L, K): tokens of an answer, 0 where it is missing or degenerate."""
    censored: NDArray[np.bool_]
    """(P, L, K): the answer was cut off and is at least that long."""
    fitted: NDArray[np.float16]
    """(P, L, 2): mu and sigma by maximum likelihood, NaN where they cannot be estimated."""
    corpus: NDArray[np.int8]
    """(P): number of the corpus, -1 for a text of none."""
    part: NDArray[np.int8]
    """(P): TRAIN, HELD_OUT, TEST, ELSEWHERE, UNLABELLED or ASIDE."""
    fold: NDArray[np.int8]
    """(P): a random tenth, for training without it."""
    features: NDArray[np.float32]
    """(L + 1, f): features of the LLMs' names; the last row is the unknown LLM."""
    stated: NDArray[np.float32]
    """(P, s): what each prompt says about its length, the numbers of `StatedLength`."""
    llms: tuple[str, ...]
    corpora: tuple[str, ...]
    pad_id: int
    mask_id: int

    def __len__(self) -> int:
        return len(self.part)

    def padded(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return token ids (P, longest), padded, and the token count of each prompt."""
        count = np.diff(self.offsets).astype(np.int32)
        ids = np.full((len(self), int(count.max())), self.pad_id, np.int32)
        ids[np.arange(ids.shape[1]) < count[:, None]] = self.tokens
        return ids, count

    def without(self, word: str) -> Pack:
        """Return a pack without the LLM whose name contains `word`."""
        return self.of_llms([number for number, llm in enumerate(self.llms) if word not in llm])

    def of_llms(self, numbers: Sequence[int]) -> Pack:
        """Return a pack with these LLMs, by number."""
        return replace(
            self,
            lengths=self.lengths[:, list(numbers)],
            censored=self.censored[:, list(numbers)],
            fitted=self.fitted[:, list(numbers)],
            features=self.features[[*numbers, len(self.llms)]],
            llms=tuple(self.llms[number] for number in numbers),
        )

    def extended(
        self,
        tokens: NDArray[Any],
        offsets: NDArray[np.int64],
        sizes: NDArray[np.int32],
        stated: NDArray[np.float32],
        corpus: ArrayLike = -1,
    ) -> Pack:
        """Return a pack with further prompts at the end, without lengths and by default of no corpus."""
        empty = {"lengths": 0, "censored": False, "fitted": np.nan, "corpus": corpus, "part": UNLABELLED, "fold": -1}
        more = {}
        for name, value in empty.items():
            array = getattr(self, name)
            spare = np.empty((len(sizes), *array.shape[1:]), array.dtype)
            spare[:] = value
            more[name] = np.concatenate([array, spare])
        return replace(
            self,
            tokens=np.concatenate([self.tokens, tokens]),
            offsets=np.concatenate([self.offsets, self.offsets[-1] + offsets[1:]]),
            sizes=np.concatenate([self.sizes, sizes]),
            stated=np.concatenate([self.stated, stated]),
            **more,
        )

    def write(self, path: Path) -> None:
        """Write the pack as one .npz file."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _PLAIN}
        plain = json.dumps({name: getattr(self, name) for name in _PLAIN})
        np.savez_compressed(path, plain=np.array(plain), **arrays)

    @classmethod
    def read(cls, path: Path) -> Pack:
        """Read a file of `write`."""
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        plain = json.loads(str(arrays.pop("plain")))
        plain["llms"], plain["corpora"] = tuple(plain["llms"]), tuple(plain["corpora"])
        return cls(**arrays, **plain)


_PLAIN: Final = ("llms", "corpora", "pad_id", "mask_id")
