"""The way into the compiled engine.

Numba keeps compiled code beside the module of the function that is called, and looks at that module alone to see
whether the code is still good. So the function made here carries a fingerprint of everything it is made from.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, cast

from numba import njit

from lengthwise.simulator.kernel import loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from lengthwise.simulator.kernel.records import Records

_run = loop.run


def _fingerprint() -> int:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return int.from_bytes(sha256(b"".join(source.read_bytes() for source in sources)).digest()[:7], "big")


def _compiled(fingerprint: int) -> Callable[[Records, float], int]:
    def advance(engines: Records, until: float) -> int:
        if fingerprint < 0:  # named, so that it counts as a part of this function
            return -1
        return _run(engines[0], until)

    try:
        compiled = njit(cache=True)(advance)
    except RuntimeError:  # neither beside the module nor in the user's folders can anything be written
        logging.getLogger(__name__).warning("nowhere to keep the compiled engine: it is compiled at every start")
        compiled = njit(advance)
    return cast("Callable[[Records, float], int]", compiled)


advance = _compiled(_fingerprint())
"""Run every step that begins before a time, and return why it stopped; called again, it goes on from there."""
