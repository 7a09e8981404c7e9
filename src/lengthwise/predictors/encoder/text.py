"""Prompts to token ids: any string, cut to what the encoder takes. Needs `tokenizers` only; the same in training
and serving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lengthwise.errors import InputError

_CHARACTERS_PER_TOKEN: Final = 16
_CHUNK: Final = 512
_STARTS: Final = ("[CLS]", "<s>")
_ENDS: Final = ("[SEP]", "</s>")


class TextEncoder:
    """A tokenizer that keeps the beginning and the end of what is too long.

    What a prompt asks for stands at its beginning or at its end; the middle is material.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.max_tokens = max_tokens
        self.start, self.end = self._one_of(_STARTS), self._one_of(_ENDS)
        self.pad_id = self._one_of(("[PAD]", "<pad>"))
        self.mask_id = self._one_of(("[MASK]", "<mask>"))

    @classmethod
    def of(cls, json: bytes, max_tokens: int) -> TextEncoder:
        """Build from the bytes of a tokenizer.json."""
        return cls(Tokenizer.from_str(json.decode("utf-8")), max_tokens)

    def encode(self, text: str) -> tuple[list[int], int]:
        """Return the token ids, with start and end, and how many the prompt has before the cut."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[tuple[list[int], int]]:
        """Encode many. A very long text is cut by characters first: what lies between is never looked at."""
        room = self.max_tokens * _CHARACTERS_PER_TOKEN
        short = [t if len(t) <= 2 * room else f"{t[:room]} {t[-room:]}" for t in map(_speakable, texts)]
        coded = self._tokenizer.encode_batch_fast(short, add_special_tokens=False)
        return [
            self._cut(code.ids, len(text) / max(len(brief), 1))
            for code, text, brief in zip(coded, texts, short, strict=True)
        ]

    def encode_all(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int32]]:
        """Return all ids in a row, where each text begins, and sizes before the cut."""
        pairs = [pair for at in range(0, len(texts), _CHUNK) for pair in self.encode_batch(texts[at : at + _CHUNK])]
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in pairs])])
        kind = np.uint16 if self._tokenizer.get_vocab_size() <= 1 << 16 else np.int32
        return (
            np.concatenate([np.array(ids, kind) for ids, _ in pairs]),
            offsets.astype(np.int64),
            np.array([size for _, size in pairs], np.int32),
        )

    def _cut(self, ids: list[int], stretch: float) -> tuple[list[int], int]:
        size = round(len(ids) * stretch)
        room = self.max_tokens - 2
        if len(ids) > room:
            head = (room + 1) // 2
            ids = [*ids[:head], *ids[len(ids) - (room - head) :]]
        return [self.start, *ids, self.end], size

    def _one_of(self, names: tuple[str, ...]) -> int:
        for name in names:
            number = self._tokenizer.token_to_id(name)
            if number is not None:
                return int(number)
        raise InputError(f"the tokenizer has none of {', '.join(names)}", hint="use an encoder of the BERT family")


def _speakable(text: str) -> str:
    """Any string: lone surrogates, which no encoding takes, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
