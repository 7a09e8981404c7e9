"""Prompts as token ids and the lengths of their answers, as arrays in one file: what a training run reads.

NumPy only. A pack can be trained from on a machine that has neither tokenizers nor the data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

TRAIN: Final = 0
HELD_OUT: Final = 1
TEST: Final = 2
ELSEWHERE: Final = 3
"""Test prompts of a corpus that is never trained on (Alpaca)."""
UNLABELLED: Final = 4
"""Prompts without lengths: an ensemble can still say what it predicts of them."""
ASIDE: Final = 5
"""All others: neither trained on nor scored."""


@dataclass(frozen=True, eq=False)
class Pack:
    """P prompts, L LLMs, up to K answers each."""

    tokens: NDArray[Any]
    """All prompts' token ids in a row, cut to what the encoder takes."""
    offsets: NDArray[np.int64]
    """(P + 1): where each prompt begins."""
    sizes: NDArray[np.int32]
    """(P): tokens before the cut."""
    lengths: NDArray[np.int16]
    """(P, L, K): tokens of an answer, 0 where there is none or it is degenerate."""
    censored: NDArray[np.bool_]
    """(P, L, K): the answer was cut off and is at least that long."""
    fitted: NDArray[np.float16]
    """(P, L, 2): mu and sigma by maximum likelihood, NaN where they cannot be told."""
    corpus: NDArray[np.int8]
    """(P): number of the corpus, -1 for a text of none."""
    part: NDArray[np.int8]
    """(P): TRAIN, HELD_OUT, TEST, ELSEWHERE, UNLABELLED or ASIDE."""
    fold: NDArray[np.int8]
    """(P): a random tenth, for training without it."""
    features: NDArray[np.float32]
    """(L + 1, f): what the LLMs' names say; the last row is the unknown LLM's."""
    llms: tuple[str, ...]
    corpora: tuple[str, ...]
    pad_id: int
    mask_id: int

    def __len__(self) -> int:
        return len(self.part)

    @property
    def present(self) -> NDArray[np.bool_]:
        """(P, L, K): there is such an answer."""
        return self.lengths > 0

    def padded(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return token ids (P, longest), padded, and how many each prompt has."""
        count = np.diff(self.offsets).astype(np.int32)
        ids = np.full((len(self), int(count.max())), self.pad_id, np.int32)
        ids[np.arange(ids.shape[1]) < count[:, None]] = self.tokens
        return ids, count

    def without(self, word: str) -> Pack:
        """The same without one LLM, found by a word of its name: nothing of it is left."""
        kept = [number for number, llm in enumerate(self.llms) if word not in llm]
        return replace(
            self,
            lengths=self.lengths[:, kept],
            censored=self.censored[:, kept],
            fitted=self.fitted[:, kept],
            features=self.features[[*kept, len(self.llms)]],
            llms=tuple(self.llms[number] for number in kept),
        )

    def extended(self, tokens: NDArray[Any], offsets: NDArray[np.int64], sizes: NDArray[np.int32]) -> Pack:
        """The same with further prompts after the others, of no corpus and without lengths."""
        spare = len(sizes)
        empty = {"lengths": 0, "censored": False, "fitted": np.nan, "corpus": -1, "part": UNLABELLED, "fold": -1}
        more = {
            name: np.concatenate([mine, np.full((spare, *mine.shape[1:]), value, mine.dtype)])
            for name, value in empty.items()
            for mine in [getattr(self, name)]
        }
        return replace(
            self,
            tokens=np.concatenate([self.tokens, tokens]),
            offsets=np.concatenate([self.offsets, self.offsets[-1] + offsets[1:]]),
            sizes=np.concatenate([self.sizes, sizes]),
            **more,
        )

    def write(self, path: Path) -> None:
        """Write one file."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _PLAIN}
        plain = json.dumps({name: getattr(self, name) for name in _PLAIN})
        np.savez_compressed(path, plain=np.array(plain), **arrays)

    @classmethod
    def read(cls, path: Path) -> Pack:
        """Read what `write` wrote."""
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        plain = json.loads(str(arrays.pop("plain")))
        plain["llms"], plain["corpora"] = tuple(plain["llms"]), tuple(plain["corpora"])
        return cls(**arrays, **plain)


_PLAIN: Final = ("llms", "corpora", "pad_id", "mask_id")
