"""LLM names: the family and size they state, and the known LLM that a short name means."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from lengthwise.errors import InputError

UNKNOWN: Final = ""
"""The name of an LLM of which nothing is known."""
FAMILIES: Final = ("llama", "qwen", "gemma", "mistral", "phi", "smollm", "deepseek", "gpt", "claude")
"""Families by the part of the name that identifies them; the order is part of the model file format."""

_WORDS: Final = {"mixtral": "mistral", "ministral": "mistral", "codellama": "llama", "gpt-oss": "gpt"}
_EXPERTS: Final = re.compile(r"(\d+)x(\d+(?:\.\d+)?)b\b")
_SIZE: Final = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([bm])\b")
_QUANTISATION: Final = re.compile(
    r"[-_.](gptq|awq|gguf|ggml|exl2|hqq|fp8|fp16|bf16|int4|int8|\d(\.\d+)?-?bits?|4bit|8bit|i?q\d(_[a-z\d]+)*|hf|"
    r"\d+g|act-?order)(?=[-_.]|$)"
)
_MINI_SIZES: Final = {"phi-4-mini": 3.8, "phi-3-mini": 3.8, "phi-4": 14.7}


@dataclass(frozen=True, slots=True)
class LlmIdentity:
    """Family (None where the name contains none of the known ones) and size in billions of parameters."""

    family: str | None
    billions: float | None

    def features(self) -> list[float]:
        """One place per family and one for none, the log of the size and whether it is known."""
        known = [float(self.family == family) for family in FAMILIES]
        size = 0.0 if self.billions is None else math.log(self.billions)
        return [*known, float(self.family is None), size, float(self.billions is not None)]


FEATURES: Final = len(FAMILIES) + 3


def identify(llm: str) -> LlmIdentity:
    """Read a name such as meta-llama/Llama-3.1-8B-Instruct; any string is a name."""
    name = llm.lower().rsplit("/", 1)[-1]
    family = next((known for known in FAMILIES if known in name), None)
    family = next((known for word, known in _WORDS.items() if word in name), family)
    return LlmIdentity(family, _billions(name))


def resolve_llm(name: str, known: Collection[str]) -> str:
    """The known LLM meant by `name`.

    Tried in turn: the name itself; without the organisation, quantisation, "-Instruct" and capitals; the same as the
    beginning of exactly one name ("mixtral-8x7b"). "llama-3.1-8B" is "meta-llama/Llama-3.1-8B-Instruct".
    """
    if name in known:
        return name
    wanted = _short(name)
    by_short = {candidate: _short(candidate) for candidate in known}
    for fits in (
        [candidate for candidate, short in by_short.items() if short == wanted],
        [candidate for candidate, short in by_short.items() if short.startswith(f"{wanted}-")],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise InputError(f"LLM '{name}' is ambiguous", hint=f"one of: {', '.join(sorted(fits))}")
    near = get_close_matches(wanted, by_short.values(), n=1)
    meant = "".join(f"did you mean {candidate}? " for candidate, short in by_short.items() if short in near)
    raise InputError(f"LLM '{name}' is not known", hint=f"{meant}known: {', '.join(sorted(known)) or 'none'}")


def _billions(name: str) -> float | None:
    for start, billions in _MINI_SIZES.items():
        if name.startswith(start):
            return billions
    if experts := _EXPERTS.search(name):
        return int(experts[1]) * float(experts[2]) or None
    if size := _SIZE.search(name):
        return float(size[1]) / (1.0 if size[2] == "b" else 1000.0) or None
    return None


def without_quantisation(name: str) -> str:
    """Return a name in lower case without organisation, host and quantisation: the same weights, the same lengths."""
    short = name.rstrip("/").rsplit("/", 1)[-1].split("@", 1)[0].strip().lower().removeprefix("meta-")
    while (cut := _QUANTISATION.sub("", short)) != short:
        short = cut
    return short


def _short(name: str) -> str:
    return re.sub(r"-(instruct|it)(?=-|$)", "", without_quantisation(name))


def short_name(llm: str) -> str:
    """Return an LLM's name without its organisation and without "Instruct"."""
    name = llm.rsplit("/", 1)[-1]
    for common in ("-Instruct", "-instruct", "-it"):
        name = name.replace(common, "")
    return name
