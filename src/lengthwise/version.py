"""The installed version of the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent
"""Folder of the package's code."""


def package_version() -> str:
    """Return the version that is installed."""
    from importlib.metadata import version  # takes longer than the rest of `import lengthwise`

    return version("lengthwise")
