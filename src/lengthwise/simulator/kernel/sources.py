"""The files that the compiled engine is made of, and a number for their content; nothing here loads Numba."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from lengthwise.version import ROOT

_SOURCES: Final = (
    "policies/*.py", "simulator/kernel/*.py", "simulator/costs.py", "simulator/outcome.py", "simulator/traffic.py",
    "lengths/log_t.py", "prefixes.py",
)  # fmt: skip


def kernel_sources() -> list[Path]:
    """Return the files that the compiled engine is made of."""
    return sorted(source for pattern in _SOURCES for source in ROOT.glob(pattern))


@cache
def kernel_fingerprint() -> int:
    """Return a number for all sources of the compiled engine and of the policies in it."""
    return int.from_bytes(sha256(b"".join(source.read_bytes() for source in kernel_sources())).digest()[:7], "big")
