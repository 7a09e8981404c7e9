"""Find the LLM a person means by a short name."""

from __future__ import annotations

import re
from collections.abc import Collection

from lengthwise.errors import InputError


def resolve_llm(name: str, known: Collection[str]) -> str:
    """The known LLM meant by `name`.

    Tried in turn: the name itself; without the organisation, "-Instruct" and capitals; the same as the
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
    raise InputError(f"LLM '{name}' is not known", hint=f"known: {', '.join(sorted(known)) or 'none'}")


def _short(name: str) -> str:
    return re.sub(r"-(instruct|it)(?=-|$)", "", name.rsplit("/", 1)[-1].lower())
