"""Prompts to the token ids of a chat LLM: one user turn, and the place where the answer would begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lengthwise.errors import InputError
from lengthwise.predictors.encoder.text import TextEncoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BEFORE: Final = "<|im_start|>user\n"
_AFTER: Final = "<|im_end|>\n<|im_start|>assistant\n"


class ChatText(TextEncoder):
    """Like `TextEncoder`, with ChatML's markers (SmolLM2, Qwen) in place of BERT's."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        end = tokenizer.token_to_id("<|im_end|>")
        if end is None:
            raise InputError("the tokenizer does not know ChatML's <|im_end|>", hint="use SmolLM2 or Qwen")
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.max_tokens = max_tokens
        self._before = tokenizer.encode(_BEFORE, add_special_tokens=False).ids
        self._after = tokenizer.encode(_AFTER, add_special_tokens=False).ids
        self.pad_id = self.mask_id = end

    def _cut(self, ids: list[int], stretch: float) -> tuple[list[int], int]:
        size = round(len(ids) * stretch)
        room = self.max_tokens - len(self._before) - len(self._after)
        if len(ids) > room:
            head = (room + 1) // 2
            ids = [*ids[:head], *ids[len(ids) - (room - head) :]]
        return [*self._before, *ids, *self._after], size
