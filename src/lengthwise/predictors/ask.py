"""The prompt method: ask the LLM itself how long its answer will be, and read the number off what it says.

The baseline of the BERT-on-CASTILLO paper (its appendix A.2). Speaks no HTTP: the host gives a function that
completes a prompt.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Complete = Callable[[str], Awaitable[str]]
    """A prompt in, the LLM's answer out (its first 64 tokens will do)."""

TEMPLATE: Final = (
    "Predict the length of your answer before answering my question, use the format:"
    '"[length(only one number)]: (your answer)". '
    "The length of your answer should be as close to the prediction of the length you give me as possible. "
    "Remember to follow the format. "
)
"""The appendix's words; the question follows."""

LONGEST: Final = 1_000_000
"""Tokens; whoever says more is not talking about a length."""

_LOOKED_AT: Final = 400  # characters after the thinking; a length is said first or not at all
_THOUGHT: Final = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_MARKS: Final = re.compile(r"[*_`\"“”]")
_ABOUT: Final = (
    r"(?:(?:about|around|approximately|approx\.?|roughly|exactly|up to|at most|~|≈|<|=|:|is|of|be|will)\s*)*"
)
_COUNT: Final = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\.\d+)?)"
_RANGE: Final = rf"(?P<low>{_COUNT})(?P<kilo>k\b)?(?:\s*(?:-|–|—|to)\s*(?P<high>{_COUNT}))?"
_UNIT: Final = r"[-\s]*(?:tokens?|words?|characters?)\b"
_LABEL: Final = r"(?:\w+\s+){0,3}?length(?:\s*\(only one number\))?(?:\s+of\s+(?:my|the|this)\s+\w+)?"
_TALK: Final = r"[^.\d\n]{0,80}?"

# From the surest form to the loosest. Each is held against the beginning, so that the answer's own numbers are safe.
_FORMS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"[\[(]\s*{_ABOUT}{_RANGE}(?:{_UNIT})?\s*[\])]",  # [55]: I am ...
        rf"[\[(]?\s*{_LABEL}\s*[\[(\]):=\s]*{_ABOUT}[\[(]?\s*{_RANGE}",  # [length]: 120 ..., Length: about 200 words
        rf"{_ABOUT}{_RANGE}(?:{_UNIT})?\s*[\])]?\s*[:：](?!\d)",  # 55: I am ..., ~55 words: I am ...
        rf"{_ABOUT}{_RANGE}{_UNIT}",  # 150 tokens
        rf"{_ABOUT}{_RANGE}\s*(?:\n|\Z)",  # a number alone on its line
        rf"{_TALK}[\[(]\s*{_RANGE}(?:{_UNIT})?\s*[\])]\s*[:：]",  # Sure! [55]: I am ...
        rf"{_TALK}\b(?:answer|response|reply|length)\b{_TALK}{_RANGE}{_UNIT}",  # My answer will have about 80 words.
    )
)


def question(prompt: str) -> str:
    """The prompt inside the template."""
    return TEMPLATE + prompt


def parse_length(answer: str) -> int | None:
    """The length an LLM says its answer will have; None where it says none.

    The number counts as tokens whatever unit is named, as in the paper; of a range the middle. Only the beginning
    is looked at, after any thinking.
    """
    text = _MARKS.sub("", _THOUGHT.sub("", answer).lstrip()[:_LOOKED_AT]).lstrip()
    for form in _FORMS:
        if found := form.match(text):
            low = _number(found["low"]) * (1000 if found["kilo"] else 1)
            stated = low if found["high"] is None else (low + _number(found["high"])) / 2
            return int(stated) if 1 <= stated <= LONGEST else None
    return None


async def ask_length(prompt: str, complete: Complete) -> int | None:
    """What the LLM says about its own answer to this prompt. Errors of `complete` pass through."""
    return parse_length(await complete(question(prompt)))


async def ask_lengths(prompts: Sequence[str], complete: Complete, *, at_once: int = 16) -> list[int | None]:
    """The same for many prompts, in order, at most `at_once` on the way."""
    places = asyncio.Semaphore(at_once)

    async def one(prompt: str) -> int | None:
        async with places:
            return await ask_length(prompt, complete)

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


def _number(digits: str) -> float:
    return float(digits.replace(",", ""))
