"""Prompts to token ids, truncated to the encoder's limit. Needs `tokenizers` only; the same in training and serving."""

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
    """A tokenizer that truncates a long prompt in the middle.

    The instruction of a prompt is usually at its beginning or its end.
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
        """Return the token ids, with start and end, and their number before truncation."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[tuple[list[int], int]]:
        """Encode a batch. A very long text is first truncated by characters."""
        limit = self.max_tokens * _CHARACTERS_PER_TOKEN
        short = [t if len(t) <= 2 * limit else f"{t[:limit]} {t[-limit:]}" for t in map(_encodable, texts)]
        coded = self._tokenizer.encode_batch_fast(short, add_special_tokens=False)
        return [
            self._cut(code.ids, len(text) / max(len(brief), 1))
            for code, text, brief in zip(coded, texts, short, strict=True)
        ]

    def encode_all(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int32]]:
        """Return all ids concatenated, the offset of each text, and sizes before truncation."""
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
        limit = self.max_tokens - 2
        if len(ids) > limit:
            head = (limit + 1) // 2
            ids = [*ids[:head], *ids[len(ids) - (limit - head) :]]
        return [self.start, *ids, self.end], size

    def _one_of(self, names: tuple[str, ...]) -> int:
        for name in names:
            number = self._tokenizer.token_to_id(name)
            if number is not None:
                return int(number)
        raise InputError(f"the tokenizer has none of {', '.join(names)}", hint="use an encoder of the BERT family")


def _encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
