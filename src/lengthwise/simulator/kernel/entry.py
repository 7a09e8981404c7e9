"""The way into the compiled engine.

Numba keeps compiled code beside the module of the function that is called, and looks at that module alone to see
whether the code is still good. So the function made here carries a fingerprint of everything it is made from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar, cast

from numba import njit

from lengthwise.simulator.kernel import loop, memory
from lengthwise.simulator.kernel.records import Records

Function = TypeVar("Function", bound="Callable[..., int]")
_run, _cached_blocks = loop.run, memory.cached_blocks


def _fingerprint() -> int:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return int.from_bytes(sha256(b"".join(source.read_bytes() for source in sources)).digest()[:7], "big")


def _advance(fingerprint: int) -> Callable[[Records, float], int]:
    def advance(engines: Records, until: float) -> int:
        if fingerprint < 0:  # named, so that it counts as a part of this function
            return -1
        return _run(engines[0], until)

    return advance


def _cached(fingerprint: int) -> Callable[[Records, int, int], int]:
    def cached(engines: Records, row: int, tokens: int) -> int:
        if fingerprint < 0:
            return -1
        return _cached_blocks(engines[0], row, tokens)[0]

    return cached


def _compiled(function: Function) -> Function:
    try:
        compiled = njit(cache=True)(function)
    except RuntimeError:  # neither beside the module nor in the user's folders can anything be written
        logging.getLogger(__name__).warning("nowhere to keep the compiled engine: it is compiled at every start")
        compiled = njit(function)
    return cast("Function", compiled)


advance = _compiled(_advance(_fingerprint()))
"""Run every step that begins before a time, and return why it stopped; called again, it goes on from there."""

cached = _compiled(_cached(_fingerprint()))
"""Leading blocks in the prefix cache, of a request's first so many tokens but the last. Compiled when it is asked."""
